package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

const (
	defaultListLimit = 100
	listPageSize     = 500
)

// conditionFlag reads conditions as the list of words that the output writes them in.
type conditionFlag []idemv1.EntryCondition

// conditionWords are all conditions in their order.
func conditionWords() []string {
	var out []string
	for n := int32(1); idemv1.EntryCondition_name[n] != ""; n++ {
		out = append(out, conditionWord(idemv1.EntryCondition(n)))
	}
	return out
}

func (c *conditionFlag) String() string {
	var out []string
	for _, condition := range *c {
		out = append(out, conditionWord(condition))
	}
	return strings.Join(out, ",")
}
func (c *conditionFlag) Type() string { return "words" }
func (c *conditionFlag) Set(text string) error {
	for _, word := range strings.Split(text, ",") {
		name := "ENTRY_CONDITION_" + strings.ToUpper(strings.ReplaceAll(strings.TrimSpace(word), "-", "_"))
		number, ok := idemv1.EntryCondition_value[name]
		if !ok || number == 0 {
			return fmt.Errorf("%q is none of %s", word, strings.Join(conditionWords(), ", "))
		}
		*c = append(*c, idemv1.EntryCondition(number))
	}
	return nil
}

type listFlags struct {
	tenant     string
	operation  string
	conditions conditionFlag
	olderThan  durationFlag
	doubt      bool
	limit      int
	all        bool
}

func (w *world) listCommand() *cobra.Command {
	var f listFlags
	cmd := &cobra.Command{
		Use: "list", Short: "List entries, by tenant and operation",
		Long: "List entries, by tenant and operation. Pages are fetched as needed. With -o json there is one entry on each line; what lookup shows " +
			"beyond that (answer, evidence, earlier attempts) is left out.",
		Example: "  idemd list --condition held,abandoned           # what is stuck\n" +
			"  idemd list --doubt --tenant '*' --older-than 1h  # what was settled in doubt, or still is in doubt\n" +
			"  idemd list --all -o json | jq -r .ref.key",
		GroupID: groupEntries, Args: exactArgs(),
	}
	t := addTarget(cmd.Flags())
	addTenant(cmd.Flags(), &f.tenant)
	fs := cmd.Flags()
	fs.StringVar(&f.operation, "operation", "", "only those of this operation")
	fs.Var(&f.conditions, "condition", "only those in one of these conditions: "+strings.Join(conditionWords(), ", "))
	addDuration(fs, &f.olderThan, "older-than", "only those created longer ago than this")
	fs.BoolVar(&f.doubt, "doubt", false, "only those of which an attempt may have had an effect that nobody knows of")
	fs.IntVar(&f.limit, "limit", defaultListLimit, "how many at most")
	fs.BoolVar(&f.all, "all", false, "all of them, however many")
	_ = cmd.RegisterFlagCompletionFunc("condition", cobra.FixedCompletions(conditionWords(), cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if f.limit < 1 {
			return usage("--limit: must be at least 1; for all entries give --all")
		}
		c, err := w.connect(cmd.Context(), t)
		if err != nil {
			return err
		}
		defer c.close()
		return w.list(cmd.Context(), c, f)
	}
	return cmd
}

// errEnough ends a walk through pages that was not at its end.
var errEnough = errors.New("enough")

func (w *world) list(ctx context.Context, c *client, f listFlags) error {
	request := &idemv1.ListEntriesRequest{
		Tenant: f.tenant, Operation: f.operation, Conditions: f.conditions, DoubtOnly: f.doubt, PageSize: listPageSize,
	}
	if f.olderThan > 0 {
		request.OlderThan = durationpb.New(time.Duration(f.olderThan))
	}
	printed := 0
	var rows [][]string
	err := c.eachPage(ctx, request, func(entry *idemv1.Entry) error {
		if !f.all && printed == f.limit {
			return errEnough
		}
		printed++
		if c.target.json() {
			return printProto(w.stdout, entry)
		}
		rows = append(rows, w.listRow(entry))
		return nil
	})
	if !c.target.json() {
		if len(rows) > 0 {
			table(w.stdout, []string{"TENANT", "OPERATION", "KEY", "CONDITION", "DOUBT", "ATTEMPT", "AGE", "SINCE", "HOLDER"}, rows)
		} else if err == nil {
			w.stderr.printf("no entries\n")
		}
	}
	if errors.Is(err, errEnough) {
		w.stderr.printf("idemd: more entries follow these %d: see them with --limit or --all\n", printed)
		return nil
	}
	return err
}

// eachPage calls each with every entry, page after page.
func (c *client) eachPage(ctx context.Context, request *idemv1.ListEntriesRequest, each func(*idemv1.Entry) error) error {
	for {
		page, err := within(ctx, c, func(ctx context.Context, c *client) (*idemv1.ListEntriesResponse, error) {
			return c.ListEntries(ctx, request)
		})
		if err != nil {
			return err
		}
		for _, entry := range page.GetEntries() {
			if err := each(entry); err != nil {
				return err
			}
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			return nil
		}
	}
}

// listRow is one line of the list. SINCE is how long the entry has been in its condition.
func (w *world) listRow(e *idemv1.Entry) []string {
	times := e.GetTimes()
	clock := w.clock(times.GetStoreTime())
	since := times.GetSettleTime()
	if e.GetState() == idemv1.EntryState_ENTRY_STATE_PENDING {
		since = times.GetAbandonTime()
	}
	latest := &idemv1.Attempt{}
	if n := len(e.GetAttempts()); n > 0 {
		latest = e.GetAttempts()[n-1]
	}
	if e.GetCondition() == idemv1.EntryCondition_ENTRY_CONDITION_LIVE {
		since = latest.GetBeginTime()
	}
	doubt := ""
	if e.GetDoubt() {
		doubt = "yes"
	}
	return []string{
		oneLine(e.GetRef().GetTenant()), oneLine(e.GetRef().GetOperation()), oneLine(e.GetRef().GetKey()), conditionWord(e.GetCondition()),
		doubt, strconv.Itoa(int(e.GetLatestAttempt())), clock.age(times.GetCreateTime()), clock.age(since), oneLine(latest.GetHolder()),
	}
}
