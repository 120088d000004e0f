package clientlib

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/idemd/idemd/clientlib/fingerprint"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// page reads a page of the documentation.
func page(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile("../docs/" + name)
	if err != nil {
		t.Skipf("skipped: docs/%s is not beside this package; run it in a clone of the whole repository", name)
	}
	return string(raw)
}

// ownReasons makes each refusal that a guard gives of itself, by the code that makes it.
func ownReasons(t *testing.T) map[Reason]error {
	t.Helper()
	lost := (&Error{Code: codes.FailedPrecondition, Reason: ReasonClaimLost}).GRPCStatus().Err()
	client, _ := scriptedClient(t, Config{}, func(_ context.Context, _ int, request proto.Message) (proto.Message, error) {
		if _, ok := request.(*idemv1.CompleteRequest); ok {
			return nil, lost
		}
		return inDoubt(request), nil
	})
	_, abandoned := client.Do(t.Context(), testRef, testPrint(t), respond("x"), Options{Abandoned: Refuse()})
	_, claimLost := client.Do(t.Context(), testRef, testPrint(t), respond("x"), rerun)
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	_, closed := client.Do(t.Context(), testRef, testPrint(t), respond("x"), rerun)
	_, busy := replay(&idemv1.BeginResponse{Outcome: &idemv1.BeginResponse_InProgress{InProgress: &idemv1.InProgress{}}})
	_, notKept := replayAnswer(&idemv1.Answer{Response: &idemv1.Response{BodyOmitted: true}})
	hasher, err := fingerprint.NewProtoHasher((&emptypb.Empty{}).ProtoReflect().Descriptor(), fingerprint.ProtoConfig{})
	if err != nil {
		t.Fatal(err)
	}
	nobody := &guard{server: true, Guard: Guard{Ledger: client, Principal: PrincipalFrom(func(context.Context) (string, error) { return "", nil })}}
	_, noPrincipal := nobody.fingerprint(t.Context(), &method{hasher: hasher}, &emptypb.Empty{})
	return map[Reason]error{
		ReasonKeyRequired: keyRequired("idempotency-key", ""), ReasonInProgress: busy, ReasonAnswerNotKept: notKept,
		ReasonLedgerUnavailable: closed, ReasonNoPrincipal: noPrincipal, ReasonAbandoned: abandoned, ReasonClaimLost: claimLost,
	}
}

// docs/errors.md says of every reason of a guard what its caller gets.
func TestTheReasonsOfAGuardAreDocumented(t *testing.T) {
	_, section, ok := strings.Cut(page(t, "errors.md"), "## What a guard adds\n")
	section, _, end := strings.Cut(section, "\n## ")
	if !ok || !end {
		t.Fatal("docs/errors.md has no section on guards")
	}
	rows := map[Reason][]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\| `([A-Z_]+)` \\| \\d+ \\|.*\\| ([^|]+) \\|$").FindAllStringSubmatch(section, -1) {
		rows[Reason(row[1])] = row[2:]
	}
	made := ownReasons(t)
	for reason, err := range made {
		row := rows[reason]
		if row == nil {
			t.Errorf("%s is not documented", reason)
			continue
		}
		var e *Error
		if !errors.As(err, &e) || e.Reason != reason {
			t.Errorf("%s: %v", reason, err)
			continue
		}
		code := strings.ToUpper(regexp.MustCompile("([a-z])([A-Z])").ReplaceAllString(status.Code(err).String(), "${1}_${2}"))
		if row[0] != code || (row[1] == "after RetryInfo") != (e.RetryAfter > 0) {
			t.Errorf("%s travels as %s and says to come back after %v; documented is %v", reason, code, e.RetryAfter, row)
		}
		delete(rows, reason)
	}
	for reason := range rows {
		t.Errorf("%s is documented and no guard gives it", reason)
	}
	source, err := os.ReadFile("errors.go")
	if err != nil {
		t.Fatal(err)
	}
	_, own, _ := strings.Cut(string(source), "// The reasons that a guard gives itself.")
	own, _, _ = strings.Cut(own, "\n)\n")
	declared := regexp.MustCompile(`Reason = "([A-Z_]+)"`).FindAllStringSubmatch(own, -1)
	if len(declared) < 5 {
		t.Fatal("the reasons of a guard are not where they were")
	}
	for _, match := range declared {
		if made[Reason(match[1])] == nil {
			t.Errorf("%s is made nowhere in this test", match[1])
		}
	}
}

// What docs/fingerprint.md says of callers is what a server's guard computes.
func TestTheDocumentedFingerprintOfACaller(t *testing.T) {
	hello, err := fingerprint.Bytes([]byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	bound := byPrincipal(hello, "ann")
	if row := fmt.Sprintf("| `%s` | `%x` |", bound.Algorithm, bound.Hash); !strings.Contains(page(t, "fingerprint.md"), row) {
		t.Errorf("docs/fingerprint.md does not have the row\n%s", row)
	}
	if other := byPrincipal(hello, "bob"); slices.Equal(other.Hash, bound.Hash) || other.Algorithm != bound.Algorithm || slices.Equal(bound.Hash, hello.Hash) {
		t.Errorf("%v and %v", bound, other)
	}
	// The name's length stands before it: none runs into the hash behind it.
	joined := fingerprint.Fingerprint{Algorithm: hello.Algorithm, Hash: append([]byte("n"), hello.Hash...)}
	if slices.Equal(byPrincipal(joined, "an").Hash, bound.Hash) {
		t.Error("two names have one fingerprint")
	}
}

// The metrics that docs/client.md lists are those that there are.
func TestTheMetricsAreDocumented(t *testing.T) {
	source, err := os.ReadFile("telemetry.go")
	if err != nil {
		t.Fatal(err)
	}
	text := page(t, "client.md")
	made := regexp.MustCompile(`"(idem\.client\.[a-z_.]+)"`).FindAllStringSubmatch(string(source), -1)
	for _, match := range made {
		if !strings.Contains(text, "| `"+match[1]+"` |") {
			t.Errorf("%s is not documented", match[1])
		}
	}
	if documented := strings.Count(text, "| `idem.client."); documented != len(made) || documented == 0 {
		t.Errorf("%d metrics are documented, %d are made", documented, len(made))
	}
}

// The waits that docs/client.md names are the defaults.
func TestTheDefaultsAreDocumented(t *testing.T) {
	text := page(t, "client.md")
	for want, is := range map[string]bool{
		"`SettleTimeout` (2 s)": DefaultSettleTimeout == 2*time.Second, "`SettleLimit` (15 min)": DefaultSettleLimit == 15*time.Minute,
	} {
		if !is || !strings.Contains(text, want) {
			t.Errorf("docs/client.md does not have %s, or it is another now", want)
		}
	}
}
