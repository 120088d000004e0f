package temporal

import (
	"context"
	"errors"
	"fmt"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	failurepb "go.temporal.io/api/failure/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/interceptor"
	sdk "go.temporal.io/sdk/temporal"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/fingerprint"
)

// Config says which activities are run once, and how. Ledger and Abandoned are required.
type Config struct {
	// Ledger is whom to ask.
	Ledger *clientlib.Client
	// Abandoned says what becomes of an activity of which an earlier attempt was abandoned: its worker died, or it failed without saying
	// that nothing happened. There is no default. A hook's claim.Ref.Key is the activity's key, and claim.Request a [Call]; it answers
	// with [Happened].
	Abandoned clientlib.Abandoned

	// Guarded says which activities are guarded. Default: all of them. Leave out those that return activity.ErrResultPending, and those
	// that only read.
	Guarded func(info activity.Info) bool
	// Key gives an activity a key of the business's own, from its arguments, as "order-17". Two activities with one key and one type are
	// one intent, in whatever run. "" and the default: Key(info).
	Key func(info activity.Info, args []any) string
	// Operation names what an activity does. Default: "temporal:" and the activity's type.
	Operation func(info activity.Info) string
	// Tenant is whose the entries are. Empty: that of the client's credentials.
	Tenant string
	// Lease is for how long the claim is to be exclusive without a heartbeat; the guard sends these itself, whether or not the
	// activity does. Default: the policy's, 60 s by default.
	Lease time.Duration
	// DataConverter is the worker's own. Answers are kept as it makes them, so one that encrypts keeps them encrypted.
	// Default: converter.GetDefaultDataConverter().
	DataConverter converter.DataConverter
	// FailureConverter is the worker's own. Default: temporal.GetDefaultFailureConverter().
	FailureConverter converter.FailureConverter
}

// Call is the activity that a recovery hook is asked about.
type Call struct {
	Info activity.Info
	Args []any
}

// Validate says what is wrong with the configuration, or nil.
func (c Config) Validate() error {
	if c.Ledger == nil {
		return errors.New("temporal: Config needs a Ledger")
	}
	return (clientlib.Options{Abandoned: c.Abandoned, Lease: c.Lease}).Validate()
}

// NewInterceptor makes an interceptor for worker.Options.Interceptors. It stands innermost of those that may fail an activity: what an
// interceptor inside of it returns is what is kept.
func NewInterceptor(config Config) (interceptor.WorkerInterceptor, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if config.Operation == nil {
		config.Operation = func(info activity.Info) string { return "temporal:" + info.ActivityType.Name }
	}
	if config.DataConverter == nil {
		config.DataConverter = converter.GetDefaultDataConverter()
	}
	if config.FailureConverter == nil {
		config.FailureConverter = sdk.GetDefaultFailureConverter()
	}
	return &worker{config: config}, nil
}

type worker struct {
	interceptor.WorkerInterceptorBase
	config Config
}

// InterceptActivity implements interceptor.WorkerInterceptor.
func (w *worker) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	return &guard{ActivityInboundInterceptorBase: interceptor.ActivityInboundInterceptorBase{Next: next}, config: w.config}
}

// guard is around one activity.
type guard struct {
	interceptor.ActivityInboundInterceptorBase
	config Config
}

// payloadsType is the content type of a kept answer: a temporal.api.common.v1.Payloads. Of an activity without a result nothing is kept.
const payloadsType = "application/vnd.temporal.payloads+protobuf"

// ExecuteActivity runs the activity, or answers with what came of it before.
func (g *guard) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	info := activity.GetInfo(ctx)
	if g.config.Guarded != nil && !g.config.Guarded(info) {
		return g.Next.ExecuteActivity(ctx, in)
	}
	ref := clientlib.Ref{Tenant: g.config.Tenant, Operation: g.config.Operation(info), Key: Key(info)}
	if g.config.Key != nil {
		if own := g.config.Key(info, in.Args); own != "" {
			ref.Key = own
		}
	}
	asked, err := g.asked(info)
	if err != nil {
		return nil, err
	}
	result, err := g.config.Ledger.Do(ctx, ref, asked, func(ctx context.Context, claim clientlib.Claim) (clientlib.Response, error) {
		ctx = clientlib.WithKey(clientlib.WithClaim(ctx, claim), ref.Key)
		answer, err := g.Next.ExecuteActivity(ctx, in)
		if err != nil {
			return clientlib.Response{}, g.failed(err)
		}
		return g.encode(answer)
	}, clientlib.Options{
		Abandoned: g.config.Abandoned, Lease: g.config.Lease, Request: Call{Info: info, Args: in.Args},
		// Not by gRPC codes: an activity says that it failed for good by Temporal's own word, or by clientlib.Final.
		Classes: clientlib.Classes{},
	})
	if err != nil {
		return nil, g.told(err)
	}
	return decode(result.Response)
}

