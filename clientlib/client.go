package clientlib

import (
	"context"
	"io"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// Client talks to one ledger. It may be used by any number of goroutines. Close it when the work is over, so that outcomes
// that are not recorded yet still are; finish the work first, because what is still at work then can only report at once or not
// at all.
type Client struct {
	config    Config
	ledger    idemv1.LedgerServiceClient
	sessions  *sessionLedger // nil where calls are made by themselves
	conn      io.Closer      // nil where the connection is the caller's
	telemetry *telemetry

	// outcomes is for what must be told, and spare for what only tidies up, in the background. Close ends spare early.
	outcomes, spare       context.Context
	endOutcomes, endSpare context.CancelFunc

	mu         sync.Mutex
	closed     bool
	background int
	unrecorded int           // of those, how many are outcomes
	kept       int           // how many bytes those hold
	idle       chan struct{} // closed once closed is set and background is 0
}

// New makes a client. It does not connect: a ledger that is away shows in the first call, or in [Client.SelfTest].
func New(config Config) (*Client, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.withDefaults()
	telemetry, err := newTelemetry(config)
	if err != nil {
		return nil, err
	}
	c := &Client{config: config, telemetry: telemetry, idle: make(chan struct{})}
	conn := config.Conn
	if conn == nil {
		dialled, err := dial(config)
		if err != nil {
			return nil, err
		}
		conn, c.conn = dialled, dialled
	}
	c.ledger = idemv1.NewLedgerServiceClient(conn)
	if config.Sessions > 0 {
		c.sessions = newSessionLedger(c.ledger, config.Sessions, config.TryTimeout)
		c.ledger = c.sessions
	}
	c.outcomes, c.endOutcomes = context.WithCancel(context.Background())
	c.spare, c.endSpare = context.WithCancel(context.Background())
	return c, nil
}

func dial(config Config) (*grpc.ClientConn, error) {
	options := []grpc.DialOption{grpc.WithTransportCredentials(config.TransportCredentials)}
	if config.PerRPCCredentials != nil {
		options = append(options, grpc.WithPerRPCCredentials(config.PerRPCCredentials))
	}
	conn, err := grpc.NewClient(config.Target, append(options, config.DialOptions...)...)
	if err != nil {
		return nil, invalidConfig("connect to the ledger: %w", err)
	}
	return conn, nil
}

// Close waits until the outcomes that are being recorded in the background are, for at most Config.CloseTimeout, then gives
// up on the rest and says how many there were in an error. Calls that begin after it are refused. A second Close does
// nothing.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	if c.background == 0 {
		close(c.idle)
	}
	c.mu.Unlock()

	spare := time.AfterFunc(min(c.config.SettleTimeout, c.config.CloseTimeout), c.endSpare)
	defer spare.Stop()
	wait, cancel := context.WithTimeout(context.Background(), c.config.CloseTimeout)
	defer cancel()
	left := 0
	select {
	case <-c.idle:
	case <-wait.Done():
		c.mu.Lock()
		left = c.unrecorded
		c.mu.Unlock()
	}
	c.endSpare()
	c.endOutcomes()
	<-c.idle
	if c.sessions != nil {
		c.sessions.close()
	}
	var err error
	if c.conn != nil {
		err = c.conn.Close()
	}
	if left > 0 {
		return local(0, ReasonLedgerUnavailable, "closed with %d outcomes not recorded; their entries become abandoned", left)
	}
	return err
}

// goBackground runs f until Close gives up on it. False: there is too much in the background already, or the client is closed
// and nothing that Close waits for is left.
func (c *Client) goBackground(outcome bool, f func(ctx context.Context)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.background >= c.config.MaxBackground || c.closed && c.background == 0 {
		return false
	}
	ctx, one := c.spare, 0
	if outcome {
		ctx, one = c.outcomes, 1
	}
	c.background++
	c.unrecorded += one
	go func() {
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.background--
			c.unrecorded -= one
			if c.closed && c.background == 0 {
				close(c.idle)
			}
		}()
		f(ctx)
	}()
	return true
}

func (c *Client) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// Ref names one intent. See idem.v1.EntryRef for the limits.
type Ref struct {
	// Tenant is whose intent it is. Empty: the tenant of the client's credentials.
	Tenant string
	// Operation is what is to be done, as "shop.v1.PaymentService/Charge" or "invoice-run".
	Operation string
	// Key is which intent it is, as its maker names it.
	Key string
}

// checkText refuses a name that no message can carry. All other rules are the ledger's to judge.
func checkText(ref *idemv1.EntryRef) error {
	for _, part := range []struct {
		field, value string
		reason       Reason
	}{
		{"ref.tenant", ref.GetTenant(), ReasonInvalidTenant}, {"ref.operation", ref.GetOperation(), ReasonInvalidOperation},
		{"ref.key", ref.GetKey(), ReasonInvalidKey},
	} {
		if !utf8.ValidString(part.value) {
			e := local(codes.InvalidArgument, part.reason, "%s must be valid UTF-8", part.field)
			e.Field, e.Rule = part.field, "must be valid UTF-8"
			return e
		}
	}
	return nil
}

