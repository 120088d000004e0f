package sim

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/sqlitestore"
	"github.com/idemd/idemd/ledger/storetest"
)

// recording is a store that keeps what it was asked, when, for whom, and what it answered, in the order in which it carried it out: below the faults, so
// that a write that landed late stands where it landed. It also keeps the calls that the daemons got, and their answers. Unlike the world itself it can be
// played again exactly: on any store, and against the decision table.
type recording struct {
	ledger.Store
	clock *storetest.Clock

	mu    sync.Mutex
	steps []step // guarded by mu
	calls int    // guarded by mu
}

// step is something that the store was asked, or the beginning or the end of a call. Of its questions one is set, or none for Ready.
type step struct {
	At ledger.Time
	// Call is the call that the store was asked for, or that begins or ends; 0: what a daemon does by itself, and a write that landed late.
	Call       int               `json:",omitempty"`
	Began      *began            `json:",omitempty"`
	Ended      *ended            `json:",omitempty"`
	Get        *ledger.ScopeID   `json:",omitempty"`
	Write      *ledger.Write     `json:",omitempty"`
	Page       *ledger.PageQuery `json:",omitempty"`
	Forget     []ledger.Row      `json:",omitempty"`
	Settings   *string           `json:",omitempty"`
	PutSetting *putSetting       `json:",omitempty"`
	// Answer is what the store answered; after decoding, as JSON.
	Answer any
}

type putSetting struct {
	Setting ledger.Setting
	Expect  int64
}

// began is a call as the ledger's service got it. Nobody here has credentials, so every caller is anonymous.
type began struct {
	Method  string
	Request json.RawMessage // of the method's request, by protojson
}

// ended is what a call was answered: a reply, by protojson, or why there is none.
type ended struct {
	Reply   json.RawMessage `json:",omitempty"`
	Refused string          `json:",omitempty"`
}

// ofCall is the key of a context's call.
type ofCall struct{}

// unary stands in a daemon between its interceptors and its handlers. The store is asked under the context that it gives, so each step knows its call.
func (r *recording) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	r.mu.Lock()
	r.calls++
	call := r.calls
	r.steps = append(r.steps, step{At: r.clock.Now(), Call: call, Began: &began{Method: info.FullMethod, Request: wireJSON(req)}})
	r.mu.Unlock()
	reply, err := handler(context.WithValue(ctx, ofCall{}, call), req)
	end := &ended{}
	if refusal := (*ledger.Refusal)(nil); errors.As(err, &refusal) {
		end.Refused = string(refusal.Reason)
	} else if err != nil {
		end.Refused = err.Error()
	} else {
		end.Reply = wireJSON(reply)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.steps = append(r.steps, step{At: r.clock.Now(), Call: call, Ended: end})
	return reply, err
}

func wireJSON(message any) json.RawMessage {
	out, err := protojson.Marshal(message.(proto.Message))
	if err != nil {
		panic(err) // what came over the wire, or goes there
	}
	return out
}

// ask carries a step out.
func (s step) ask(ctx context.Context, store ledger.Store) (any, error) {
	switch {
	case s.Get != nil:
		return store.Get(ctx, *s.Get)
	case s.Write != nil:
		return store.Write(ctx, *s.Write)
	case s.Page != nil:
		return store.Page(ctx, *s.Page)
	case s.Forget != nil:
		return store.Forget(ctx, s.Forget)
	case s.Settings != nil:
		return store.Settings(ctx, *s.Settings)
	case s.PutSetting != nil:
		return store.PutSetting(ctx, s.PutSetting.Setting, s.PutSetting.Expect)
	default:
		return store.Ready(ctx)
	}
}

// record carries a step out and keeps it. A call that its caller left is not kept: it did nothing.
func record[A any](ctx context.Context, r *recording, s step) (A, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.At = r.clock.Now()
	s.Call, _ = ctx.Value(ofCall{}).(int)
	answer, err := s.ask(ctx, r.Store)
	if err == nil {
		s.Answer = answer // written down only if it is wanted: nobody changes what a store answered
		r.steps = append(r.steps, s)
	}
	return answer.(A), err
}

func (r *recording) Get(ctx context.Context, scope ledger.ScopeID) (ledger.Reading, error) {
	return record[ledger.Reading](ctx, r, step{Get: &scope})
}

func (r *recording) Write(ctx context.Context, w ledger.Write) (ledger.Written, error) {
	return record[ledger.Written](ctx, r, step{Write: &w})
}

func (r *recording) Page(ctx context.Context, q ledger.PageQuery) (ledger.Page, error) {
	return record[ledger.Page](ctx, r, step{Page: &q})
}

func (r *recording) Forget(ctx context.Context, rows []ledger.Row) (int, error) {
	return record[int](ctx, r, step{Forget: rows})
}

