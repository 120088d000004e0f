package clientlib_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/fingerprint"
)

// A server whose marked methods are run once.
func ExampleUnaryServerInterceptor() {
	ledger, err := clientlib.New(clientlib.Config{Target: "dns:///idemd:7433", TransportCredentials: insecure.NewCredentials()})
	if err != nil {
		log.Fatal(err)
	}
	defer ledger.Close() //nolint:errcheck // an example
	guard, err := clientlib.UnaryServerInterceptor(clientlib.Guard{
		Ledger: ledger, Abandoned: clientlib.Refuse(), Principal: clientlib.Anonymous,
	})
	if err != nil {
		log.Fatal(err) // for example: no method is marked
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(guard))
	defer server.Stop()
}

// Work that is not a gRPC method.
func ExampleClient_Do() {
	ledger, err := clientlib.New(clientlib.Config{Target: "dns:///idemd:7433", TransportCredentials: insecure.NewCredentials()})
	if err != nil {
		log.Fatal(err)
	}
	run := func(ctx context.Context, month string) error {
		asked, err := fingerprint.Bytes([]byte(month))
		if err != nil {
			return err
		}
		result, err := ledger.Do(ctx, clientlib.Ref{Operation: "invoice-run", Key: month}, asked,
			func(ctx context.Context, claim clientlib.Claim) (clientlib.Response, error) {
				body, err := json.Marshal(map[string]int{"invoices": 42})
				return clientlib.Response{Body: body, ContentType: "application/json"}, err
			}, clientlib.Options{Abandoned: clientlib.Refuse()})
		if err != nil {
			return err
		}
		fmt.Println(result.Outcome, string(result.Response.Body))
		return nil
	}
	_ = run
}

// A provider that can be asked is asked before anything is done twice.
func ExampleRecover() {
	type charge struct{ ID string }
	find := func(context.Context, string) (*charge, error) { return nil, nil }

	guard := clientlib.Guard{
		Abandoned: clientlib.Recover(func(ctx context.Context, claim clientlib.Claim) (clientlib.Finding, error) {
			made, err := find(ctx, claim.Ref.Key)
			switch {
			case err != nil:
				return clientlib.Finding{}, err // not known: the caller is told ABANDONED
			case made == nil:
				return clientlib.DidNotHappen(), nil
			default:
				return clientlib.Happened(clientlib.Response{Body: []byte(made.ID)}), nil
			}
		}),
	}
	_ = guard
}

// Handlers say what an error means where its code does not.
func ExampleNothingHappened() {
	handle := func(sent bool) error {
		err := status.Error(codes.Unavailable, "the provider is away")
		if !sent {
			return clientlib.NothingHappened(err) // the next try simply runs
		}
		return err // nobody knows: the next try asks first, or refuses
	}
	_ = handle
}
