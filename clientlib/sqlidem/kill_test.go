package sqlidem_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/sqlidem"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
	"github.com/idemd/idemd/server/servertest"
)

// The kill tests start this test binary again, as processes of a service that works on intents without end, and kill -9 them at random moments
// under load. Afterwards every intent is brought to its end, and the effects are counted.

// killsVariable says how many processes to kill in each test. Default: 25.
const killsVariable = "IDEMD_TEST_KILLS"

// What a service process is told by its environment.
const (
	roleVariable     = "IDEMD_TEST_SERVICE_ROLE" // a level: 1, 2 or 3
	databaseVariable = "IDEMD_TEST_SERVICE_DATABASE"
	driverVariable   = "IDEMD_TEST_SERVICE_DRIVER"
	ledgerVariable   = "IDEMD_TEST_SERVICE_LEDGER"
	firstVariable    = "IDEMD_TEST_SERVICE_FIRST" // the first of windowIntents intents to work on
)

const (
	// windowIntents is how many intents a process works on, stepIntents how many of them the next one leaves behind: each intent is worked on by
	// several processes.
	windowIntents = 24
	stepIntents   = 12
	workers       = 8
)

func intentName(n int) string { return fmt.Sprintf("intent %d", n) }

// serve is a service process. It ends when it is killed, or when the test's process is gone.
func serve(level string) {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	do := must(levelOf(level, os.Getenv(databaseVariable), os.Getenv(driverVariable), os.Getenv(ledgerVariable)))
	first := must(strconv.Atoi(os.Getenv(firstVariable)))
	var wg sync.WaitGroup
	var once sync.Once
	for range workers {
		wg.Go(func() {
			for {
				if _, err := do(context.Background(), intentName(first+rand.N(windowIntents))); err == nil {
					once.Do(func() { fmt.Println("working") })
				}
			}
		})
	}
	wg.Wait()
}

// doIntent carries an intent out, at one of the levels. Its answer is the mark that the effect carries too.
type doIntent func(ctx context.Context, intent string) (clientlib.Result, error)

func levelOf(level, url, driver, ledger string) (doIntent, error) {
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		return nil, err
	}
	var client *clientlib.Client
	if ledger != "" {
		client, err = clientlib.New(clientlib.Config{
			Target: ledger, TransportCredentials: insecure.NewCredentials(), Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			return nil, err
		}
	}
	s := func() *service {
		if driver == "pgx" {
			return serviceOf(must(sqlidem.NewPgx(pool, sqlidem.Config{})), func(t pgx.Tx) tx { return pgxTx{t} })
		}
		return sqlService(stdlib.OpenDBFromPool(pool), sqlidem.Config{})
	}
	switch level {
	case "1":
		s := s()
		return func(ctx context.Context, intent string) (clientlib.Result, error) {
			return s.do(ctx, ref(intent), asked(intent), marked(intent), sqlidem.Options{})
		}, nil
	case "2":
		g := guardOf(s(), client, 0)
		return func(ctx context.Context, intent string) (clientlib.Result, error) {
			return g.do(ctx, intent, asked(intent), claimed(marked(intent)), sqlidem.ReceiptOptions{})
		}, nil
	default:
		return (&provider{pool}).doIntent(client), nil
	}
}

// marked is work whose effect carries a mark, which it also answers. It takes a moment, before the effect or after it.
func marked(intent string) work {
	return func(ctx context.Context, tx tx) (clientlib.Response, error) {
		mark := uuid.NewString()
		before, after := rand.N(3*time.Millisecond), rand.N(3*time.Millisecond)
		return answer(mark), errors.Join(
			tx.exec(ctx, fmt.Sprintf("SELECT pg_sleep(%f)", before.Seconds())),
			tx.exec(ctx, "INSERT INTO effects (intent, note) VALUES ($1, $2)", intent, mark),
			tx.exec(ctx, fmt.Sprintf("SELECT pg_sleep(%f)", after.Seconds())))
	}
}

// provider is somebody else's system, which knows nothing of keys but can be asked. What it was told it does, a moment later, whether its
// caller still lives or not; one request in ten it takes its time over.
type provider struct{ pool *pgxpool.Pool }

func (p *provider) charge(ctx context.Context, intent, mark string) error {
	takes := rand.N(6 * time.Millisecond)
	if rand.N(10) == 0 {
		takes = rand.N(400 * time.Millisecond)
	}
	_, err := p.pool.Exec(ctx, "INSERT INTO effects (intent, note) SELECT $1, $2 FROM pg_sleep($3)", intent, mark, takes.Seconds())
	return err
}