// asked binds the key to the activity's type and not to its arguments. Those are in the workflow's history, from which every attempt has
// the same; and a worker of a newer version may read and write them differently, which must not refuse a retry.
func (g *guard) asked(info activity.Info) (fingerprint.Fingerprint, error) {
	return fingerprint.Bytes([]byte("temporal-activity:" + info.ActivityType.Name))
}

// encode makes of an answer what the worker would report, so that a replay reports the same bytes.
func (g *guard) encode(answer any) (clientlib.Response, error) {
	if answer == nil {
		return clientlib.Response{}, nil
	}
	payloads, ok := answer.(*commonpb.Payloads)
	if !ok {
		var err error
		if payloads, err = g.config.DataConverter.ToPayloads(answer); err != nil {
			return clientlib.Response{}, err
		}
	}
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(payloads)
	return clientlib.Response{Body: body, ContentType: payloadsType}, err
}

func decode(response clientlib.Response) (any, error) {
	if response.ContentType != payloadsType {
		return nil, nil
	}
	payloads := &commonpb.Payloads{}
	if err := proto.Unmarshal(response.Body, payloads); err != nil {
		return nil, fmt.Errorf("temporal: a kept answer that cannot be read: %w", err)
	}
	return payloads, nil
}

// Happened is what a recovery hook answers with where it found that the activity's effect is there: result is what the activity would have
// returned, nil where it returns none. converter is the worker's; nil: the default.
func Happened(dataConverter converter.DataConverter, result any) (clientlib.Finding, error) {
	if dataConverter == nil {
		dataConverter = converter.GetDefaultDataConverter()
	}
	response, err := (&guard{config: Config{DataConverter: dataConverter}}).encode(result)
	if err != nil {
		return clientlib.Finding{}, err
	}
	return clientlib.Happened(response), nil
}

// failure is an activity's error on its way to the ledger. Its status carries Temporal's own form of it, so that a replay is the same.
type failure struct {
	error
	status *status.Status
}

func (f *failure) Unwrap() error { return f.error }

func (f *failure) GRPCStatus() *status.Status { return f.status }

// failed says what an activity's error means for the next attempt: one that Temporal does not retry is final.
func (g *guard) failed(err error) error {
	var application *sdk.ApplicationError
	final := errors.As(err, &application) && application.NonRetryable()
	if !final && (clientlib.Classes{}).ClassOf(err) == clientlib.FinalFailure {
		// The ledger answers every retry with it from now on, so Temporal need not ask.
		final, err = true, sdk.NewNonRetryableApplicationError(err.Error(), "Final", err)
	}
	s := status.New(codes.Unknown, err.Error())
	if detailed, detailErr := s.WithDetails(protoadapt.MessageV1Of(g.config.FailureConverter.ErrorToFailure(err))); detailErr == nil {
		s = detailed
	}
	wrapped := &failure{err, s}
	if final {
		return clientlib.Final(wrapped)
	}
	return wrapped
}

// told turns what came of a Do into what Temporal is told.
func (g *guard) told(err error) error {
	var own *failure
	if errors.As(err, &own) {
		return own.error
	}
	var replayed *clientlib.ReplayedFailure
	if errors.As(err, &replayed) {
		return g.replayed(replayed)
	}
	var refused *clientlib.Error
	if !errors.As(err, &refused) {
		return err // a recovery hook's
	}
	kind := string(refused.Reason)
	if hopeless(refused) {
		return sdk.NewNonRetryableApplicationError(refused.Error(), kind, err)
	}
	return sdk.NewApplicationErrorWithOptions(refused.Error(), kind, sdk.ApplicationErrorOptions{Cause: err, NextRetryDelay: delay(refused)})
}

// abandonedDelay is how long to wait before an activity is tried again that waits for an operator. Each try is an attempt by the policy.
const abandonedDelay = 5 * time.Minute

func delay(refused *clientlib.Error) time.Duration {
	if errors.Is(refused, clientlib.ErrAbandoned) {
		return abandonedDelay
	}
	return refused.RetryAfter
}

// hopeless: no retry of the activity will fare better.
func hopeless(refused *clientlib.Error) bool {
	for _, reason := range []error{
		clientlib.ErrKeyReused, clientlib.ErrHashIncomparable, clientlib.ErrExpired, clientlib.ErrAnswerNotKept, clientlib.ErrInvalidKey,
		clientlib.ErrPermissionDenied,
	} {
		if errors.Is(refused, reason) {
			return true
		}
	}
	return false
}

// replayed is the failure of then, as Temporal had it.
func (g *guard) replayed(replayed *clientlib.ReplayedFailure) error {
	for _, detail := range replayed.GRPCStatus().Details() {
		if f, ok := detail.(*failurepb.Failure); ok {
			return g.config.FailureConverter.FailureToError(f)
		}
	}
	return sdk.NewNonRetryableApplicationError(replayed.Status.GetMessage(), "Replayed", replayed)
}