func (r Ref) proto() *idemv1.EntryRef {
	return &idemv1.EntryRef{Tenant: r.Tenant, Operation: r.Operation, Key: r.Key}
}

// The calls below are those of LedgerService, resent until they are answered, ctx ends, or Config.LedgerTimeout (and the wait
// that a Begin asks for) is over. Every one may be resent blindly, by the ledger's contract, so a lost reply costs time and
// nothing else. Their errors are [*Error] values. As with gRPC itself, a request must not be changed once it was given away.

// Begin asks for the claim on an entry. An empty attempt id is filled in with a fresh one, in a copy, and is the same on all
// resends.
func (c *Client) Begin(ctx context.Context, request *idemv1.BeginRequest) (*idemv1.BeginResponse, error) {
	if request.GetAttemptId() == "" || request.GetHolder() == "" {
		filled := &idemv1.BeginRequest{
			Ref: request.GetRef(), Fingerprints: request.GetFingerprints(), AttemptId: request.GetAttemptId(),
			Lease: request.GetLease(), Wait: request.GetWait(), Holder: request.GetHolder(), Mode: request.GetMode(),
		}
		if filled.AttemptId == "" {
			filled.AttemptId = uuid.NewString()
		}
		if filled.Holder == "" {
			filled.Holder = c.config.Holder
		}
		request = filled
	}
	response, _, err := c.begin(ctx, request)
	return response, err
}

// Complete reports success.
func (c *Client) Complete(ctx context.Context, request *idemv1.CompleteRequest) (*idemv1.CompleteResponse, error) {
	sent, err := resend(ctx, c, "Complete", c.pace(0), func(ctx context.Context) (*idemv1.CompleteResponse, error) {
		return c.ledger.Complete(ctx, request, c.callOptions()...)
	})
	return sent.response, err
}

// Fail reports a failure.
func (c *Client) Fail(ctx context.Context, request *idemv1.FailRequest) (*idemv1.FailResponse, error) {
	sent, err := resend(ctx, c, "Fail", c.pace(0), func(ctx context.Context) (*idemv1.FailResponse, error) {
		return c.ledger.Fail(ctx, request, c.callOptions()...)
	})
	return sent.response, err
}

// Extend renews a lease: once, which is what a caller without heartbeats of its own needs.
func (c *Client) Extend(ctx context.Context, request *idemv1.ExtendRequest) (*idemv1.ExtendResponse, error) {
	sent, err := c.extend(ctx, request)
	return sent.response, err
}

// Lookup shows an entry as it is now, and changes nothing.
func (c *Client) Lookup(ctx context.Context, ref Ref) (*idemv1.Entry, error) {
	if err := checkText(ref.proto()); err != nil {
		return nil, err
	}
	sent, err := resend(ctx, c, "Lookup", c.pace(0), func(ctx context.Context) (*idemv1.LookupResponse, error) {
		return c.ledger.Lookup(ctx, &idemv1.LookupRequest{Ref: ref.proto()}, c.callOptions()...)
	})
	return sent.response.GetEntry(), err
}

// begin also says when the answered try was sent, from which a lease counts.
func (c *Client) begin(ctx context.Context, request *idemv1.BeginRequest) (*idemv1.BeginResponse, time.Time, error) {
	if err := checkText(request.GetRef()); err != nil {
		return nil, time.Time{}, err
	}
	wait := request.GetWait().AsDuration()
	sent, err := resend(ctx, c, "Begin", c.pace(wait), func(ctx context.Context) (*idemv1.BeginResponse, error) {
		return c.ledger.Begin(ctx, request, c.callOptions()...)
	})
	return sent.response, sent.at, err
}

func (c *Client) extend(ctx context.Context, request *idemv1.ExtendRequest) (answered[*idemv1.ExtendResponse], error) {
	return resend(ctx, c, "Extend", c.pace(0), func(ctx context.Context) (*idemv1.ExtendResponse, error) {
		return c.ledger.Extend(ctx, request, c.callOptions()...)
	})
}

// pace is how calls are resent while somebody waits for the answer.
func (c *Client) pace(wait time.Duration) pace {
	return pace{try: c.config.TryTimeout + wait, limit: c.config.LedgerTimeout + wait, ceiling: resendMax, oddTries: oddTries}
}

// maxReceiveBytes lets the largest answer in, with the largest history around it: a daemon sends up to 16 MiB.
const maxReceiveBytes = 17 << 20

func (c *Client) callOptions() []grpc.CallOption {
	return []grpc.CallOption{grpc.MaxCallRecvMsgSize(maxReceiveBytes)}
}

func durationProto(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}
