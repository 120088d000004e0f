package httpidem_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/httpidem"
	"github.com/idemd/idemd/server/servertest"
)

// A service that charges once for each key, and a client that may repeat itself.
func Example() {
	daemon, err := servertest.Start(servertest.Options{}) // in earnest: an idemd, by clientlib.Config.Target
	if err != nil {
		panic(err)
	}
	defer func() { _ = daemon.Close() }()
	ledger, err := clientlib.New(clientlib.Config{Conn: daemon.Conn()})
	if err != nil {
		panic(err)
	}
	defer func() { _ = ledger.Close() }()

	guard, err := httpidem.Middleware(httpidem.Config{
		Ledger: ledger, Abandoned: clientlib.Refuse(), Principal: httpidem.Anonymous,
	})
	if err != nil {
		panic(err)
	}
	charges := 0
	mux := http.NewServeMux()
	mux.Handle("POST /charges", guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		charges++
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "charge %d", charges)
	})))
	service := httptest.NewServer(mux)
	defer service.Close()

	transport, err := httpidem.NewTransport(httpidem.TransportConfig{})
	if err != nil {
		panic(err)
	}
	client := &http.Client{Transport: transport}
	defer client.CloseIdleConnections()
	for range 2 {
		request, err := http.NewRequestWithContext(context.Background(), http.MethodPost, service.URL+"/charges", strings.NewReader("amount=5"))
		if err != nil {
			panic(err)
		}
		request.Header.Set("Idempotency-Key", `"order-7"`) // left out: a fresh key for each request, the same on its retries
		response, err := client.Do(request)
		if err != nil {
			panic(err)
		}
		body, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		fmt.Println(response.Status, string(body), "replayed:", response.Header.Get(httpidem.ReplayedHeader) == "true")
	}
	// Output:
	// 201 Created charge 1 replayed: false
	// 201 Created charge 1 replayed: true
}
