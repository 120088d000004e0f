package sqlidem_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/sqlidem"
)

func TestWorkRunsOnceAndEveryRetryGetsItsAnswer(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		s := d.service(t)
		first, err := s.do(t.Context(), ref("k"), asked("10 EUR"), charge("k"), patient)
		if err != nil || first.Outcome != clientlib.Executed || !first.Recorded || string(first.Response.Body) != "charged k" {
			t.Fatalf("first: %+v, %v", first, err)
		}
		for range 2 {
			again, err := s.do(t.Context(), ref("k"), asked("10 EUR"), charge("k"), patient)
			if err != nil || again.Outcome != clientlib.Replayed || string(again.Response.Body) != "charged k" || again.Response.ContentType != "text/plain" {
				t.Errorf("again: %+v, %v", again, err)
			}
			if age := time.Since(again.OriginalTime); age < -time.Minute || age > time.Minute {
				t.Errorf("the original is of %v", again.OriginalTime)
			}
		}
		if n := d.effects(t, "k"); n != 1 {
			t.Errorf("%d effects", n)
		}
	})
}

func TestAnotherRequestUnderTheSameKeyIsRefused(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		s := d.service(t)
		must(s.do(t.Context(), ref("k"), asked("10 EUR"), charge("k"), patient))
		_, err := s.do(t.Context(), ref("k"), asked("20 EUR"), charge("k"), patient)
		if !errors.Is(err, clientlib.ErrKeyReused) || status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%v", err)
		}
		if n := d.effects(t, "k"); n != 1 {
			t.Errorf("%d effects", n)
		}
	})
}

// Two identical requests race: here, 64.
func TestOf64ConcurrentDuplicatesOneRuns(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		s := d.service(t)
		var runs, executed, replayed atomic.Int64
		start := make(chan struct{})
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				<-start
				result, err := s.do(t.Context(), ref("k"), asked("a"), func(ctx context.Context, tx tx) (clientlib.Response, error) {
					runs.Add(1)
					return charge("k")(ctx, tx)
				}, patient)
				switch {
				case err != nil || string(result.Response.Body) != "charged k":
					t.Errorf("%+v, %v", result, err)
				case result.Outcome == clientlib.Executed:
					executed.Add(1)
				case result.Outcome == clientlib.Replayed:
					replayed.Add(1)
				}
			})
		}
		close(start)
		wg.Wait()
		if n := d.effects(t, "k"); n != 1 || executed.Load() != 1 || replayed.Load() != 63 {
			t.Errorf("%d effects, %d executed, %d replayed", n, executed.Load(), replayed.Load())
		}
		if n := runs.Load(); n != 1 {
			t.Errorf("the work was run %d times", n)
		}
	})
}

// stall runs work that waits in the middle of its transaction until the test lets it go on.
func stall(t *testing.T, s *service, key string) (finish func(error) (clientlib.Result, error)) {
	t.Helper()
	begun, goOn := make(chan struct{}), make(chan error)
	type outcome struct {
		result clientlib.Result
		err    error
	}
	done := make(chan outcome, 1)
	var once sync.Once
	go func() {
		result, err := s.do(context.Background(), ref(key), asked("a"), func(ctx context.Context, tx tx) (clientlib.Response, error) {
			response, err := charge(key)(ctx, tx)
			once.Do(func() { close(begun) })
			if told := <-goOn; told != nil {
				return response, told
			}
			return response, err
		}, patient)
		done <- outcome{result, err}
	}()
	await(t, begun)
	return func(err error) (clientlib.Result, error) {
		goOn <- err
		out := await(t, done)
		return out.result, out.err
	}
}

// await waits for a signal that is about to come.
func await[V any](t *testing.T, c <-chan V) (v V) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatal("nothing happened")
	}
	return v
}

func TestADuplicateWaitsAsLongAsItSaidAndIsToldInProgress(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		s := d.service(t)
		finish := stall(t, s, "k")
		for _, wait := range []time.Duration{-1, 300 * time.Millisecond} {
			began := time.Now()
			result, err := s.do(t.Context(), ref("k"), asked("a"), charge("k"), sqlidem.Options{Wait: wait})
			if took := time.Since(began); took < wait || took > wait+20*time.Second {
				t.Errorf("waited %v instead of %v", took, wait)
			}
			var e *clientlib.Error
			if !errors.Is(err, clientlib.ErrInProgress) || result.Outcome != clientlib.InProgress || !errors.As(err, &e) || e.RetryAfter <= 0 || e.Code != codes.Aborted {
				t.Errorf("%+v, %v", result, err)
			}
		}
		waiting := make(chan clientlib.Result, 1)
		go func() {
			result, err := s.do(context.Background(), ref("k"), asked("a"), charge("k"), patient)
			if err != nil {
				t.Error(err)
			}
			waiting <- result
		}()
		if result, err := finish(nil); err != nil || result.Outcome != clientlib.Executed {
			t.Errorf("%+v, %v", result, err)
		}
		if got := await(t, waiting); got.Outcome != clientlib.Replayed {
			t.Errorf("whoever waited got %+v", got)
		}
		if n := d.effects(t, "k"); n != 1 {
			t.Errorf("%d effects", n)
		}
	})
}

