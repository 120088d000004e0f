package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/idemd/idemd/clientlib"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// names of an ordinary length, so that messages and rows are as they are in use.
const (
	tenant    = "acme"
	operation = "/payments.v1.PaymentService/Charge"
	holder    = "payments-7f9c8d6b5-x2x4z"
)

// beginRequest is the Begin of a key.
func beginRequest(tenant string, key uuid.UUID) *idemv1.BeginRequest {
	hash := sha256.Sum256(key[:])
	return &idemv1.BeginRequest{
		Ref:       &idemv1.EntryRef{Tenant: tenant, Operation: operation, Key: key.String()},
		AttemptId: uuid.NewString(), Fingerprints: []*idemv1.Fingerprint{{Algorithm: "compare-1", Hash: hash[:]}}, Holder: holder,
	}
}

func completeRequest(begin *idemv1.BeginRequest, claim *idemv1.Claim, bodyBytes int) *idemv1.CompleteRequest {
	return &idemv1.CompleteRequest{
		Ref: begin.GetRef(), ClaimToken: claim.GetClaimToken(),
		Response: &idemv1.Response{Body: randomBytes(bodyBytes), ContentType: "application/proto"},
	}
}

// randomBytes cannot be compressed.
func randomBytes(n int) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = byte(rand.Uint32())
	}
	return out
}

// ledger makes calls. A clientlib.Client is one.
type ledger interface {
	Begin(ctx context.Context, request *idemv1.BeginRequest) (*idemv1.BeginResponse, error)
	Complete(ctx context.Context, request *idemv1.CompleteRequest) (*idemv1.CompleteResponse, error)
}

// unary makes each call by itself.
type unary struct{ idemv1.LedgerServiceClient }

func (u unary) Begin(ctx context.Context, request *idemv1.BeginRequest) (*idemv1.BeginResponse, error) {
	return u.LedgerServiceClient.Begin(ctx, request)
}

func (u unary) Complete(ctx context.Context, request *idemv1.CompleteRequest) (*idemv1.CompleteResponse, error) {
	return u.LedgerServiceClient.Complete(ctx, request)
}

// pairs returns a step that begins a fresh key and completes it.
func pairs(clients []ledger, tenant string, bodyBytes int) func(context.Context, int) error {
	return func(ctx context.Context, worker int) error {
		client := clients[worker%len(clients)]
		request := beginRequest(tenant, uuid.New())
		begun, err := client.Begin(ctx, request)
		if err != nil {
			return err
		}
		if begun.GetGranted() == nil {
			return fmt.Errorf("a fresh key was told %v", begun)
		}
		_, err = client.Complete(ctx, completeRequest(request, begun.GetGranted(), bodyBytes))
		return err
	}
}

// replays returns a step that begins one of a thousand settled keys.
func replays(ctx context.Context, clients []ledger, bodyBytes int) (func(context.Context, int) error, error) {
	keys := make([]uuid.UUID, 1000)
	for i := range keys {
		keys[i] = uuid.New()
		request := beginRequest(tenant, keys[i])
		begun, err := clients[0].Begin(ctx, request)
		if err != nil {
			return nil, err
		}
		if _, err := clients[0].Complete(ctx, completeRequest(request, begun.GetGranted(), bodyBytes)); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context, worker int) error {
		resp, err := clients[worker%len(clients)].Begin(ctx, beginRequest(tenant, keys[rand.IntN(len(keys))]))
		if err == nil && len(resp.GetCompleted().GetResponse().GetBody()) != bodyBytes {
			err = fmt.Errorf("a replay was told %v", resp)
		}
		return err
	}, nil
}

func ledgerClients(conns []*grpc.ClientConn) (out []ledger) {
	for _, conn := range conns {
		out = append(out, unary{idemv1.NewLedgerServiceClient(conn)})
	}
	return out
}

// sessions are clients that make their calls on one Session stream for each connection.
func (l *lab) sessions(conns []*grpc.ClientConn) (out []ledger, err error) {
	for _, conn := range conns {
		client, err := clientlib.New(clientlib.Config{Conn: conn, Sessions: 1})
		if err != nil {
			return nil, err
		}
		l.atEnd(func() { _ = client.Close() })
		out = append(out, client)
	}
	return out, nil
}

// sizes are the lengths in bytes of the messages of a pair and of a replay, as they are between client and daemon.
type sizes struct {
	begin, granted, complete, completed, replayed int
}

// messageSizes makes a pair and a replay, and weighs what goes over the wire.
func messageSizes(ctx context.Context, client ledger, bodyBytes int) (s sizes, err error) {
	request := beginRequest(tenant, uuid.New())
	begun, err := client.Begin(ctx, request)
	if err != nil {
		return s, err
	}
	complete := completeRequest(request, begun.GetGranted(), bodyBytes)
	completed, err := client.Complete(ctx, complete)
	if err != nil {
		return s, err
	}
	request.AttemptId = uuid.NewString()
	replay, err := client.Begin(ctx, request)
	if err == nil && replay.GetCompleted() == nil {
		err = errors.New("a settled entry was not replayed")
	}
	return sizes{
		begin: proto.Size(request), granted: proto.Size(begun), complete: proto.Size(complete), completed: proto.Size(completed), replayed: proto.Size(replay),
	}, err
}
