package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
)

// wire is a service's connection to the daemons: to one or another of them from call to call. It loses requests and replies, and shows the
// auditor what the daemons said.
type wire struct {
	world *world
	mu    sync.Mutex
	rng   *rand.Rand // guarded by mu
	dead  bool       // guarded by mu; the service's process is gone
	// claims are the fences that go with the tokens that passed here; guarded by mu.
	claims map[string]int64
}

var errCut = status.Error(codes.Unavailable, "the connection broke")

// draw returns a daemon, what goes wrong, and how long the call is under way.
func (w *wire) draw() (conn grpc.ClientConnInterface, before, after bool, delay time.Duration, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		return nil, false, false, 0, errCut
	}
	before, after = w.rng.IntN(20) == 0, w.rng.IntN(12) == 0
	delay = time.Duration(w.rng.IntN(20)) * time.Millisecond
	if w.rng.IntN(25) == 0 {
		delay = time.Duration(w.rng.IntN(int(2 * lease)))
	}
	return w.world.daemon(w.rng.IntN(daemons)).Conn(), before, after, delay, nil
}

func (w *wire) die() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = true
}

func (w *wire) isDead() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dead
}

// Invoke implements [grpc.ClientConnInterface].
func (w *wire) Invoke(ctx context.Context, method string, in, out any, options ...grpc.CallOption) error {
	conn, before, after, delay, err := w.draw()
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-time.After(delay):
	}
	if before || w.isDead() {
		w.world.auditor.note("%T lost", in)
		return errCut
	}
	called := time.Now()
	w.sent(in)
	err = conn.Invoke(ctx, method, in, out, options...)
	w.answered(in, out, err, called)
	if after || w.isDead() {
		w.world.auditor.note("%T: its reply lost", in)
		return errCut
	}
	return err
}

// NewStream implements [grpc.ClientConnInterface]: nothing here streams.
func (w *wire) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("the simulated wire carries no streams")
}

func (w *wire) fence(token []byte) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.claims[string(token)]
}

// sent shows the auditor that a report may be carried out from now on.
func (w *wire) sent(in any) {
	switch r := in.(type) {
	case *idemv1.CompleteRequest:
		w.world.auditor.reporting(r.GetRef().GetKey(), w.fence(r.GetClaimToken()))
	case *idemv1.FailRequest:
		w.world.auditor.reporting(r.GetRef().GetKey(), w.fence(r.GetClaimToken()))
	}
}

// answered shows the auditor what a daemon said, whether or not it will arrive.
func (w *wire) answered(in, out any, err error, called time.Time) {
	a := w.world.auditor
	reason := reasonOf(err)
	switch r := in.(type) {
	case *idemv1.BeginRequest:
		key := r.GetRef().GetKey()
		a.note("begin %s by %s → %v %s", key, r.GetHolder(), out, reason)
		if err != nil {
			a.refused(key, reason)
			return
		}
		w.began(key, r, out.(*idemv1.BeginResponse), called)
	case *idemv1.ExtendRequest:
		a.note("extend %s → %v %s", r.GetRef().GetKey(), out, reason)
		if err == nil {
			a.extended(r.GetRef().GetKey(), w.fence(r.GetClaimToken()), out.(*idemv1.ExtendResponse).GetLeaseExpireTime().AsTime())
		}
	case *idemv1.CompleteRequest:
		a.note("complete %s → %v %s", r.GetRef().GetKey(), out, reason)
		if o := out.(*idemv1.CompleteResponse); err == nil {
			a.settled(r.GetRef().GetKey(), w.fence(r.GetClaimToken())-int64(o.GetAttempt()), string(r.GetResponse().GetBody()), o.GetTimes())
		}
	case *idemv1.FailRequest:
		a.note("fail %s as %v → %v %s", r.GetRef().GetKey(), r.GetDisposition(), out, reason)
		if o := out.(*idemv1.FailResponse); err == nil && r.GetDisposition() == idemv1.Disposition_DISPOSITION_FINAL {
			a.settled(r.GetRef().GetKey(), w.fence(r.GetClaimToken())-int64(o.GetAttempt()), declined, o.GetTimes())
		}
	}
}

func (w *wire) began(key string, r *idemv1.BeginRequest, out *idemv1.BeginResponse, called time.Time) {
	a := w.world.auditor
	row := w.world.row(key)
	if slow := time.Since(called) - r.GetWait().AsDuration(); slow > waitSlack {
		a.complain(waiterLeftBehind, "a Begin of %s that would wait %v was answered after %v", key, r.GetWait().AsDuration(), time.Since(called))
	}
	switch {
	case out.GetGranted() != nil:
		c := out.GetGranted()
		w.mu.Lock()
		w.claims[string(c.GetClaimToken())] = c.GetFence()
		w.mu.Unlock()
		a.granted(key, c, called, row != nil && int64(row.Incarnation) == c.GetIncarnation() && row.Last.Number >= c.GetAttempt())
	case out.GetCompleted() != nil:
		a.replayed(key, string(out.GetCompleted().GetResponse().GetBody()))
	case out.GetFailed().GetDisposition() == idemv1.Disposition_DISPOSITION_FINAL:
		a.replayed(key, declined)
	case out.GetInProgress() != nil && row != nil && row.SettledAt != 0 && time.Since(row.SettledAt.Wall()) > waitSlack:
		a.complain(waiterLeftBehind, "%s was settled %v ago, and a Begin was told that it is in progress", key, time.Since(row.SettledAt.Wall()))
	}
}

// waitSlack is how much later than it should a waiter may learn something: some looks at the store that fail.
const waitSlack = 3 * time.Second

func reasonOf(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	if err != nil {
		return status.Code(err).String()
	}
	return ""
}

// row is what the store has of a key.
func (w *world) row(key string) *ledger.Entry {
	page, err := w.recording.Store.Page(context.Background(), ledger.PageQuery{Order: ledger.ByName, Limit: 100})
	if err != nil {
		return nil
	}
	for _, e := range page.Entries {
		if e.Ref.Key == key {
			return e
		}
	}
	return nil
}
