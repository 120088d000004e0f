// Package cases holds, as tests, the cases that every system with retries should have, each for the ways into a service that it applies
// to: a gRPC method, an HTTP route, work in the service's own transaction, alone and with a receipt, a consumer of a queue, a webhook. One more, an activity of a
// workflow, is in clientlib/temporal, which is a module of its own.
package cases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/fingerprint"
	"github.com/idemd/idemd/clientlib/httpidem"
	"github.com/idemd/idemd/clientlib/idemtest"
	"github.com/idemd/idemd/clientlib/sqlidem"
	"github.com/idemd/idemd/examples/payments"
	paymentsv1 "github.com/idemd/idemd/examples/payments/gen/payments/v1"
	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	pgtest.Stop()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// service charges an account. Each answer has the account's total after the charge, so that it tells when it was given.
type service interface {
	// charge asks for one charge. Where loseReply is set it is made, and the asker hears nothing.
	charge(ctx context.Context, key string, cents int, loseReply bool) reply
	// total and charges are what is in the book, whatever anybody was told.
	total() int
	charges() int
	// expire lets the time pass for which answers are kept.
	expire()
}

// reply is what an asker hears.
type reply struct {
	lost     bool
	total    int
	replayed bool
	// refused is the reason, where there is no answer.
	refused clientlib.Reason
}

// everyWay runs a test for each way into a service by which somebody waits for an answer.
func everyWay(t *testing.T, test func(t *testing.T, s service)) {
	for name, start := range map[string]func(*testing.T) service{
		"gRPC": startGRPC, "HTTP": startHTTP, "in the service's own transaction": startSQL, "with a receipt": startReceipts,
	} {
		t.Run(name, func(t *testing.T) { test(t, start(t)) })
	}
}

const (
	account = "acme"
	// patience bounds what should come at once.
	patience = 30 * time.Second
	// retention is over the built-in policy's.
	retention = 8 * 24 * time.Hour
)

var silent = slog.New(slog.DiscardHandler)

// grpcService is the payments example.
type grpcService struct {
	t      *testing.T
	ledger *idemtest.Ledger
	book   *payments.Book
	client paymentsv1.PaymentsServiceClient
}

func startGRPC(t *testing.T) service {
	ledger := idemtest.New(t)
	s := &grpcService{t: t, ledger: ledger, book: payments.NewBook()}
	server, err := payments.NewServer(ledger.Client(clientlib.Config{}), s.book)
	if err != nil {
		t.Fatal(err)
	}
	pipe := bufconn.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- server.Serve(pipe) }()
	conn, err := grpc.NewClient("passthrough:///payments", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.GracefulStop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	s.client = paymentsv1.NewPaymentsServiceClient(conn)
	return s
}

func (s *grpcService) charge(ctx context.Context, key string, cents int, loseReply bool) reply {
	var trailer metadata.MD
	answer, err := s.client.Charge(clientlib.WithKey(ctx, key), &paymentsv1.ChargeRequest{Account: account, AmountCents: int64(cents)}, grpc.Trailer(&trailer))
	switch {
	case loseReply:
		return reply{lost: true}
	case err != nil:
		refused, ok := clientlib.AsError(err)
		if !ok {
			s.t.Errorf("charge: %v", err)
			return reply{}
		}
		return reply{refused: refused.Reason}
	}
	outcome := strings.Join(trailer.Get(clientlib.OutcomeTrailer), " ")
	return reply{total: int(answer.GetTotalCents()), replayed: outcome == string(clientlib.Replayed)}
}

func (s *grpcService) total() int   { return int(s.book.Account(account).TotalCents) }
func (s *grpcService) charges() int { return int(s.book.Account(account).Charges) }
func (s *grpcService) expire()      { s.ledger.Advance(retention) }

// httpService is a route behind the Idempotency-Key middleware.
type httpService struct {
	t      *testing.T
	ledger *idemtest.Ledger
	server *httptest.Server
	sum    atomic.Int64
	made   atomic.Int64
}

func startHTTP(t *testing.T) service {
	ledger := idemtest.New(t)
	s := &httpService{t: t, ledger: ledger}
	guard, err := httpidem.Middleware(httpidem.Config{
		Ledger: ledger.Client(clientlib.Config{}), Abandoned: clientlib.Refuse(), Principal: httpidem.Anonymous, Logger: silent, Wait: patience,
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /charges", guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked struct{ Cents int64 }
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s.made.Add(1)
		_, _ = fmt.Fprint(w, s.sum.Add(asked.Cents))
	})))
	s.server = httptest.NewServer(mux)
	t.Cleanup(func() {
		s.server.Client().CloseIdleConnections()
		s.server.Close()
	})
	return s
}

