// Package idemtest is an idemd in memory, for tests of services that use clientlib: the real daemon, on a clock that stands
// still until the test moves it, over a connection that can lose replies and break.
//
//	func TestChargeIsRetried(t *testing.T) {
//		ledger := idemtest.New(t)
//		client := ledger.Client(clientlib.Config{})
//		...
//		ledger.LoseReplies("Complete", 1)
//	}
package idemtest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/idemd/idemd/clientlib"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/server/servertest"
)

// Ledger is a running daemon. It may be used by any number of goroutines.
type Ledger struct {
	t      testing.TB
	daemon *servertest.Daemon
	link   *link
}

// New starts a daemon and stops it when the test ends.
func New(t testing.TB) *Ledger {
	t.Helper()
	daemon := servertest.New(t, servertest.Options{})
	return &Ledger{t: t, daemon: daemon, link: newLink(daemon.Conn())}
}

// Conn is a connection to the daemon. The faults below are those of this connection: everything that uses it meets them.
func (l *Ledger) Conn() grpc.ClientConnInterface { return l.link }

// Client makes a client of the daemon and closes it when the test ends. Config.Conn is set to Conn, and a Logger that says
// nothing is set where there is none.
func (l *Ledger) Client(config clientlib.Config) *clientlib.Client {
	l.t.Helper()
	config.Conn = l.Conn()
	if config.Logger == nil {
		config.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	client, err := clientlib.New(config)
	if err != nil {
		l.t.Fatalf("idemtest: %v", err)
	}
	l.t.Cleanup(func() {
		if err := client.Close(); err != nil {
			l.t.Errorf("idemtest: close the client: %v", err)
		}
	})
	return client
}

// Advance moves the daemon's clock ahead: leases lapse, retention ends. The time of this process, by which heartbeats and
// back-off go, is not moved.
func (l *Ledger) Advance(d time.Duration) { l.daemon.Clock().Advance(d) }

// LapseLease moves the daemon's clock to just after the end of the lease of the intent's current attempt. It fails the test
// where there is no such attempt.
func (l *Ledger) LapseLease(ref clientlib.Ref) {
	l.t.Helper()
	times := l.Entry(ref).GetTimes()
	if times.GetLeaseExpireTime() == nil {
		l.t.Fatalf("idemtest: %s has no current attempt, so no lease", ref.Operation)
	}
	left := times.GetLeaseExpireTime().AsTime().Sub(times.GetStoreTime().AsTime())
	l.Advance(max(left, 0) + time.Millisecond)
}

// Entry is what the ledger knows of an intent, faults of the connection notwithstanding. It fails the test where there is none.
func (l *Ledger) Entry(ref clientlib.Ref) *idemv1.Entry {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	response, err := idemv1.NewLedgerServiceClient(l.daemon.Conn()).Lookup(ctx, &idemv1.LookupRequest{
		Ref: &idemv1.EntryRef{Tenant: ref.Tenant, Operation: ref.Operation, Key: ref.Key},
	})
	if err != nil {
		l.t.Fatalf("idemtest: look up %s: %v", ref.Operation, err)
	}
	return response.GetEntry()
}

// Admin is the daemon's operators' side, for policies and resolutions, past the faults of the connection.
func (l *Ledger) Admin() idemv1.AdminServiceClient {
	return idemv1.NewAdminServiceClient(l.daemon.Conn())
}

// GoAway breaks the connection until ComeBack: calls do not reach the daemon.
func (l *Ledger) GoAway() { l.link.setAway(true) }

// ComeBack mends the connection.
func (l *Ledger) ComeBack() { l.link.setAway(false) }

// LoseStore makes the daemon's store go away until FindStore: the daemon answers STORE_UNAVAILABLE. What is then abandoned is
// left to its holders for the length of a lease, as after a restart.
func (l *Ledger) LoseStore() { l.daemon.Down() }

// FindStore brings the store back.
func (l *Ledger) FindStore() { l.daemon.Up() }

// LoseReplies loses the replies of the next calls of one RPC ("Begin", "Complete", "Fail", "Extend", "Lookup"): they are
// carried out, and the caller is told UNAVAILABLE.
func (l *Ledger) LoseReplies(rpc string, calls int) { l.link.plan(fullMethod(rpc), calls, afterCall) }

// LoseRequests keeps the next calls of one RPC from reaching the daemon; the caller is told UNAVAILABLE.
func (l *Ledger) LoseRequests(rpc string, calls int) {
	l.link.plan(fullMethod(rpc), calls, beforeCall)
}

// Calls is how many calls of one RPC were made over Conn so far, lost ones included.
func (l *Ledger) Calls(rpc string) int { return l.link.count(fullMethod(rpc)) }

func fullMethod(rpc string) string {
	return fmt.Sprintf("/%s/%s", idemv1.LedgerService_ServiceDesc.ServiceName, rpc)
}