func (p *provider) find(ctx context.Context, claim clientlib.Claim) (clientlib.Finding, error) {
	var mark string
	err := p.pool.QueryRow(ctx, "SELECT note FROM effects WHERE intent = $1 LIMIT 1", claim.Ref.Key).Scan(&mark)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return clientlib.DidNotHappen(), nil
	case err != nil:
		return clientlib.Finding{}, err
	}
	return clientlib.Happened(answer(mark)), nil
}

// doIntent is level 3: plain clientlib.Do, with a hook that asks the provider.
func (p *provider) doIntent(client *clientlib.Client) doIntent {
	return func(ctx context.Context, intent string) (clientlib.Result, error) {
		return client.Do(ctx, ref(intent), asked(intent), func(ctx context.Context, _ clientlib.Claim) (clientlib.Response, error) {
			mark := uuid.NewString()
			return answer(mark), p.charge(ctx, intent, mark)
		}, clientlib.Options{Abandoned: clientlib.Recover(p.find)})
	}
}

// victim is a service process that will be killed.
type victim struct{ cmd *exec.Cmd }

func startVictim(t *testing.T, level string, d *database, ledger string, first int) *victim {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), must(os.Executable()))
	cmd.Env = append(os.Environ(), roleVariable+"="+level, databaseVariable+"="+d.url, driverVariable+"="+d.driver, ledgerVariable+"="+ledger,
		firstVariable+"="+strconv.Itoa(first))
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	v := &victim{cmd}
	t.Cleanup(func() {
		_ = stdin.Close()
		v.kill()
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "working\n" {
		t.Fatalf("a service process says %q, %v", line, err)
	}
	return v
}

// kill is kill -9. It may be called more than once.
func (v *victim) kill() {
	if v.cmd.ProcessState == nil {
		_ = v.cmd.Process.Kill()
		_ = v.cmd.Wait()
	}
}

// moment is a random while, in which a service process works.
func moment() <-chan time.Time { return time.After(rand.N(60 * time.Millisecond)) }

func kills(t *testing.T) int {
	if testing.Short() {
		t.Skip("skipped: it kills processes for a while; go test without -short runs it")
	}
	if given := os.Getenv(killsVariable); given != "" {
		return must(strconv.Atoi(given))
	}
	return 25
}

// count of effects, and the marks, by intent.
func (d *database) marks(t *testing.T) map[string][]string {
	t.Helper()
	conn := must(pgx.Connect(t.Context(), d.url))
	defer func() { _ = conn.Close(context.Background()) }()
	rows, _ := conn.Query(t.Context(), "SELECT intent, note FROM effects")
	marks := map[string][]string{}
	var intent, note string
	if _, err := pgx.ForEachRow(rows, []any{&intent, &note}, func() error {
		marks[intent] = append(marks[intent], note)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return marks
}

// finish brings every intent to its end, and returns the answers. Where one is still somebody's, again lets that end.
func finish(t *testing.T, do doIntent, intents int, again func()) []string {
	t.Helper()
	answers := make([]string, intents)
	for n := range intents {
		for try := 0; ; try++ {
			result, err := do(t.Context(), intentName(n))
			if err == nil {
				answers[n] = string(result.Response.Body)
				break
			}
			if try == 100 {
				t.Fatalf("%s does not come to an end: %v", intentName(n), err)
			}
			again()
		}
	}
	return answers
}

// checkExactly: one effect for each intent, and the answer is that effect's.
func checkExactly(t *testing.T, d *database, answers []string) {
	t.Helper()
	marks := d.marks(t)
	if len(marks) != len(answers) {
		t.Errorf("%d intents, and effects of %d", len(answers), len(marks))
	}
	for n, answer := range answers {
		if got := marks[intentName(n)]; len(got) != 1 || got[0] != answer {
			t.Errorf("%s is answered %q, and its effects are %q", intentName(n), answer, got)
		}
	}
}

func TestLevel1KilledAtRandomMoments(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		n := kills(t)
		for round := range n {
			v := startVictim(t, "1", d, "", round*stepIntents)
			await(t, moment())
			v.kill()
		}
		intents := (n-1)*stepIntents + windowIntents
		done := d.count(t, "SELECT count(*) FROM idem_entries")
		do := must(levelOf("1", d.url, d.driver, ""))
		checkExactly(t, d, finish(t, do, intents, func() {}))
		if done == 0 || done == intents {
			t.Errorf("of %d intents %d were done: that tests nothing", intents, done)
		}
		t.Logf("%d processes killed; %d intents, of which %d were done by then; %d effects", n, intents, done, len(d.marks(t)))
	})
}

// ledgerFor is a daemon for service processes, on a clock that stands still: no lease ends until the test says so.
func ledgerFor(t *testing.T) *servertest.Daemon {
	t.Helper()
	daemon := servertest.New(t, servertest.Options{TCP: true})
	// No cap gets in the way: what is counted is effects.
	_, err := idemv1.NewAdminServiceClient(daemon.Conn()).PutPolicy(t.Context(), &idemv1.PutPolicyRequest{Policy: &idemv1.Policy{
		Tenant: "acme", Operation: "charge", MaxAttempts: 32,
	}})
	if err != nil {
		t.Fatal(err)
	}
	lapse(daemon) // past the daemon's own start, after which holders come back first
	return daemon
}

// lapse ends every lease.
func lapse(daemon *servertest.Daemon) { daemon.Clock().Advance(2 * time.Minute) }

// Two processes at once: one is killed, and all leases end while the other is at work, so that it wakes up behind the fences of later
// attempts.
func TestLevel2KilledAtRandomMoments(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		n := kills(t)
		daemon := ledgerFor(t)
		other := startVictim(t, "2", d, daemon.Addr(), 0)
		for round := range n {
			v := startVictim(t, "2", d, daemon.Addr(), round*stepIntents)
			await(t, moment())
			other.kill()
			lapse(daemon)
			other = v
		}
		await(t, moment())
		other.kill()
		intents := (n-1)*stepIntents + windowIntents
		open, receipts := openEntries(t, daemon, intents), d.count(t, "SELECT count(*) FROM idem_receipts WHERE answer IS NOT NULL")
		do := must(levelOf("2", d.url, d.driver, daemon.Addr()))
		checkExactly(t, d, finish(t, do, intents, func() { lapse(daemon) }))
		if len(open) == 0 || receipts == 0 {
			t.Errorf("%d entries were open, and %d receipts there: that tests nothing", len(open), receipts)
		}
		t.Logf("%d processes killed; %d intents, %d receipts by then, %d entries open; %d effects", n+1, intents, receipts, len(open), len(d.marks(t)))
	})
}