func (r *recording) Settings(ctx context.Context, kind string) (ledger.Settings, error) {
	return record[ledger.Settings](ctx, r, step{Settings: &kind})
}

func (r *recording) PutSetting(ctx context.Context, s ledger.Setting, expect int64) (bool, error) {
	return record[bool](ctx, r, step{PutSetting: &putSetting{s, expect}})
}

func (r *recording) Ready(ctx context.Context) (ledger.Time, error) {
	return record[ledger.Time](ctx, r, step{})
}

// replay asks a store the same again, with its clock as it was then, and returns at which step it answers something else, and what: -1 if nowhere.
func replay(ctx context.Context, steps []step, store ledger.Store, clock *storetest.Clock) (at int, difference string) {
	for i, s := range steps {
		if s.Began != nil || s.Ended != nil {
			continue
		}
		clock.Set(s.At)
		got, err := s.ask(ctx, store)
		answer, marshalErr := json.Marshal(got)
		if err != nil || marshalErr != nil || !isJSON(answer, s.Answer) {
			asked, _ := json.Marshal(s)
			return i, fmt.Sprintf("asked %s\nanswers %s %v", asked, answer, err)
		}
	}
	return -1, ""
}

// isJSON compares an answer with one that was decoded. "None" can be written in two ways.
func isJSON(answer []byte, decoded any) bool {
	got, err := decodeAnswer(answer)
	return err == nil && reflect.DeepEqual(got, withoutEmpty(decoded))
}

// decodeAnswer keeps numbers as they are written: an incarnation is more than a float64 holds.
func decodeAnswer(answer []byte) (got any, err error) {
	d := json.NewDecoder(bytes.NewReader(answer))
	d.UseNumber()
	err = d.Decode(&got)
	return withoutEmpty(got), err
}

func withoutEmpty(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			if v[name] = withoutEmpty(value); v[name] == nil {
				delete(v, name)
			}
		}
	case []any:
		for i := range v {
			v[i] = withoutEmpty(v[i])
		}
		if len(v) == 0 {
			return nil
		}
	case string:
		if v == "" {
			return nil
		}
	}
	return v
}

// encode is one line for each step.
func encode(steps []step) (out []byte) {
	for _, s := range steps {
		line, err := json.Marshal(s)
		if err != nil {
			line = fmt.Appendf(nil, "%q", err.Error())
		}
		out = append(append(out, line...), '\n')
	}
	return out
}

func decode(t *testing.T, path string) (steps []step) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	for lines.Buffer(nil, 64<<20); lines.Scan(); {
		var s step
		d := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		d.UseNumber()
		if err := d.Decode(&s); err != nil {
			t.Fatalf("step %d: %v", len(steps)+1, err)
		}
		steps = append(steps, s)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return steps
}

// stores are those that recordings are played again on. Two of them agree where neither is wrong.
func stores(t *testing.T) map[string]func(clock *storetest.Clock) ledger.Store {
	return map[string]func(clock *storetest.Clock) ledger.Store{
		"reference": func(clock *storetest.Clock) ledger.Store { return storetest.NewModel(clock, 0) },
		"embedded": func(clock *storetest.Clock) ledger.Store {
			store, err := sqlitestore.Open(t.Context(), sqlitestore.Config{Dir: t.TempDir(), Clock: clock.Now})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = store.Close() })
			return store
		},
	}
}

// TestARecordingIsPlayedAgain: SIM_REPLAY names one that a failing world left; else one is made. Every store answers as the world's store did, and one that
// does not is found at the step where it does not.
func TestARecordingIsPlayedAgain(t *testing.T) {
	t.Parallel()
	path := os.Getenv("SIM_REPLAY")
	if path == "" {
		path = recorded(t, uint64(time.Now().UnixNano()), fault{})
	}
	steps := decode(t, path)
	t.Logf("%d steps", len(steps))
	for name, open := range stores(t) {
		clock := storetest.NewClock(steps[0].At)
		if at, difference := replay(t.Context(), steps, open(clock), clock); at >= 0 {
			t.Errorf("%s store, step %d of %d: %s", name, at+1, len(steps), difference)
		}
	}
	clock := storetest.NewClock(steps[0].At)
	if at, _ := replay(t.Context(), steps, forgetfulOfGrants(storetest.NewModel(clock, 0)), clock); at < 0 {
		t.Error("a store that keeps no grants answers everything as the world's did")
	}
}

// recorded plays a world and keeps its recording in a file, as one that failed does.
func recorded(t *testing.T, seed uint64, wrong fault) string {
	path := filepath.Join(t.TempDir(), "world.steps")
	synctest.Test(t, func(t *testing.T) {
		w := play(t, seed, wrong)
		if err := os.WriteFile(path, encode(w.recording.steps), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	return path
}
