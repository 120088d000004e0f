package sqlidem_test

import (
	"context"
	"database/sql"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/fingerprint"
	"github.com/idemd/idemd/clientlib/idemtest"
	"github.com/idemd/idemd/clientlib/sqlidem"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// claimedWork is work at level 2.
type claimedWork func(ctx context.Context, tx tx, claim clientlib.Claim) (clientlib.Response, error)

// claimed is work that does not look at its claim.
func claimed(w work) claimedWork {
	return func(ctx context.Context, tx tx, _ clientlib.Claim) (clientlib.Response, error) { return w(ctx, tx) }
}

// guard is a service's guard at level 2, of which the tests need not know the driver.
type guard struct {
	do      func(ctx context.Context, key string, request fingerprint.Fingerprint, w claimedWork, o sqlidem.ReceiptOptions) (clientlib.Result, error)
	recover func(ctx context.Context, key string) (clientlib.Result, error)
	sweep   func(ctx context.Context) (sqlidem.Swept, error)
}

// guardOf is what one process of the service has.
func guardOf(s *service, client *clientlib.Client, retention time.Duration) *guard {
	config := sqlidem.ReceiptsConfig{Ledger: client, Retention: retention}
	if s.pgx != nil {
		return wrapGuard(must(sqlidem.NewReceipts(s.pgx, config)), func(t pgx.Tx) tx { return pgxTx{t} })
	}
	return wrapGuard(must(sqlidem.NewReceipts(s.sql, config)), func(t *sql.Tx) tx { return sqlTx{t} })
}

func wrapGuard[T any](r *sqlidem.Receipts[T], wrap func(T) tx) *guard {
	return &guard{
		do: func(ctx context.Context, key string, request fingerprint.Fingerprint, w claimedWork, o sqlidem.ReceiptOptions) (clientlib.Result, error) {
			return r.Do(ctx, ref(key), request, func(ctx context.Context, t T, claim clientlib.Claim) (clientlib.Response, error) {
				return w(ctx, wrap(t), claim)
			}, o)
		},
		recover: func(ctx context.Context, key string) (clientlib.Result, error) { return r.Recover(ctx, ref(key)) },
		sweep:   func(ctx context.Context) (sqlidem.Swept, error) { return r.Sweep(ctx, sqlidem.SweepOptions{}) },
	}
}

// world is a daemon, a database, and the guards of several processes of one service.
type world struct {
	*database
	ledger *idemtest.Ledger
}

func onEveryWorld(t *testing.T, test func(t *testing.T, w *world)) {
	onEveryDatabase(t, func(t *testing.T, d *database) { test(t, &world{d, idemtest.New(t)}) })
}

// guard is that of one more process, which lives to the end of the test.
func (w *world) guard(t *testing.T) *guard {
	t.Helper()
	return guardOf(w.service(t), w.ledger.Client(clientlib.Config{}), 0)
}

// dying is the connection of a process that dies before its report reaches the daemon.
type dying struct{ grpc.ClientConnInterface }

func (d dying) Invoke(ctx context.Context, method string, request, reply any, options ...grpc.CallOption) error {
	if strings.HasSuffix(method, "/Complete") || strings.HasSuffix(method, "/Fail") {
		return status.Error(codes.Unavailable, "the process is dead (test)")
	}
	return d.ClientConnInterface.Invoke(ctx, method, request, reply, options...)
}

// crash runs work in a process that dies after it and after whatever it committed, and lets the lease lapse.
func (w *world) crash(t *testing.T, key string, work claimedWork) {
	t.Helper()
	client := must(clientlib.New(clientlib.Config{
		Conn: dying{w.ledger.Conn()}, SettleTimeout: 20 * time.Millisecond, CloseTimeout: 20 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler),
	}))
	_, _ = guardOf(w.service(t), client, 0).do(t.Context(), key, asked("a"), work, sqlidem.ReceiptOptions{Classes: clientlib.ServerClasses()})
	if err := client.Close(); err == nil {
		t.Error("the process that died has told the daemon what became of its work")
	}
	w.ledger.LapseLease(ref(key))
}

// mustNotRun is work of an intent of which everything is known.
func mustNotRun(t *testing.T) claimedWork {
	return func(context.Context, tx, clientlib.Claim) (clientlib.Response, error) {
		t.Error("the work was run")
		return clientlib.Response{}, nil
	}
}

// condition is what the daemon makes of the intent.
func (w *world) condition(key string) idemv1.EntryCondition {
	return w.ledger.Entry(ref(key)).GetCondition()
}