func (s *httpService) charge(ctx context.Context, key string, cents int, loseReply bool) reply {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.server.URL+"/charges", strings.NewReader(fmt.Sprintf(`{"cents": %d}`, cents)))
	if err != nil {
		s.t.Error(err)
		return reply{}
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", strconv.Quote(key))
	response, err := s.server.Client().Do(request)
	if err != nil {
		s.t.Errorf("charge: %v", err)
		return reply{}
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	switch {
	case loseReply:
		return reply{lost: true}
	case err != nil:
		s.t.Errorf("charge: %v", err)
	case response.StatusCode != http.StatusOK:
		var problem httpidem.Problem
		if err := json.Unmarshal(body, &problem); err != nil {
			s.t.Errorf("charge: %d %s", response.StatusCode, body)
		}
		return reply{refused: problem.Reason}
	}
	total, err := strconv.Atoi(string(body))
	if err != nil {
		s.t.Errorf("charge: %v", err)
	}
	return reply{total: total, replayed: response.Header.Get(httpidem.ReplayedHeader) == "true"}
}

func (s *httpService) total() int   { return int(s.sum.Load()) }
func (s *httpService) charges() int { return int(s.made.Load()) }
func (s *httpService) expire()      { s.ledger.Advance(retention) }

// sqlService charges in its own PostgreSQL.
type sqlService struct {
	t    *testing.T
	pool *pgxpool.Pool
	// once runs work in a transaction, once for a key.
	once func(ctx context.Context, ref clientlib.Ref, asked fingerprint.Fingerprint, work sqlidem.Work[pgx.Tx]) (clientlib.Result, error)
	late func() // lets the time pass for which answers are kept
}

// startSQL charges in one transaction with the claim and the answer.
func startSQL(t *testing.T) service {
	s, db := newSQLService(t)
	s.once = func(ctx context.Context, ref clientlib.Ref, asked fingerprint.Fingerprint, work sqlidem.Work[pgx.Tx]) (clientlib.Result, error) {
		return sqlidem.Do(ctx, db, ref, asked, work, sqlidem.Options{Wait: patience})
	}
	s.late = func() { run(t, s.pool, "UPDATE passed SET us = us + $1", retention.Microseconds()) }
	return s
}

// startReceipts charges in one transaction with a receipt, and has the entry in a daemon.
func startReceipts(t *testing.T) service {
	s, db := newSQLService(t)
	ledger := idemtest.New(t)
	receipts, err := sqlidem.NewReceipts(db, sqlidem.ReceiptsConfig{Ledger: ledger.Client(clientlib.Config{})})
	if err != nil {
		t.Fatal(err)
	}
	s.once = func(ctx context.Context, ref clientlib.Ref, asked fingerprint.Fingerprint, work sqlidem.Work[pgx.Tx]) (clientlib.Result, error) {
		return receipts.Do(ctx, ref, asked, func(ctx context.Context, tx pgx.Tx, _ clientlib.Claim) (clientlib.Response, error) {
			return work(ctx, tx)
		}, sqlidem.ReceiptOptions{Wait: patience})
	}
	s.late = func() { ledger.Advance(retention) }
	return s
}

func newSQLService(t *testing.T) (*sqlService, *sqlidem.DB[pgx.Tx]) {
	t.Helper()
	pool := newPool(t)
	run(t, pool, "CREATE TABLE charges (key TEXT NOT NULL, cents INT NOT NULL)")
	run(t, pool, "CREATE TABLE passed AS SELECT 0::INT8 AS us")
	db, err := sqlidem.NewPgx(pool, sqlidem.Config{
		ClockSQL: "((extract(epoch FROM clock_timestamp()) * 1000000)::INT8 + (SELECT us FROM passed))",
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := sqlidem.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	return &sqlService{t: t, pool: pool}, db
}

func newPool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func run(t *testing.T, pool *pgxpool.Pool, text string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), text, args...); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

func query(t *testing.T, pool *pgxpool.Pool, text string, args ...any) (n int) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), text, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return n
}

func bytesOf(text string) fingerprint.Fingerprint {
	sum, err := fingerprint.Bytes([]byte(text))
	if err != nil {
		panic(err)
	}
	return sum
}

func (s *sqlService) charge(ctx context.Context, key string, cents int, loseReply bool) reply {
	ref := clientlib.Ref{Tenant: account, Operation: "charge", Key: key}
	result, err := s.once(ctx, ref, bytesOf(strconv.Itoa(cents)), func(ctx context.Context, tx pgx.Tx) (clientlib.Response, error) {
		if _, err := tx.Exec(ctx, "INSERT INTO charges VALUES ($1, $2)", key, cents); err != nil {
			return clientlib.Response{}, err
		}
		var total int
		err := tx.QueryRow(ctx, "SELECT sum(cents) FROM charges").Scan(&total)
		return clientlib.Response{Body: []byte(strconv.Itoa(total))}, err
	})
	if loseReply {
		return reply{lost: true}
	}
	if err != nil {
		var refused *clientlib.Error
		if !errors.As(err, &refused) || refused.Code == codes.Unavailable || status.Code(err) == codes.Unknown {
			s.t.Errorf("charge: %v", err)
			return reply{}
		}
		return reply{refused: refused.Reason}
	}
	total, err := strconv.Atoi(string(result.Response.Body))
	if err != nil {
		s.t.Errorf("charge: %v", err)
	}
	return reply{total: total, replayed: result.Outcome == clientlib.Replayed}
}

func (s *sqlService) total() int {
	return query(s.t, s.pool, "SELECT coalesce(sum(cents), 0)::INT FROM charges")
}

func (s *sqlService) charges() int { return query(s.t, s.pool, "SELECT count(*) FROM charges") }

func (s *sqlService) expire() { s.late() }
