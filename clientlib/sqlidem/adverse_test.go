package sqlidem_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/sqlidem"
	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

// What databases, pools and works do that make trouble.

// isolations are the levels that a service may choose. CockroachDB 21.1 has one.
func (d *database) isolations() []sql.IsolationLevel {
	if d.cockroach {
		return []sql.IsolationLevel{sql.LevelDefault, sql.LevelSerializable}
	}
	return []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}
}

// TestDuplicatesHaveOneEffectAtEveryIsolation: above READ COMMITTED whoever waited for the other one's row cannot see it, and has to begin anew.
func TestDuplicatesHaveOneEffectAtEveryIsolation(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		s := d.service(t)
		for _, isolation := range d.isolations() {
			key := isolation.String()
			var executed atomic.Int64
			var wg sync.WaitGroup
			for range 12 {
				wg.Go(func() {
					result, err := s.do(t.Context(), ref(key), asked("a"), charge(key), sqlidem.Options{Wait: patience, Isolation: isolation})
					if err != nil || string(result.Response.Body) != "charged "+key {
						t.Errorf("%s: %+v, %v", key, result, err)
					}
					if result.Outcome == clientlib.Executed {
						executed.Add(1)
					}
				})
			}
			wg.Wait()
			if executed.Load() != 1 || d.effects(t, key) != 1 {
				t.Errorf("%s: executed %d times, with %d effects", key, executed.Load(), d.effects(t, key))
			}
		}
	})
}

// TestTheWorksIsolationIsTheOneThatWasAskedFor.
func TestTheWorksIsolationIsTheOneThatWasAskedFor(t *testing.T) {
	onPostgreSQL(t, func(t *testing.T, d *database) {
		for _, isolation := range d.isolations() {
			_, err := d.service(t).do(t.Context(), ref(isolation.String()), asked("a"), func(ctx context.Context, tx tx) (clientlib.Response, error) {
				return answer("a"), tx.exec(ctx, "INSERT INTO effects VALUES ('isolation', current_setting('transaction_isolation'))")
			}, sqlidem.Options{Isolation: isolation})
			if err != nil {
				t.Fatal(err)
			}
			if n := d.count(t, "SELECT count(*) FROM effects WHERE note = $1", strings.ToLower(isolation.String())); n != 1 {
				t.Errorf("the work did not run at %s", isolation)
			}
		}
	})
}

// TestAStalledAttemptIsFencedOffAtEveryIsolation: above READ COMMITTED its receipt meets the higher fence as a serialization failure.
func TestAStalledAttemptIsFencedOffAtEveryIsolation(t *testing.T) {
	onEveryWorld(t, func(t *testing.T, w *world) {
		for _, isolation := range w.isolations() {
			key := isolation.String()
			begun, goOn, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
			var once sync.Once
			go func() {
				defer close(over)
				_, _ = w.guard(t).do(context.Background(), key, asked("a"), func(ctx context.Context, tx tx, _ clientlib.Claim) (clientlib.Response, error) {
					response, err := charge(key)(ctx, tx)
					once.Do(func() {
						close(begun)
						<-goOn
					})
					return response, err
				}, sqlidem.ReceiptOptions{Isolation: isolation})
			}()
			await(t, begun)
			w.ledger.LapseLease(ref(key))
			if result, err := w.guard(t).do(t.Context(), key, asked("a"), claimed(charge(key)), sqlidem.ReceiptOptions{Isolation: isolation}); err != nil {
				t.Errorf("%s: attempt 2: %+v, %v", key, result, err)
			}
			close(goOn)
			await(t, over)
			if n := w.effects(t, key); n != 1 {
				t.Errorf("%s: %d effects", key, n)
			}
		}
	})
}

// TestAPanicWithReceiptsLeavesNothingAndTheNextAttemptRuns.
func TestAPanicWithReceiptsLeavesNothingAndTheNextAttemptRuns(t *testing.T) {
	onEveryWorld(t, func(t *testing.T, w *world) {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic did not come through")
				}
			}()
			_, _ = w.guard(t).do(t.Context(), "k", asked("a"), func(ctx context.Context, tx tx, _ clientlib.Claim) (clientlib.Response, error) {
				_, _ = charge("k")(ctx, tx)
				panic("a bug")
			}, sqlidem.ReceiptOptions{})
		}()
		if n := w.effects(t, "k"); n != 0 {
			t.Errorf("%d effects", n)
		}
		result, err := w.guard(t).do(t.Context(), "k", asked("a"), claimed(charge("k")), sqlidem.ReceiptOptions{})
		if err != nil || result.Outcome != clientlib.Executed || result.Attempt != 2 || w.effects(t, "k") != 1 {
			t.Errorf("%+v, %v, %d effects", result, err, w.effects(t, "k"))
		}
	})
}

