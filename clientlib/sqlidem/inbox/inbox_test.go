package inbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/clientlib/fingerprint"
	"github.com/idemd/idemd/clientlib/sqlidem"
	"github.com/idemd/idemd/clientlib/sqlidem/inbox"
)

func TestAMessageHasItsEffectOnceHoweverOftenItComes(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		for i, want := range []inbox.Outcome{inbox.Processed, inbox.Duplicate, inbox.Duplicate} {
			if got, err := r.handle(t.Context(), message("m1"), effect("m1")); got != want || err != nil {
				t.Fatalf("delivery %d: %v, %v, want %v", i+1, got, err, want)
			}
		}
		if got, err := r.receive(t.Context(), message("m1"), effect("m1"), false); got != inbox.Duplicate || err != nil {
			t.Errorf("in a transaction of the caller's: %v, %v, want duplicate", got, err)
		}
		if n := r.effects(t, "m1"); n != 1 {
			t.Errorf("the effect happened %d times", n)
		}
	})
}

func TestEachSubscriberHasTheEffectOnce(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		for _, subscriber := range []string{"billing", "mailing", "billing", "mailing"} {
			if _, err := r.handle(t.Context(), inbox.Message{Subscriber: subscriber, ID: "m1"}, effect(subscriber)); err != nil {
				t.Fatal(err)
			}
		}
		if r.effects(t, "billing") != 1 || r.effects(t, "mailing") != 1 {
			t.Errorf("billing had the effect %d times, mailing %d times", r.effects(t, "billing"), r.effects(t, "mailing"))
		}
	})
}

func TestAFailedHandlerIsRolledBackAndTheRedeliveryRunsAgain(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		broken := errors.New("the handler is broken")
		failing := func(ctx context.Context, exec func(string, ...any) error) error {
			if err := effect("m1")(ctx, exec); err != nil {
				return err
			}
			return broken
		}
		if _, err := r.handle(t.Context(), message("m1"), failing); !errors.Is(err, broken) {
			t.Fatalf("got %v, want the handler's own error", err)
		}
		if r.effects(t, "m1") != 0 || r.remembered(t) != 0 {
			t.Fatal("something of the failed handler is left")
		}
		if got, err := r.handle(t.Context(), message("m1"), effect("m1")); got != inbox.Processed || err != nil {
			t.Errorf("the redelivery: %v, %v, want processed", got, err)
		}
	})
}

// A caller that forgets to look at the error keeps neither half: a remembered message without its effect would be a lost one.
func TestNothingOfAFailedHandlerIsKeptEvenIfTheCallerCommits(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		failing := func(ctx context.Context, exec func(string, ...any) error) error {
			if err := effect("m1")(ctx, exec); err != nil {
				return err
			}
			return errors.New("too late")
		}
		if _, err := r.receive(t.Context(), message("m1"), failing, true); err == nil {
			t.Fatal("the handler's error was lost")
		}
		if r.effects(t, "m1") != 0 || r.remembered(t) != 0 {
			t.Error("something of the failed handler is left")
		}
	})
}

func TestAPanickingHandlerLeavesNothing(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			_, _ = r.handle(t.Context(), message("m1"), func(ctx context.Context, exec func(string, ...any) error) error {
				_ = effect("m1")(ctx, exec)
				panic("no")
			})
		}()
		if got, err := r.handle(t.Context(), message("m1"), effect("m1")); got != inbox.Processed || err != nil {
			t.Errorf("the redelivery: %v, %v, want processed", got, err)
		}
	})
}

// atWork begins a delivery and returns when its handler is in the middle of its work. It goes on when verdict is sent.
func (r *rig) atWork(t *testing.T, id string) (verdict chan<- error, result <-chan error) {
	t.Helper()
	begun, verdicts, results := make(chan struct{}), make(chan error, 1), make(chan error, 1)
	go func() {
		once := false
		_, err := r.handle(context.WithoutCancel(t.Context()), message(id), func(ctx context.Context, exec func(string, ...any) error) error {
			if err := effect(id)(ctx, exec); err != nil {
				return err
			}
			if !once {
				once = true
				close(begun)
				return <-verdicts
			}
			return nil
		})
		results <- err
	}()
	<-begun
	return verdicts, results
}

