package sqlidem_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/sqlidem"
	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

// commitText is what the statement that commits says, on the wire.
func (d *database) commitText() string {
	if d.cockroach {
		return "RELEASE SAVEPOINT cockroach_restart"
	}
	return "commit"
}

// commitFaults leave the client without knowledge of whether its commit took place.
var commitFaults = []struct {
	name     string
	fault    pgtest.Fault
	code     string
	happened bool
}{
	{"cut after the commit", pgtest.CutAfter, "", true},
	{"cut before the commit", pgtest.CutBefore, "", false},
	{"40003 after the commit", pgtest.FailAfter, "40003", true},
	{"57P01 after the commit", pgtest.FailAfter, "57P01", true},
}

// C11: a commit of unknown outcome is read back; one that took place is not done again, and one that did not is.
func TestC11ACommitOfUnknownOutcomeIsReadBack(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		proxy := pgtest.NewProxy(t, d.url)
		s := d.through(t, proxy)
		for i, f := range commitFaults {
			key := fmt.Sprint(i)
			runs := 0
			proxy.Arm(f.fault, d.commitText(), f.code, 1)
			result, err := s.do(t.Context(), ref(key), asked("a"), func(ctx context.Context, tx tx) (clientlib.Response, error) {
				runs++
				return charge(key)(ctx, tx)
			}, patient)
			if err != nil || result.Outcome != clientlib.Executed || !result.Recorded || string(result.Response.Body) != "charged "+key {
				t.Errorf("%s: %+v, %v", f.name, result, err)
			}
			if want := map[bool]int{true: 1, false: 2}[f.happened]; runs != want || d.effects(t, key) != 1 {
				t.Errorf("%s: run %d times, %d effects", f.name, runs, d.effects(t, key))
			}
			if again, err := s.do(t.Context(), ref(key), asked("a"), charge(key), patient); err != nil || again.Outcome != clientlib.Replayed {
				t.Errorf("%s, again: %+v, %v", f.name, again, err)
			}
		}
		if proxy.Hits() != len(commitFaults) {
			t.Errorf("%d faults happened", proxy.Hits())
		}
	})
}

// A commit that did not take place, and before anybody can look another caller has done it: it is that one's answer.
func TestC11WhatAnotherOneDidMeanwhileIsNotTakenForOnesOwn(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		proxy := pgtest.NewProxy(t, d.url)
		s, other := d.through(t, proxy), d.service(t)
		over := make(chan error, 1)
		var once sync.Once
		result, err := s.do(t.Context(), ref("k"), asked("a"), func(ctx context.Context, own tx) (clientlib.Response, error) {
			once.Do(func() {
				proxy.Arm(pgtest.CutBefore, d.commitText(), "", 1)
				proxy.Arm(pgtest.CutBefore, "idem:claim", "", -1)
				go func() {
					_, err := other.do(context.Background(), ref("k"), asked("a"), func(ctx context.Context, tx tx) (clientlib.Response, error) {
						_, err := charge("k")(ctx, tx)
						return answer("by another"), err
					}, patient)
					proxy.Disarm()
					over <- err
				}()
			})
			return charge("k")(ctx, own)
		}, patient)
		if err != nil || result.Outcome != clientlib.Replayed || string(result.Response.Body) != "by another" {
			t.Errorf("%+v, %v", result, err)
		}
		if err := await(t, over); err != nil || d.effects(t, "k") != 1 {
			t.Errorf("the other one: %v, %d effects", err, d.effects(t, "k"))
		}
	})
}

func TestC11AFinalFailureWhoseCommitIsUnknownIsReadBack(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		proxy := pgtest.NewProxy(t, d.url)
		s := d.through(t, proxy)
		broke := errors.New("broke")
		for i, f := range commitFaults {
			proxy.Arm(f.fault, d.commitText(), f.code, 1)
			result, err := s.do(t.Context(), ref(fmt.Sprint(i)), asked("a"), func(context.Context, tx) (clientlib.Response, error) {
				return clientlib.Response{}, clientlib.Final(broke)
			}, patient)
			if !errors.Is(err, broke) || result.Outcome != clientlib.Executed || !result.Recorded {
				t.Errorf("%s: %+v, %v", f.name, result, err)
			}
		}
	})
}