// TestWorkThatCallsDoAgain: for another intent it is an intent of its own, and for its own it is told at the end of its wait that somebody
// is at it, and never that it was done.
func TestWorkThatCallsDoAgain(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		s := d.service(t)
		for _, inner := range []string{"own", "another"} {
			result, err := s.do(t.Context(), ref("own"), asked("a"), func(ctx context.Context, tx tx) (clientlib.Response, error) {
				if _, err := s.do(ctx, ref(inner), asked("a"), charge(inner), sqlidem.Options{Wait: 10 * time.Millisecond}); err != nil {
					return clientlib.Response{}, err
				}
				return charge("own")(ctx, tx)
			}, patient)
			if own := inner == "own"; own != errors.Is(err, clientlib.ErrInProgress) || d.effects(t, inner) == 1 == own {
				t.Errorf("inside %s: %+v, %v, %d effects", inner, result, err, d.effects(t, inner))
			}
		}
		if d.effects(t, "own") != 1 || d.effects(t, "another") != 1 {
			t.Errorf("%d and %d effects", d.effects(t, "own"), d.effects(t, "another"))
		}
	})
}

// poolOfOne is a service with one connection for all.
func (d *database) poolOfOne(t *testing.T) *service {
	t.Helper()
	config := sqlidem.Config{ClockSQL: movedClock}
	if d.driver == "pgx" {
		poolConfig := must(pgxpool.ParseConfig(d.url))
		poolConfig.MaxConns = 1
		pool := must(pgxpool.NewWithConfig(t.Context(), poolConfig))
		t.Cleanup(pool.Close)
		return serviceOf(must(sqlidem.NewPgx(pool, config)), func(t pgx.Tx) tx { return pgxTx{t} })
	}
	db := stdlib.OpenDB(*must(pgx.ParseConfig(d.url)))
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = db.Close() })
	return sqlService(db, config)
}

// TestAPoolOfOneHangsNobody: no transaction needs a second connection. Work that takes one itself waits no longer than its caller.
func TestAPoolOfOneHangsNobody(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		s := d.poolOfOne(t)
		var wg sync.WaitGroup
		for i := range 12 {
			key := fmt.Sprint(i % 3)
			wg.Go(func() {
				if _, err := s.do(t.Context(), ref(key), asked("a"), charge(key), patient); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := d.count(t, "SELECT count(*) FROM effects"); n != 3 {
			t.Errorf("%d effects of 3 intents", n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := s.do(ctx, ref("outer"), asked("a"), func(ctx context.Context, tx tx) (clientlib.Response, error) {
			_, err := s.do(ctx, ref("inner"), asked("a"), charge("inner"), sqlidem.Options{})
			return answer("a"), err
		}, sqlidem.Options{})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("work that waits for its own connection: %v", err)
		}
		if _, err := s.do(t.Context(), ref("outer"), asked("a"), charge("outer"), patient); err != nil || d.effects(t, "outer") != 1 {
			t.Errorf("afterwards: %v, %d effects", err, d.effects(t, "outer"))
		}
	})
}

// TestThroughPgBouncerInTransactionMode: no state of a session is relied on, and no limit of ours is left on a connection that others get.
func TestThroughPgBouncerInTransactionMode(t *testing.T) {
	onPostgreSQL(t, func(t *testing.T, d *database) {
		u := pgtest.StartPooler(t, pgtest.Shared(t)).URL(t, d.url)
		s := openService(t, withParameter(t, u, "default_query_exec_mode", "exec"), d.driver, sqlidem.Config{ClockSQL: movedClock})
		finish := stall(t, s, "k")
		if _, err := s.do(t.Context(), ref("k"), asked("a"), charge("k"), sqlidem.Options{Wait: time.Millisecond}); !errors.Is(err, clientlib.ErrInProgress) {
			t.Errorf("a duplicate: %v", err)
		}
		if result, err := finish(nil); err != nil || result.Outcome != clientlib.Executed {
			t.Errorf("%+v, %v", result, err)
		}
		var wg sync.WaitGroup
		for i := range 24 {
			key := fmt.Sprint(i % 6)
			wg.Go(func() {
				if _, err := s.do(t.Context(), ref(key), asked("a"), charge(key), patient); err != nil {
					t.Error(err)
				}
				if _, err := s.do(t.Context(), ref("final"+key), asked("a"), func(ctx context.Context, tx tx) (clientlib.Response, error) {
					_, _ = charge("final")(ctx, tx)
					return clientlib.Response{}, clientlib.Final(errors.New("no"))
				}, patient); err == nil {
					t.Error("a final failure is told as success")
				}
			})
		}
		wg.Wait()
		if n, final := d.count(t, "SELECT count(*) FROM effects"), d.effects(t, "final"); n != 7 || final != 0 {
			t.Errorf("%d effects of 7 intents, %d of those that failed", n, final)
		}
		conn := must(pgx.Connect(t.Context(), withParameter(t, u, "default_query_exec_mode", "exec")))
		defer func() { _ = conn.Close(context.Background()) }()
		var limit string
		if err := conn.QueryRow(t.Context(), "SELECT current_setting('lock_timeout')").Scan(&limit); err != nil || limit != "0" {
			t.Errorf("the next one on the connection finds lock_timeout %q, %v", limit, err)
		}
	})
}

// TestADatabaseThatOnlyReadsDoesNothing: a standby, or default_transaction_read_only.
func TestADatabaseThatOnlyReadsDoesNothing(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		s := openService(t, withParameter(t, d.url, "default_transaction_read_only", "on"), d.driver, sqlidem.Config{ClockSQL: movedClock})
		_, err := s.do(t.Context(), ref("k"), asked("a"), func(context.Context, tx) (clientlib.Response, error) {
			t.Error("the work was run")
			return clientlib.Response{}, nil
		}, patient)
		if !errors.Is(err, clientlib.ErrStoreUnavailable) {
			t.Error(err)
		}
	})
}