func TestOfTwoAtOnceOneRunsAndTheOtherIsADuplicateAfterIt(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		verdict, first := r.atWork(t, "m1")
		second := make(chan inbox.Outcome, 1)
		go func() {
			outcome, err := r.handle(context.WithoutCancel(t.Context()), message("m1"), effect("m1"))
			if err != nil {
				t.Errorf("the second: %v", err)
			}
			second <- outcome
		}()
		r.AwaitRunning(t, "INSERT INTO idem_inbox", 1)
		select {
		case outcome := <-second:
			t.Fatalf("the second did not wait for the first: %v", outcome)
		default:
		}
		verdict <- nil
		if err := <-first; err != nil {
			t.Errorf("the first: %v", err)
		}
		if outcome := <-second; outcome != inbox.Duplicate {
			t.Errorf("the second: %v, want duplicate", outcome)
		}
		if n := r.effects(t, "m1"); n != 1 {
			t.Errorf("the effect happened %d times", n)
		}
	})
}

func TestOfTwoAtOnceTheOtherRunsIfTheFirstFails(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		verdict, first := r.atWork(t, "m1")
		second := make(chan inbox.Outcome, 1)
		go func() {
			outcome, err := r.handle(context.WithoutCancel(t.Context()), message("m1"), effect("m1"))
			if err != nil {
				t.Errorf("the second: %v", err)
			}
			second <- outcome
		}()
		r.AwaitRunning(t, "INSERT INTO idem_inbox", 1)
		verdict <- errors.New("no luck")
		if err := <-first; err == nil {
			t.Error("the first's error was lost")
		}
		if outcome := <-second; outcome != inbox.Processed {
			t.Errorf("the second: %v, want processed", outcome)
		}
		if n := r.effects(t, "m1"); n != 1 {
			t.Errorf("the effect happened %d times", n)
		}
	})
}

func TestManyAtOnceHaveOneEffectEach(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		const messages, deliveries = 8, 6
		results := make(chan inbox.Outcome, messages*deliveries)
		for d := range deliveries {
			for m := range messages {
				id := string(rune('a' + (m+d)%messages))
				go func() {
					// What a consumer does with an error: the broker delivers the message again.
					for {
						outcome, err := r.handle(context.WithoutCancel(t.Context()), message(id), effect(id))
						if err == nil {
							results <- outcome
							return
						}
					}
				}()
			}
		}
		processed := 0
		for range messages * deliveries {
			if <-results == inbox.Processed {
				processed++
			}
		}
		if n := r.Int(t, "SELECT count(*) FROM effects"); n != messages || processed != messages {
			t.Errorf("%d effects of %d messages, %d said processed", n, messages, processed)
		}
	})
}

func TestTheSameIDWithAnotherPayloadIsRefusedLoudly(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		with := func(payload string) inbox.Message {
			m := message("m1")
			var err error
			if m.Fingerprint, err = fingerprint.Bytes([]byte(payload)); err != nil {
				t.Fatal(err)
			}
			return m
		}
		for _, step := range []struct {
			m    inbox.Message
			want inbox.Outcome
			err  error
		}{
			{with("ten"), inbox.Processed, nil},
			{with("ten"), inbox.Duplicate, nil},
			{with("eleven"), 0, inbox.ErrOtherPayload},
			{message("m1"), inbox.Duplicate, nil}, // nothing to compare
		} {
			if got, err := r.handle(t.Context(), step.m, effect("m1")); got != step.want || !errors.Is(err, step.err) {
				t.Errorf("%v: %v, %v, want %v, %v", step.m.Fingerprint, got, err, step.want, step.err)
			}
		}
		if n := r.effects(t, "m1"); n != 1 {
			t.Errorf("the effect happened %d times", n)
		}
	})
}

// A handler that is told to run again by the database runs again whole, in a new transaction.
// TestPayloadsThatCannotBeComparedAreOneMessage: another algorithm, or none, on either side, says nothing against a redelivery.
func TestPayloadsThatCannotBeComparedAreOneMessage(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		a, b := fingerprint.Fingerprint{Algorithm: "a", Hash: []byte("one")}, fingerprint.Fingerprint{Algorithm: "b", Hash: []byte("two")}
		for i, pair := range [][2]fingerprint.Fingerprint{{a, b}, {{}, a}, {a, {}}, {{Algorithm: "a"}, a}} {
			m := message(string(rune('k' + i)))
			for n, want := range []inbox.Outcome{inbox.Processed, inbox.Duplicate} {
				m.Fingerprint = pair[n]
				if got, err := r.handle(t.Context(), m, effect(m.ID)); got != want || err != nil {
					t.Errorf("%d: delivery %d: %v, %v", i, n+1, got, err)
				}
			}
		}
	})
}