func TestACommitThatNobodyCanReadBackIsToldAsSuch(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		proxy := pgtest.NewProxy(t, d.url)
		s := d.through(t, proxy)
		result, err := s.do(t.Context(), ref("k"), asked("a"), func(ctx context.Context, tx tx) (clientlib.Response, error) {
			proxy.Arm(pgtest.CutAfter, d.commitText(), "", 1)
			proxy.Arm(pgtest.CutBefore, "idem:claim", "", -1) // of the search for what became of it
			return charge("k")(ctx, tx)
		}, patient)
		if !errors.Is(err, clientlib.ErrStoreUnavailable) || result.Recorded || !strings.Contains(err.Error(), "not known") {
			t.Errorf("%+v, %v", result, err)
		}
		proxy.Disarm()
		again, err := s.do(t.Context(), ref("k"), asked("a"), charge("k"), patient)
		if err != nil || again.Outcome != clientlib.Replayed || d.effects(t, "k") != 1 {
			t.Errorf("asked again: %+v, %v; %d effects", again, err, d.effects(t, "k"))
		}
	})
}

// C15: the client goes away once the work has succeeded.
func TestC15TheCallersEndAfterTheWorkCutsNothingShort(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		proxy := pgtest.NewProxy(t, d.url)
		s := d.through(t, proxy)
		// Without a fault, and with a commit that has to be read back when nobody listens any more.
		for i, fault := range []pgtest.Fault{0, pgtest.CutAfter} {
			key := fmt.Sprint(i)
			ctx, cancel := context.WithCancel(t.Context())
			if fault != 0 {
				proxy.Arm(fault, d.commitText(), "", 1)
			}
			result, err := s.do(ctx, ref(key), asked("a"), func(ctx context.Context, tx tx) (clientlib.Response, error) {
				defer cancel()
				return charge(key)(ctx, tx)
			}, patient)
			if err != nil || result.Outcome != clientlib.Executed {
				t.Errorf("%+v, %v", result, err)
			}
			if result, err := s.do(t.Context(), ref(key), asked("a"), charge(key), patient); err != nil || result.Outcome != clientlib.Replayed {
				t.Errorf("again: %+v, %v", result, err)
			}
			cancel()
		}
	})
}

func TestTheCallersEndBeforeTheWorkIsOverLeavesNoTrace(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		s := d.service(t)
		ctx, cancel := context.WithCancel(t.Context())
		_, err := s.do(ctx, ref("k"), asked("a"), func(ctx context.Context, tx tx) (clientlib.Response, error) {
			response, err := charge("k")(ctx, tx)
			cancel()
			return response, errors.Join(err, ctx.Err())
		}, patient)
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		// One that is over before it begins, and one that ends while somebody else is waited for.
		if _, err := s.do(ctx, ref("k"), asked("a"), charge("k"), patient); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		finish := stall(t, s, "k")
		short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if _, err := s.do(short, ref("k"), asked("a"), charge("k"), patient); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, clientlib.ErrInProgress) {
			t.Errorf("at the end of the caller's time: %v", err)
		}
		if result, err := finish(nil); err != nil || result.Outcome != clientlib.Executed || d.effects(t, "k") != 1 {
			t.Errorf("%+v, %v, %d effects", result, err, d.effects(t, "k"))
		}
	})
}

// C16: 40001 and 40P01 in every statement, once, twice, and for ever.
func TestC16SerializationFailuresRunTheWholeAgain(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		proxy := pgtest.NewProxy(t, d.url)
		s := d.through(t, proxy)
		states := []string{"40001", "40P01"}
		if d.cockroach {
			states = states[:1] // it has no other
		}
		for _, state := range states {
			for _, statement := range []string{"idem:claim", "INSERT INTO effects", "idem:settle"} {
				for times := 1; times <= 2; times++ {
					key := fmt.Sprint(state, statement, times)
					proxy.Arm(pgtest.FailBefore, statement, state, times)
					result, err := s.do(t.Context(), ref(key), asked("a"), charge(key), patient)
					if err != nil || result.Outcome != clientlib.Executed || d.effects(t, key) != 1 {
						t.Errorf("%s: %+v, %v, %d effects", key, result, err, d.effects(t, key))
					}
				}
			}
		}
		hits := proxy.Hits()
		proxy.Arm(pgtest.FailBefore, "idem:settle", "40001", -1)
		_, err := s.do(t.Context(), ref("ever"), asked("a"), charge("ever"), patient)
		var e *clientlib.Error
		if !errors.Is(err, clientlib.ErrStoreUnavailable) || !errors.As(err, &e) || e.RetryAfter <= 0 || status.Code(err) != codes.Unavailable {
			t.Errorf("for ever: %v", err)
		}
		for _, leak := range []string{"SELECT", "UPDATE", "idem_entries", "secret_text", "40001"} {
			if strings.Contains(err.Error(), leak) {
				t.Errorf("the message %q says %q", err, leak)
			}
		}
		if n := proxy.Hits() - hits; n != 10 {
			t.Errorf("%d tries", n)
		}
		proxy.Disarm()
		if result, err := s.do(t.Context(), ref("ever"), asked("a"), charge("ever"), patient); err != nil || result.Outcome != clientlib.Executed {
			t.Errorf("afterwards: %+v, %v", result, err)
		}
	})
}