// TestAStatementTimeoutOfTheServicesOwn cuts short what it is meant for: the work, whose error it is, and a wait that is longer than it.
func TestAStatementTimeoutOfTheServicesOwn(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		s := openService(t, withParameter(t, d.url, "statement_timeout", "3s"), d.driver, sqlidem.Config{ClockSQL: movedClock})
		_, err := s.do(t.Context(), ref("slow"), asked("a"), func(ctx context.Context, tx tx) (clientlib.Response, error) {
			if err := tx.exec(ctx, "INSERT INTO effects VALUES ('slow', 'begun')"); err != nil {
				return clientlib.Response{}, err
			}
			return answer("a"), tx.exec(ctx, "SELECT pg_sleep(20)")
		}, patient)
		var state interface{ SQLState() string }
		if !errors.As(err, &state) || state.SQLState() != "57014" || errors.Is(err, clientlib.ErrStoreUnavailable) {
			t.Errorf("the work: %v", err)
		}
		if n := d.effects(t, "slow"); n != 0 {
			t.Errorf("%d effects", n)
		}
		finish := stall(t, d.service(t), "k")
		_, err = s.do(t.Context(), ref("k"), asked("a"), charge("k"), sqlidem.Options{Wait: 4 * time.Second})
		// PostgreSQL does not say what the statement waited for.
		if want := map[bool]error{false: clientlib.ErrStoreUnavailable, true: clientlib.ErrInProgress}[d.cockroach]; !errors.Is(err, want) {
			t.Errorf("a duplicate: %v", err)
		}
		if result, err := finish(nil); err != nil || result.Outcome != clientlib.Executed || d.effects(t, "k") != 1 {
			t.Errorf("%+v, %v, %d effects", result, err, d.effects(t, "k"))
		}
	})
}

