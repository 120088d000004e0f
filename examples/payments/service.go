package payments

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/idemd/idemd/clientlib"
	paymentsv1 "github.com/idemd/idemd/examples/payments/gen/payments/v1"
)

const (
	// waitForAnother is how long a retry that meets its own first try waits for the answer of that.
	waitForAnother = 2 * time.Second
	// lease is how long a charge counts as being made after this process has died. Heartbeats come at a third of it.
	lease = 10 * time.Second
)

// NewServer makes a gRPC server whose charges are made once for each key. inside are interceptors that stand between the guard and
// the handlers.
func NewServer(ledger *clientlib.Client, book *Book, inside ...grpc.UnaryServerInterceptor) (*grpc.Server, error) {
	guard, err := clientlib.UnaryServerInterceptor(clientlib.Guard{
		Ledger:    ledger,
		Abandoned: clientlib.Recover(Recover(book)),
		Principal: clientlib.Anonymous, // a service that others can reach says who its caller is
		Services:  []string{paymentsv1.PaymentsService_ServiceDesc.ServiceName},
		Wait:      waitForAnother,
		Lease:     lease,
		Pointer: func(_ string, answer proto.Message) (string, string) {
			if charge, ok := answer.(*paymentsv1.ChargeResponse); ok {
				return "charge", charge.GetChargeId()
			}
			return "", ""
		},
	})
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(append([]grpc.UnaryServerInterceptor{guard}, inside...)...))
	paymentsv1.RegisterPaymentsServiceServer(server, &service{book: book})
	return server, nil
}

// Recover asks the account book what became of an attempt that was never heard of again.
func Recover(book *Book) clientlib.RecoverFunc {
	return func(_ context.Context, claim clientlib.Claim) (clientlib.Finding, error) {
		charge, found := book.Find(claim.Ref.Key, claim.Fence)
		if !found {
			return clientlib.DidNotHappen(), nil
		}
		return clientlib.HappenedWith(answer(charge)), nil
	}
}

type service struct {
	paymentsv1.UnimplementedPaymentsServiceServer
	book *Book
}

// Charge runs under a claim: at most one at a time for a key, and not again once one has answered.
func (s *service) Charge(ctx context.Context, request *paymentsv1.ChargeRequest) (*paymentsv1.ChargeResponse, error) {
	if request.GetAccount() == "" || request.GetAmountCents() < 1 {
		return nil, status.Error(codes.InvalidArgument, "want an account, and an amount of at least 1 cent")
	}
	claim, ok := clientlib.ClaimFrom(ctx)
	if !ok {
		return nil, status.Error(codes.Internal, "the guard is missing")
	}
	charge, err := s.book.Charge(claim.Ref.Key, claim.Fence, request.GetAccount(), request.GetAmountCents())
	if errors.Is(err, ErrStale) {
		return nil, status.Error(codes.Aborted, err.Error())
	}
	if err != nil {
		return nil, err
	}
	return answer(charge), nil
}

// GetAccount changes nothing, so it is not guarded.
func (s *service) GetAccount(_ context.Context, request *paymentsv1.GetAccountRequest) (*paymentsv1.GetAccountResponse, error) {
	account := s.book.Account(request.GetAccount())
	return &paymentsv1.GetAccountResponse{TotalCents: account.TotalCents, Charges: account.Charges}, nil
}

func answer(charge Charge) *paymentsv1.ChargeResponse {
	return &paymentsv1.ChargeResponse{ChargeId: charge.ID, TotalCents: charge.TotalCents}
}