// Real serialization failures: each work reads what all the others write.
func TestWorkOnOneRowIsSerialized(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		s := d.service(t)
		execute(t, d.url, "CREATE TABLE account (id INT8 PRIMARY KEY, balance INT8 NOT NULL)", "INSERT INTO account VALUES (1, 0)")
		var runs atomic.Int64
		var wg sync.WaitGroup
		const intents = 8
		for i := range intents {
			for range 2 { // each intent from two callers
				wg.Go(func() {
					result, err := s.do(t.Context(), ref(fmt.Sprint(i)), asked("a"), func(ctx context.Context, tx tx) (clientlib.Response, error) {
						runs.Add(1)
						// Reads all, and writes what depends on it.
						return answer("a"), tx.exec(ctx, "UPDATE account SET balance = (SELECT sum(balance)::INT8 FROM account) + 1 WHERE id = 1")
					}, sqlidem.Options{Wait: patience, Isolation: sql.LevelSerializable})
					if err != nil && !errors.Is(err, clientlib.ErrStoreUnavailable) {
						t.Errorf("%+v, %v", result, err)
					}
				})
			}
		}
		wg.Wait()
		recorded := d.count(t, "SELECT count(*) FROM idem_entries")
		if balance := d.count(t, "SELECT balance FROM account"); balance != recorded || recorded == 0 {
			t.Errorf("%d intents are recorded, and the balance is %d", recorded, balance)
		}
		t.Logf("%d intents, run %d times", recorded, runs.Load())
	})
}

func TestWhatTheDatabaseHoldsAgainstTheCommitIsTheCallersToHear(t *testing.T) {
	onPostgreSQL(t, func(t *testing.T, d *database) {
		s := d.service(t)
		execute(t, d.url, "CREATE TABLE owner (id INT8 PRIMARY KEY)", "CREATE TABLE owned (id INT8 REFERENCES owner DEFERRABLE INITIALLY DEFERRED)")
		result, err := s.do(t.Context(), ref("k"), asked("a"), func(ctx context.Context, tx tx) (clientlib.Response, error) {
			return answer("a"), tx.exec(ctx, "INSERT INTO owned VALUES (7)")
		}, patient)
		var state interface{ SQLState() string }
		if !errors.As(err, &state) || state.SQLState() != "23503" || result.Recorded {
			t.Errorf("%+v, %v", result, err)
		}
		if n := d.count(t, "SELECT count(*) FROM idem_entries"); n != 0 {
			t.Errorf("%d entries", n)
		}
	})
}

func TestWorkThatDoesNotSayThatAStatementFailedIsNotKept(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		s := d.service(t)
		_, err := s.do(t.Context(), ref("k"), asked("a"), func(ctx context.Context, tx tx) (clientlib.Response, error) {
			_ = tx.exec(ctx, "SELECT 1 FROM there_is_no_such_table")
			return answer("a"), nil
		}, patient)
		if !errors.Is(err, clientlib.ErrStoreUnavailable) {
			t.Error(err)
		}
		if n := d.count(t, "SELECT count(*) FROM idem_entries"); n != 0 {
			t.Errorf("%d entries", n)
		}
	})
}

func TestWithoutTablesTheErrorSaysWhatMakesThem(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		s := openService(t, d.url, d.driver, sqlidem.Config{TablePrefix: "other_"})
		_, err := s.do(t.Context(), ref("k"), asked("a"), charge("k"), patient)
		if !errors.Is(err, clientlib.ErrStoreUnavailable) || !strings.Contains(err.Error(), "Migrate") {
			t.Error(err)
		}
	})
}