// TestSavepointsOfTheWorkAreItsOwn, those that it leaves open, too: an answer keeps what was not rolled back, and a final failure nothing.
func TestSavepointsOfTheWorkAreItsOwn(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		s := d.service(t)
		for _, end := range []error{nil, clientlib.Final(errors.New("no"))} {
			key := fmt.Sprint("k", end)
			steps := []string{
				"SAVEPOINT mine", "INSERT INTO effects VALUES ('" + key + "', 'undone')", "ROLLBACK TO SAVEPOINT mine",
				"INSERT INTO effects VALUES ('" + key + "', 'kept')", "SAVEPOINT left_open", "INSERT INTO effects VALUES ('" + key + "', 'kept')",
			}
			_, err := s.do(t.Context(), ref(key), asked("a"), func(ctx context.Context, tx tx) (clientlib.Response, error) {
				for _, text := range steps {
					if err := tx.exec(ctx, text); err != nil {
						return clientlib.Response{}, fmt.Errorf("%s: %w", text, err)
					}
				}
				return answer("a"), end
			}, patient)
			want := 2
			if end != nil {
				want = 0
			}
			if !errors.Is(err, end) || d.effects(t, key) != want {
				t.Errorf("with %v: %v, %d effects, want %d", end, err, d.effects(t, key), want)
			}
			if result, err := s.do(t.Context(), ref(key), asked("a"), charge(key), patient); result.OriginalTime.IsZero() {
				t.Errorf("with %v, again: %+v, %v", end, result, err)
			}
		}
	})
}

// TestWorkThatRollsItsTransactionBack: nothing of it is kept, and it runs again.
func TestWorkThatRollsItsTransactionBack(t *testing.T) {
	onPostgreSQL(t, func(t *testing.T, d *database) {
		if d.driver == "pgx" {
			return // there it is refused: TestWorkThatEndsItsTransaction
		}
		s := d.service(t)
		_, err := s.do(t.Context(), ref("k"), asked("a"), func(ctx context.Context, t tx) (clientlib.Response, error) {
			response, _ := charge("k")(ctx, t)
			return response, t.(sqlTx).Rollback()
		}, patient)
		if err == nil {
			t.Error("told as success")
		}
		if result, err := s.do(t.Context(), ref("k"), asked("a"), charge("k"), patient); err != nil || result.Outcome != clientlib.Executed || d.effects(t, "k") != 1 {
			t.Errorf("again: %+v, %v, %d effects", result, err, d.effects(t, "k"))
		}
	})
}

// TestALargeAnswerComesBackWhole, up to what can be kept at most.
func TestALargeAnswerComesBackWhole(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		s := d.service(t)
		options := sqlidem.Options{Wait: patience, Rules: sqlidem.Rules{MaxResponseBytes: 8 << 20}}
		body := bytes.Repeat([]byte{0, 'a', 0xff, '\n'}, 2<<20)
		for _, want := range []clientlib.Outcome{clientlib.Executed, clientlib.Replayed} {
			result, err := s.do(t.Context(), ref("k"), asked("a"), func(ctx context.Context, tx tx) (clientlib.Response, error) {
				return clientlib.Response{Body: body}, nil
			}, options)
			if err != nil || result.Outcome != want || !bytes.Equal(result.Response.Body, body) {
				t.Errorf("%v with %d bytes, %v", result.Outcome, len(result.Response.Body), err)
			}
		}
	})
}

// TestTablesOfTheSearchPath: without a schema in the prefix the tables are where the connection's search_path has them.
func TestTablesOfTheSearchPath(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		execute(t, d.url, "CREATE SCHEMA app", "CREATE SCHEMA other")
		in := func(schema string) *service {
			return openService(t, withParameter(t, d.url, "search_path", schema), d.driver, sqlidem.Config{TablePrefix: "own_"})
		}
		s := in("app")
		s.migrate(t)
		s.migrate(t)
		for _, want := range []clientlib.Outcome{clientlib.Executed, clientlib.Replayed} {
			if result, err := s.do(t.Context(), ref("k"), asked("a"), nothing, patient); err != nil || result.Outcome != want {
				t.Errorf("%+v, %v", result, err)
			}
		}
		if n := d.count(t, "SELECT count(*) FROM app.own_entries"); n != 1 {
			t.Errorf("%d entries in the schema", n)
		}
		if _, err := in("other").do(t.Context(), ref("k"), asked("a"), nothing, patient); err == nil || !strings.Contains(err.Error(), "Migrate") {
			t.Errorf("in a schema without tables: %v", err)
		}
		named := openService(t, d.url, d.driver, sqlidem.Config{TablePrefix: "app.own_"})
		if result, err := named.do(t.Context(), ref("k"), asked("a"), nothing, patient); err != nil || result.Outcome != clientlib.Replayed {
			t.Errorf("by the schema's name: %+v, %v", result, err)
		}
	})
}
