package payments

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/idemd/idemd/clientlib"
	paymentsv1 "github.com/idemd/idemd/examples/payments/gen/payments/v1"
)

const (
	tryTimeout = 10 * time.Second
	pauseFirst = 20 * time.Millisecond
	pauseMax   = 2 * time.Second
)

// Pay charges once, however often it has to ask: the key stays the same on every try, and on every Pay for the same order. It
// returns when there is an answer, or a refusal that asking again does not change, or ctx ends.
func Pay(
	ctx context.Context, service paymentsv1.PaymentsServiceClient, key string, request *paymentsv1.ChargeRequest, options ...grpc.CallOption,
) (*paymentsv1.ChargeResponse, error) {
	ctx = clientlib.WithKey(ctx, key)
	request = proto.CloneOf(request)
	for try := 0; ; try++ {
		request.SentTime = time.Now().Format(time.RFC3339Nano)
		tryCtx, cancel := context.WithTimeout(ctx, tryTimeout)
		response, err := service.Charge(tryCtx, request, options...)
		cancel()
		if err == nil || ctx.Err() != nil || !worthAnotherTry(err) {
			return response, err
		}
		pause := min(pauseFirst<<min(try, 10), pauseMax)
		pause = pause/2 + rand.N(pause/2)
		if refusal, ok := clientlib.AsError(err); ok {
			pause = max(pause, refusal.RetryAfter)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, err
		}
	}
}

// worthAnotherTry says whether asking again may end otherwise. It need not ask whether anything was done: the key sees to that.
func worthAnotherTry(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.Aborted, codes.DeadlineExceeded, codes.Canceled, codes.Internal, codes.Unknown:
		return true
	default:
		return false
	}
}