func TestTheLimitOnWaitingIsNotTheWorks(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		name, set := "lock_timeout", "7654ms"
		if d.cockroach {
			name, set = "statement_timeout", "7654"
		}
		s := openService(t, withParameter(t, d.url, name, set), d.driver, sqlidem.Config{ClockSQL: movedClock})
		note := func(key string) work {
			return func(ctx context.Context, tx tx) (clientlib.Response, error) {
				return answer("a"), tx.exec(ctx, "INSERT INTO effects (intent, note) VALUES ($1, current_setting('"+name+"'))", key)
			}
		}
		must(s.do(t.Context(), ref("1"), asked("a"), note("1"), sqlidem.Options{}))
		must(s.do(t.Context(), ref("1"), asked("a"), note("1"), sqlidem.Options{}))
		must(s.do(t.Context(), ref("2"), asked("a"), note("2"), sqlidem.Options{Wait: -1}))
		for _, key := range []string{"1", "2"} {
			if n := d.count(t, "SELECT count(*) FROM effects WHERE intent = $1 AND note = $2", key, set); n != 1 {
				t.Errorf("the work of %s does not have the limit of its connection", key)
			}
		}
	})
}

// C18: the one that comes second while the first has not committed waits, and gets a true answer; here, where the first fails.
func TestC18WhoWaitsForWorkThatFailsRunsIt(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		s := d.service(t)
		finish := stall(t, s, "k")
		waiting := make(chan clientlib.Result, 1)
		go func() {
			result, err := s.do(context.Background(), ref("k"), asked("a"), charge("k"), patient)
			if err != nil {
				t.Error(err)
			}
			waiting <- result
		}()
		broke := errors.New("broke")
		if result, err := finish(broke); !errors.Is(err, broke) || result.Recorded {
			t.Errorf("%+v, %v", result, err)
		}
		if got := await(t, waiting); got.Outcome != clientlib.Executed || string(got.Response.Body) != "charged k" {
			t.Errorf("whoever waited got %+v", got)
		}
		if n := d.effects(t, "k"); n != 1 {
			t.Errorf("%d effects", n)
		}
	})
}

func TestAFailureThatIsNotFinalLeavesNoTrace(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		s := d.service(t)
		broke := status.Error(codes.Internal, "broke")
		result, err := s.do(t.Context(), ref("k"), asked("a"), func(ctx context.Context, tx tx) (clientlib.Response, error) {
			_, _ = charge("k")(ctx, tx)
			return clientlib.Response{}, broke
		}, patient)
		if err != broke || result.Outcome != clientlib.Executed || result.Recorded { //nolint:errorlint // as it is
			t.Errorf("%+v, %v", result, err)
		}
		if n := d.count(t, "SELECT count(*) FROM idem_entries"); n != 0 || d.effects(t, "k") != 0 {
			t.Errorf("%d entries, %d effects", n, d.effects(t, "k"))
		}
		// Not even the fingerprint binds: nothing was ever begun.
		if result, err := s.do(t.Context(), ref("k"), asked("b"), charge("k"), patient); err != nil || result.Outcome != clientlib.Executed {
			t.Errorf("%+v, %v", result, err)
		}
	})
}

func TestAPanicLeavesNoTrace(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		s := d.service(t)
		func() {
			defer func() {
				if r := recover(); r != "work broke" {
					t.Errorf("recovered %v", r)
				}
			}()
			_, _ = s.do(t.Context(), ref("k"), asked("a"), func(ctx context.Context, tx tx) (clientlib.Response, error) {
				_, _ = charge("k")(ctx, tx)
				panic("work broke")
			}, patient)
		}()
		// Nor does work whose goroutine ends.
		over := make(chan struct{})
		go func() {
			defer close(over)
			_, _ = s.do(context.Background(), ref("k"), asked("a"), func(ctx context.Context, tx tx) (clientlib.Response, error) {
				_, _ = charge("k")(ctx, tx)
				runtime.Goexit()
				return clientlib.Response{}, nil
			}, patient)
		}()
		await(t, over)
		if result, err := s.do(t.Context(), ref("k"), asked("a"), charge("k"), patient); err != nil || result.Outcome != clientlib.Executed {
			t.Errorf("%+v, %v", result, err)
		}
		if n := d.effects(t, "k"); n != 1 {
			t.Errorf("%d effects", n)
		}
	})
}