// openEntries are the attempts that were begun and of which the daemon does not know what came, by intent.
func openEntries(t *testing.T, daemon *servertest.Daemon, intents int) map[string]int32 {
	t.Helper()
	ledger, open := idemv1.NewLedgerServiceClient(daemon.Conn()), map[string]int32{}
	for n := range intents {
		entry, err := ledger.Lookup(t.Context(), &idemv1.LookupRequest{Ref: &idemv1.EntryRef{Tenant: "acme", Operation: "charge", Key: intentName(n)}})
		if err == nil && entry.GetEntry().GetState() == idemv1.EntryState_ENTRY_STATE_PENDING {
			open[intentName(n)] = entry.GetEntry().GetLatestAttempt()
		}
	}
	return open
}

// Level 3 cannot promise exactly once, and this measures what it leaves open: the provider goes on with what a dead process had asked for, so that a
// hook which asks in the meantime does not see it yet. Nothing is lost, and no intent is stuck.
func TestLevel3KilledAtRandomMomentsIsMeasured(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.URL(t), "pgx")
	n := kills(t)
	daemon := ledgerFor(t)
	seen, happened := map[string]bool{}, 0
	for round := range n {
		v := startVictim(t, "3", d, daemon.Addr(), round*stepIntents)
		await(t, moment())
		v.kill()
		marks := d.marks(t)
		for intent, attempt := range openEntries(t, daemon, (round+2)*stepIntents) {
			if name := fmt.Sprint(intent, " attempt ", attempt); !seen[name] {
				seen[name] = true
				if len(marks[intent]) > 0 {
					happened++
				}
			}
		}
		lapse(daemon)
	}
	intents := (n-1)*stepIntents + windowIntents
	do := must(levelOf("3", d.url, "", daemon.Addr()))
	answers := finish(t, do, intents, func() { lapse(daemon) })
	marks, doubled := d.marks(t), 0
	for i, answer := range answers {
		got := marks[intentName(i)]
		if !slices.Contains(got, answer) {
			t.Errorf("%s is answered %q, and its effects are %q", intentName(i), answer, got)
		}
		if len(got) > 1 {
			doubled++
		}
	}
	if happened == 0 || happened == len(seen) {
		t.Errorf("of %d open entries the effect was there for %d: that tests nothing", len(seen), happened)
	}
	t.Logf("%d processes killed; %d intents. Their ends left %d attempts open: of %d the effect was there, of %d not, or not yet. "+
		"With a hook that asks a provider which takes up to 400 ms over one request in ten, %d intents had a second effect. With Rerun it would have been %d more",
		n, intents, len(seen), happened, len(seen)-happened, doubled, happened)
}
