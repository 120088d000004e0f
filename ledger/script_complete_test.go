package ledger_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/idemd/idemd/ledger"
)

// The columns of the table, "lapsed, expired" as two.
var (
	everyColumn  = []ledger.Condition{absent, live, abandoned, held, completed, final, retryable, lapsed, expired}
	knownColumns = everyColumn[1:] // where the table has "–" for "no entry"
)

// table lists every cell that the scripts must reach: the rows of the decision table, split where a cell tells two cases apart. What is not
// listed can not happen: a current attempt of a pending entry, say, has no report that could be sent again.
var table = []struct {
	row     string
	columns []ledger.Condition
}{
	{"begin RUN, new id", everyColumn},
	{"begin RUN, new id, on a release credit", []ledger.Condition{abandoned, held, retryable}},
	{"begin RUN, new id, at the cap", []ledger.Condition{held, retryable}},
	{"begin, current id", knownColumns},
	{"begin, earlier id", knownColumns},
	{"begin RECOVER, new id", everyColumn},
	{"begin, another fingerprint", knownColumns},
	{"begin, no shared algorithm", knownColumns},
	{"begin, id of another caller", []ledger.Condition{live, abandoned, held, completed, final, retryable}},
	{"complete, current token, new report", everyColumn},
	{"complete, current token, same report", []ledger.Condition{completed, expired}},
	{"complete, earlier token, new report", everyColumn},
	{"fail, current token, new report", everyColumn},
	{"fail, current token, same report", []ledger.Condition{final, retryable, expired}},
	{"fail, earlier token, new report", everyColumn},
	{"fail, earlier token, same report", knownColumns},
	{"complete, token never issued", everyColumn},
	{"fail, token never issued", everyColumn},
	{"extend, token never issued", everyColumn},
	{"extend, current token", everyColumn},
	{"extend, earlier token", everyColumn},
	{"resolve complete", everyColumn},
	{"resolve fail", everyColumn},
	{"resolve complete, forced", []ledger.Condition{live, abandoned, completed}},
	{"resolve complete, same answer", []ledger.Condition{completed}},
	{"resolve fail, same answer", []ledger.Condition{final}},
	{"resolve release", everyColumn},
	{"resolve release, forced", []ledger.Condition{live}},
	{"resolve, another attempt", []ledger.Condition{live, abandoned, held, completed, final, retryable, lapsed, expired}},
	{"resolve, decided so before", []ledger.Condition{live, abandoned, held, completed, final, retryable}},
	{"erase", knownColumns},
	{"erase, forced", []ledger.Condition{live}},
	{"lookup", everyColumn},
	{"begin, another principal", knownColumns},
	{"complete, another principal", knownColumns},
	{"fail, another principal", knownColumns},
	{"extend, another principal", knownColumns},
	{"lookup, another principal", knownColumns},
}

// TestScriptsReachEveryCell fails when a cell of the decision table is reached by no script.
func TestScriptsReachEveryCell(t *testing.T) {
	t.Parallel()
	reached := map[cell][]string{}
	for _, path := range scriptFiles(t) {
		e := newDecideEngine(t, path)
		runScript(t, path, e)
		for c := range e.cells {
			reached[c] = append(reached[c], filepath.Base(path))
		}
	}
	count := 0
	for _, row := range table {
		for _, column := range row.columns {
			count++
			if len(reached[cell{row.row, column}]) == 0 {
				t.Errorf("no script reaches: %s / %s", row.row, conditionNames[column])
			}
		}
	}
	t.Logf("%d cells required, %d reached", count, len(reached))
}

// extraRules are the rules under the table, each with the script that proves it.
var extraRules = map[string]string{
	"order: validation, permission, fingerprint, table":               "rule-order",
	"fail UNKNOWN gives the claim up, its resend is OK":               "rule-giving-up",
	"a resent Begin gets the identical token":                         "rule-tokens",
	"doubt is set by giving up, takeover, release, late success":      "rule-doubt",
	"a lapse that its own holder ended sets no doubt":                 "rule-doubt",
	"in doubt, a RUN claim's RETRYABLE is stored as given up":         "rule-doubt",
	"a recover-only claim's RETRYABLE clears doubt":                   "rule-doubt",
	"FINAL settles, and the entry stays marked":                       "rule-doubt",
	"evidence: the latest success, else the latest report":            "rule-evidence",
	"evidence disturbs no holder":                                     "rule-evidence",
	"a late success reopens FAILED retryable":                         "rule-evidence",
	"no evidence on COMPLETED or tombstones":                          "rule-evidence",
	"a resolution that names another attempt is CLAIM_LOST":           "rule-resolutions",
	"the same resolution again is OK, also after its credit was used": "rule-resolutions",
	"a credit is for the next RUN grant, whatever policy or cap":      "rule-resolutions",
	"attempt ids never grant twice":                                   "rule-attempt-ids",
	"an attempt id of another principal or holder is INVALID":         "rule-attempt-ids",
	"RUN grants are capped by policy":                                 "rule-caps",
	"all attempts are capped at 64, then only complete or fail":       "rule-cap-of-all",
	"Complete is never refused for size":                              "rule-size",
	"an empty body is a body":                                         "rule-size",
	"fingerprints bind through failures, takeovers and tombstone":     "rule-fingerprints",
	"any shared algorithm decides, none shared is HASH_INCOMPARABLE":  "rule-fingerprints",
	"the policy is copied at the grant":                               "rule-policy",
	"retention and tombstone again at settlement, the longer wins":    "rule-policy",
	"applying a policy to standing entries is an explicit call":       "rule-policy",
	"the fence never goes back":                                       "rule-fence",
	"bind_principal: others are refused, operators are not":           "permission",
	"grace: holders come back first":                                  "rule-grace",
	"held: HOLD, reclaim_within past, or the cap reached":             "rule-held",
	"lapsed: nobody came for the whole retention":                     "rule-lapse",
	"expired and forgotten, swept or not":                             "rule-retention",
	"tombstone 0: a key is new again after retention":                 "rule-retention",
	"every instant has one owner":                                     "rule-instants",
	"erasing keeps a tombstone":                                       "rule-erasing",
	"several clocks: shorter for the holder, later for the others":    "rule-margin",
	"a renewal never shortens a lease":                                "rule-renewal",
}

// TestScriptsProveEveryRule fails when a rule under the table is marked in no script, or a script marks one that is not listed.
func TestScriptsProveEveryRule(t *testing.T) {
	t.Parallel()
	marked := map[string]string{}
	for _, path := range scriptFiles(t) {
		_, rules := readScript(t, path, "")
		for _, rule := range rules {
			name := strings.TrimSuffix(filepath.Base(path), ".txt")
			if extraRules[rule] != name {
				t.Errorf("%s marks the rule %q, which is not listed for it", path, rule)
			}
			marked[rule] = name
		}
	}
	for rule, script := range extraRules {
		if marked[rule] == "" {
			t.Errorf("no line \"# rule: %s\" in %s.txt", rule, script)
		}
	}
}