func TestAFinalFailureIsKeptAndItsMutationIsNot(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		s := d.service(t)
		broke := status.Error(codes.FailedPrecondition, "no money")
		work := func(ctx context.Context, tx tx) (clientlib.Response, error) {
			if _, err := charge("k")(ctx, tx); err != nil {
				return clientlib.Response{}, err
			}
			// A statement that fails has the transaction refuse all others; the failure is kept all the same.
			_ = tx.exec(ctx, "SELECT 1 FROM there_is_no_such_table")
			return clientlib.Response{}, clientlib.Final(broke)
		}
		if result, err := s.do(t.Context(), ref("k"), asked("a"), work, patient); !errors.Is(err, broke) || result.Outcome != clientlib.Executed || !result.Recorded {
			t.Errorf("%+v, %v", result, err)
		}
		result, err := s.do(t.Context(), ref("k"), asked("a"), work, patient)
		var failure *clientlib.ReplayedFailure
		if !errors.As(err, &failure) || result.Outcome != clientlib.ReplayedAsFailure || status.Code(err) != codes.FailedPrecondition ||
			failure.GRPCStatus().Message() != "no money" || failure.OriginalTime.IsZero() {
			t.Errorf("%+v, %v", result, err)
		}
		if n := d.effects(t, "k"); n != 0 {
			t.Errorf("%d effects", n)
		}
		// By the table of classes, too.
		plain := func(context.Context, tx) (clientlib.Response, error) { return clientlib.Response{}, broke }
		options := sqlidem.Options{Classes: clientlib.ServerClasses()}
		if result, _ := s.do(t.Context(), ref("c"), asked("a"), plain, options); !result.Recorded {
			t.Errorf("by its class: %+v", result)
		}
		if result, _ := s.do(t.Context(), ref("c"), asked("a"), plain, options); result.Outcome != clientlib.ReplayedAsFailure {
			t.Errorf("by its class: %+v", result)
		}
	})
}

// C06: the first payload binds the key, through a final failure too.
func TestC06AnotherRequestAfterAFinalFailureIsRefused(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		s := d.service(t)
		_, _ = s.do(t.Context(), ref("k"), asked("a"), func(context.Context, tx) (clientlib.Response, error) {
			return clientlib.Response{}, clientlib.Final(errors.New("no"))
		}, patient)
		if _, err := s.do(t.Context(), ref("k"), asked("b"), charge("k"), patient); !errors.Is(err, clientlib.ErrKeyReused) {
			t.Error(err)
		}
	})
}

func TestScopesNeverMeet(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		s := d.service(t)
		refs := []clientlib.Ref{
			{Tenant: "a", Operation: "b:c", Key: "d"}, {Tenant: "a:b", Operation: "c", Key: "d"}, {Tenant: "a", Operation: "b", Key: "c:d"},
			{Operation: "b", Key: "d"}, {Operation: "b", Key: "D"}, {Operation: "b", Key: "d "}, {Operation: "b", Key: "dé"}, {Operation: "b", Key: "de\u0301"},
		}
		for i, r := range refs {
			result, err := s.do(t.Context(), r, asked("a"), charge(fmt.Sprint(i)), patient)
			if err != nil || result.Outcome != clientlib.Executed {
				t.Errorf("%+v: %+v, %v", r, result, err)
			}
		}
		for _, bad := range []clientlib.Ref{{Operation: "b"}, {Key: "d"}, {Operation: "b", Key: "a\x00b"}} {
			if _, err := s.do(t.Context(), bad, asked("a"), charge("x"), patient); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%+v: %v", bad, err)
			}
		}
	})
}

// C30, C31: what was answered is what is replayed, and what is too long for that is not run again.
func TestC31AnAnswerOverTheLimitIsNotKeptAndNotRunAgain(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		s := d.service(t)
		work := func(ctx context.Context, tx tx) (clientlib.Response, error) {
			response, err := charge("k")(ctx, tx)
			response.ResourceType, response.ResourceID = "charge", "ch_1"
			response.Metadata = []clientlib.MetadataPair{{Name: "kept", Value: []byte{0, 255}}, {Name: "other", Value: []byte("x")}}
			return response, err
		}
		options := sqlidem.Options{Rules: sqlidem.Rules{MaxResponseBytes: 3}}
		if result, err := s.do(t.Context(), ref("k"), asked("a"), work, options); err != nil || string(result.Response.Body) != "charged k" {
			t.Errorf("%+v, %v", result, err)
		}
		_, err := s.do(t.Context(), ref("k"), asked("a"), work, options)
		var e *clientlib.Error
		if !errors.Is(err, clientlib.ErrAnswerNotKept) || !errors.As(err, &e) || e.Metadata["resource_id"] != "ch_1" || e.Metadata["body_size_bytes"] != "9" {
			t.Errorf("%v", err)
		}
		if n := d.effects(t, "k"); n != 1 {
			t.Errorf("%d effects", n)
		}
		options = sqlidem.Options{Rules: sqlidem.Rules{KeepMetadata: []string{"kept"}}}
		must(s.do(t.Context(), ref("m"), asked("a"), work, options))
		again := must(s.do(t.Context(), ref("m"), asked("a"), work, options))
		if m := again.Response.Metadata; len(m) != 1 || m[0].Name != "kept" || string(m[0].Value) != "\x00\xff" {
			t.Errorf("metadata %v", m)
		}
		empty := func(context.Context, tx) (clientlib.Response, error) { return clientlib.Response{}, nil }
		must(s.do(t.Context(), ref("e"), asked("a"), empty, options))
		if again := must(s.do(t.Context(), ref("e"), asked("a"), empty, options)); again.Outcome != clientlib.Replayed || again.Response.BodyOmitted {
			t.Errorf("an empty answer: %+v", again)
		}
	})
}
