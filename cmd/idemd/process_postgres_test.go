package main

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

// migrated is a fresh database with the schema.
func migrated(t *testing.T) string {
	t.Helper()
	url := pgtest.URL(t)
	if got := runBinary(t, "migrate", "up", "--store", url); got.code != exitOK {
		t.Fatalf("migrate up: %+v", got)
	}
	return url
}

// TestServeRefusesADatabaseWithoutTheSchema and says which command helps; that command is safe to repeat.
func TestServeRefusesADatabaseWithoutTheSchema(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	got := runBinary(t, "serve", "--store", url, "--grpc-listen", "127.0.0.1:0", "--http-listen", "off")
	if got.code != exitFailed || !strings.Contains(got.stderr, "idemd migrate up") {
		t.Errorf("serve: %+v", got)
	}
	if got := runBinary(t, "migrate", "status", "--store", url); got.code != exitFailed || !strings.Contains(got.stdout, "PENDING") {
		t.Errorf("status before: %+v", got)
	}
	for range 2 {
		if got := runBinary(t, "migrate", "up", "--store", url); got.code != exitOK {
			t.Errorf("up: %+v", got)
		}
	}
	if got := runBinary(t, "migrate", "status", "--store", url, "-o", "json"); got.code != exitOK || !strings.Contains(got.stdout, `"pending":[]`) {
		t.Errorf("status after: %+v", got)
	}
	startDaemon(t, "--store", url)
}

// TestOf64ConcurrentBeginsThroughTwoDaemonsOnOnePostgreSQLExactlyOneIsGranted is G1 on the real program. The others are told the truth: that
// somebody is at work, who it is, and which attempt; and once it is settled, everybody gets the one answer.
func TestOf64ConcurrentBeginsThroughTwoDaemonsOnOnePostgreSQLExactlyOneIsGranted(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	clients := []idemv1.LedgerServiceClient{
		startDaemon(t, "--store", url, "--store-pool-size", "8").connect(), startDaemon(t, "--store", url, "--store-pool-size", "8").connect(),
	}
	for round := range 5 {
		key := fmt.Sprintf("order %d", round)
		outcomes := beginAtOnce(t, clients, key, 64)
		var winner *idemv1.Claim
		var winnerHolder string
		for holder, out := range outcomes {
			if granted := out.GetGranted(); granted != nil {
				if winner != nil {
					t.Fatalf("%s: granted twice: %v and %v", key, winner, granted)
				}
				winner, winnerHolder = granted, holder
			}
		}
		if winner == nil || winner.GetAttempt() != 1 || winner.GetPreviousAbandoned() || winner.GetResumed() {
			t.Fatalf("%s: the grant is %v", key, winner)
		}
		for holder, out := range outcomes {
			if holder == winnerHolder {
				continue
			}
			if p := out.GetInProgress(); p.GetHolder() != winnerHolder || p.GetAttempt() != 1 || p.GetRetryAfter().AsDuration() <= 0 {
				t.Errorf("%s: %s is told %v, and %s holds it", key, holder, out, winnerHolder)
			}
		}

		// The claim is the entry's, not the daemon's: either one takes the report.
		if _, err := clients[round%2].Complete(t.Context(), &idemv1.CompleteRequest{
			Ref: ref(key), ClaimToken: winner.GetClaimToken(), Response: &idemv1.Response{Body: []byte("by " + winnerHolder)},
		}); err != nil {
			t.Fatal(err)
		}
		for holder, out := range beginAtOnce(t, clients, key, 64) {
			if got := string(out.GetCompleted().GetResponse().GetBody()); got != "by "+winnerHolder {
				t.Errorf("%s: afterwards %s is told %v", key, holder, out)
			}
		}
	}
}

// beginAtOnce sends Begins for one key through all clients in turn, each as another holder and attempt, and returns the answers by holder.
func beginAtOnce(t *testing.T, clients []idemv1.LedgerServiceClient, key string, n int) map[string]*idemv1.BeginResponse {
	t.Helper()
	var mu sync.Mutex
	outcomes := map[string]*idemv1.BeginResponse{}
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		request := (&intent{key: key, attemptID: uuid.NewString()}).beginRequest()
		request.Holder = fmt.Sprintf("caller %d", i)
		wg.Go(func() {
			<-start
			out, err := clients[i%len(clients)].Begin(t.Context(), request)
			if err != nil {
				t.Errorf("%s: %s: %v", key, request.GetHolder(), err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			outcomes[request.GetHolder()] = out
		})
	}
	close(start)
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return outcomes
}

// TestWhatOneDaemonGrantedTheOtherSettlesWhenTheFirstIsKilled: a daemon holds nothing that dies with it.
func TestWhatOneDaemonGrantedTheOtherSettlesWhenTheFirstIsKilled(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	first, second := startDaemon(t, "--store", url), startDaemon(t, "--store", url)
	all := load(t.Context(), first, 0, 8, 300, func() { _ = first.cmd.Process.Kill() })
	client := second.connect()
	for _, i := range all {
		i.check(t, client)
	}
}

// TestStorePasswordsAreNeverShown: neither by the log nor by a refusal, wherever the password came from.
func TestStorePasswordsAreNeverShown(t *testing.T) {
	t.Parallel()
	const password = "hunter2hunter2"
	url := strings.Replace(migrated(t), "idemd@", "idemd:"+password+"@", 1)
	p := startDaemon(t, "--store", url, "--log-level", "debug")
	if log := p.log.String(); strings.Contains(log, password) || !strings.Contains(log, "--store-password-file") {
		t.Errorf("the log shows the password, or does not warn of it:\n%s", log)
	}
	for _, args := range [][]string{
		{"config", "check", "--store", url}, {"config", "print", "--store", url}, {"migrate", "status", "--store", url},
		{"serve", "--store", "postgresql://idemd:" + password + "@127.0.0.1:1/nothing", "--store-connect-timeout", "1s"},
		{"serve", "--store", "postgresql://idemd:" + password + "@[::1"}, {"serve", "--store", "mysql://idemd:" + password + "@localhost/x"},
	} {
		if got := runBinary(t, args...); strings.Contains(got.stdout+got.stderr, password) {
			t.Errorf("%v shows the password: %+v", args[:2], got)
		}
	}
}
