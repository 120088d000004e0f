package examples_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/examples/payments"
	paymentsv1 "github.com/idemd/idemd/examples/payments/gen/payments/v1"
)

// town is the whole scene: a ledger that is killed, a service, a network that loses replies, and clients that ask again.
type town struct {
	t     *testing.T
	book  *payments.Book
	proxy *lossyProxy

	broken atomic.Int64 // charges whose handler broke after the effect

	mu    sync.Mutex
	first map[string]*paymentsv1.ChargeResponse
}

// newTown starts the service on its way to a ledger. The service is part of the test's own process and is not killed: what a restart of
// it means is a matter of its account book, which here would be gone.
func newTown(t *testing.T, daemonAddr string) *town {
	t.Helper()
	ledger, err := clientlib.New(clientlib.Config{
		Target: "passthrough:///" + daemonAddr, TransportCredentials: insecure.NewCredentials(), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	w := &town{t: t, book: payments.NewBook(), first: map[string]*paymentsv1.ChargeResponse{}}
	server, err := payments.NewServer(ledger, w.book, w.breakAfterEffect())
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := ledger.Close(); err != nil {
			t.Error(err)
		}
	})
	w.proxy = newLossyProxy(t, listener.Addr().String())
	return w
}

// breakAfterEffect lets one charge in ten break after it was made, once: its client is told UNAVAILABLE, and nobody but the account book
// knows better.
func (w *town) breakAfterEffect() grpc.UnaryServerInterceptor {
	var broke sync.Map
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		response, err := handler(ctx, request)
		key, _ := clientlib.KeyFrom(ctx)
		if _, before := broke.LoadOrStore(key, true); err == nil && !before && key != "" && key[len(key)-1] == '7' {
			w.broken.Add(1)
			return nil, status.Error(codes.Unavailable, "the connection to the bank broke")
		}
		return response, err
	}
}

// payment is one intent.
type payment struct {
	key     string
	request *paymentsv1.ChargeRequest
}

// send asks for a payment until there is an answer, and holds it against the first one.
func (w *town) send(ctx context.Context, client paymentsv1.PaymentsServiceClient, p payment) {
	got, err := payments.Pay(ctx, client, p.key, p.request)
	if err != nil {
		w.t.Errorf("%s: %v", p.key, err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if first := w.first[p.key]; first == nil {
		w.first[p.key] = got
	} else if !proto.Equal(first, got) {
		w.t.Errorf("%s: answered %v, and before %v", p.key, got, first)
	}
}

// check holds the account book against what was asked for.
func (w *town) check(all []payment, want map[string]payments.Account) {
	w.t.Helper()
	for _, p := range all {
		if n := w.book.ChargesOf(p.key); n != 1 {
			w.t.Errorf("%s was charged %d times", p.key, n)
		}
	}
	for name, account := range want {
		if got := w.book.Account(name); got != account {
			w.t.Errorf("%s: %+v, want %+v", name, got, account)
		}
	}
}

// TestAThousandPaymentsAreMadeOnce: each is asked for one to five times, at once and one after the other, through a network that loses a
// third of the replies; some handlers break after their effect; the ledger is killed twice in the middle. Every charge is there once, every
// reply is the first one, and the sums are right to the cent.
func TestAThousandPaymentsAreMadeOnce(t *testing.T) {
	t.Parallel()
	const count, accounts, senders, kills = 1000, 7, 24, 2
	dataDir := t.TempDir()
	daemon := startDaemon(t, dataDir, "127.0.0.1:0")
	w := newTown(t, daemon.addr)

	want := map[string]payments.Account{}
	var all, sends []payment
	for i := range count {
		p := payment{fmt.Sprintf("order-%d", i), &paymentsv1.ChargeRequest{
			Account: fmt.Sprintf("account-%d", i%accounts), AmountCents: int64(i*37%1000 + 1), Note: "an order",
		}}
		all = append(all, p)
		for range 1 + i%5 {
			sends = append(sends, p)
		}
		a := want[p.request.GetAccount()]
		want[p.request.GetAccount()] = payments.Account{TotalCents: a.TotalCents + p.request.GetAmountCents(), Charges: a.Charges + 1}
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(sends), func(i, j int) { sends[i], sends[j] = sends[j], sends[i] })

	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience)
	defer cancel()
	queue, answered := make(chan payment), make(chan struct{}, len(sends))
	var wg sync.WaitGroup
	for range senders {
		client := connect(t, w.proxy.addr())
		wg.Go(func() {
			for p := range queue {
				w.send(ctx, client, p)
				answered <- struct{}{}
			}
		})
	}
	wg.Go(func() {
		defer close(queue)
		for _, p := range sends {
			queue <- p
		}
	})
	for done := 1; done <= len(sends); done++ {
		<-answered
		if done%(len(sends)/(kills+1)) == 0 && done < len(sends)-senders {
			daemon.kill()
			daemon = startDaemon(t, dataDir, daemon.addr)
		}
	}
	wg.Wait()

	w.check(all, want)
	if w.proxy.lost.Load() < int64(count)/2 || w.broken.Load() != count/10 {
		t.Errorf("%d replies were lost and %d handlers broke: that tests too little", w.proxy.lost.Load(), w.broken.Load())
	}
	t.Logf("%d payments, asked for %d times; %d replies, of which %d were lost; %d handlers broke after the effect; %d kills; %v",
		count, len(sends), w.proxy.replies.Load(), w.proxy.lost.Load(), w.broken.Load(), kills, time.Since(began).Round(time.Millisecond))
}

// connect opens a connection of its own, so that a reply that is lost takes no other call with it.
func connect(t *testing.T, addr string) paymentsv1.PaymentsServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return paymentsv1.NewPaymentsServiceClient(conn)
}