func TestASerializationFailureRunsTheHandlerAgain(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		runs := 0
		outcome, err := r.handle(t.Context(), message("m1"), func(ctx context.Context, exec func(string, ...any) error) error {
			runs++
			if err := effect("m1")(ctx, exec); err != nil {
				return err
			}
			if runs == 1 {
				return serializationFailure{}
			}
			return nil
		})
		if outcome != inbox.Processed || err != nil || runs != 2 {
			t.Errorf("%v, %v after %d runs, want processed after 2", outcome, err, runs)
		}
		if n := r.effects(t, "m1"); n != 1 {
			t.Errorf("the effect happened %d times", n)
		}
	})
}

type serializationFailure struct{}

func (serializationFailure) Error() string    { return "restart transaction" }
func (serializationFailure) SQLState() string { return "40001" }

func TestAnInvalidMessageIsRefusedBeforeAnythingHappens(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		for name, m := range map[string]inbox.Message{
			"no subscriber":     {ID: "m1"},
			"no id":             {Subscriber: "billing"},
			"too long":          message(strings.Repeat("x", 256)),
			"control character": message("a\nb"),
			"not UTF-8":         message("a\xff"),
		} {
			if _, err := r.handle(t.Context(), m, effect("m1")); !errors.Is(err, inbox.ErrInvalidMessage) {
				t.Errorf("%s: got %v", name, err)
			}
		}
		if r.Int(t, "SELECT count(*) FROM effects") != 0 {
			t.Error("a handler ran")
		}
		if got, err := r.handle(t.Context(), message(strings.Repeat("ü", 255)), effect("m1")); got != inbox.Processed || err != nil {
			t.Errorf("255 characters: %v, %v", got, err)
		}
	})
}

func TestASweepForgetsWhatIsOldAndOnlyThat(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		for i := range 40 {
			if _, err := r.handle(t.Context(), message(string(rune('0'+i))), effect("m")); err != nil {
				t.Fatal(err)
			}
		}
		r.Exec(t, "UPDATE idem_inbox SET received_at = received_at - INTERVAL '8 days' WHERE message_id < 'A'")
		old := r.Int(t, "SELECT count(*) FROM idem_inbox WHERE message_id < 'A'")
		// In batches of one, so that many are needed.
		if n, err := r.sweep(t.Context(), inbox.SweepConfig{Age: 7 * day, BatchSize: 1}); int64(n) != old || err != nil {
			t.Errorf("forgot %d (%v), want %d", n, err, old)
		}
		if n := r.remembered(t); n != 40-old {
			t.Errorf("%d are remembered, want %d", n, 40-old)
		}
		if n, err := r.sweep(t.Context(), inbox.SweepConfig{Age: 7 * day}); n != 0 || err != nil {
			t.Errorf("a second sweep forgot %d (%v)", n, err)
		}
	})
}

func TestMigrationsRunTogetherAndAgain(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		r.Exec(t, "DROP TABLE idem_inbox")
		errs := make(chan error, 4)
		for range cap(errs) {
			go func() { errs <- r.migrate(t.Context()) }()
		}
		for range cap(errs) {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestAConfigThatCannotWorkIsRefused(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"prefix":  inbox.Config{TablePrefix: "idem; DROP"}.Validate(),
		"no age":  inbox.SweepConfig{}.Validate(),
		"batch":   inbox.SweepConfig{Age: day, BatchSize: -1}.Validate(),
		"pause":   inbox.SweepConfig{Age: day, Pause: -time.Second}.Validate(),
		"no pool": second(inbox.NewSQL(nil, inbox.Config{})),
		"no pgx":  second(inbox.NewPgx(nil, inbox.Config{})),
		"DDL":     second(inbox.DDL(sqlidem.PostgreSQL, inbox.Config{TablePrefix: "idem; DROP"})),
	} {
		if err == nil {
			t.Errorf("%s: nothing was refused", name)
		}
	}
	script, err := inbox.DDL(sqlidem.PostgreSQL, inbox.Config{TablePrefix: "app.idem_"})
	if err != nil || !strings.Contains(script, "EXISTS app.idem_inbox (") || !strings.Contains(script, "EXISTS idem_inbox_by_age ON app.idem_inbox") {
		t.Errorf("DDL: %q, %v", script, err)
	}
}

func second[T any](_ T, err error) error { return err }
