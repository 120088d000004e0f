package clientlib

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

type claimContext struct{}

// ClaimFrom returns the claim under which a guarded handler runs, and whether there is one. A handler hands its fence
// downstream, and can ask whether an earlier attempt was abandoned.
func ClaimFrom(ctx context.Context) (Claim, bool) {
	claim, ok := ctx.Value(claimContext{}).(Claim)
	return claim, ok
}

// WithClaim gives a context the claim that ClaimFrom finds: for guards around handlers of other kinds than gRPC's.
func WithClaim(ctx context.Context, claim Claim) context.Context {
	return context.WithValue(ctx, claimContext{}, claim)
}

// UnaryServerInterceptor makes the interceptor that runs marked methods of a server once. It stands inside authentication,
// because it asks who the caller is, and outside whatever changes requests or answers. What is wrong with the guard, or with a
// method's marks, is an error now and not at the first call.
//
// It may be used by any number of servers.
func UnaryServerInterceptor(config Guard) (grpc.UnaryServerInterceptor, error) {
	g, err := newGuard(config, true)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		m := g.methods[info.FullMethod]
		if m == nil || g.Off {
			return handler(ctx, request)
		}
		return g.serve(ctx, m, request, handler)
	}, nil
}

// serverCall is one call of a guarded method.
type serverCall struct {
	guard   *guard
	method  *method
	request any
	handler grpc.UnaryHandler
	stream  *recordedStream
	// answer is what the handler returned, to be passed on as it is.
	answer any
}

func (g *guard) serve(ctx context.Context, m *method, request any, handler grpc.UnaryHandler) (any, error) {
	call := &serverCall{guard: g, method: m, request: request, handler: handler}
	incoming, _ := metadata.FromIncomingContext(ctx)
	result, err := call.do(ctx, incoming)
	var header, trailer metadata.MD
	if err == nil && result.Outcome == Replayed {
		answer := m.answer.New().Interface()
		if header, trailer, err = g.decode(result, answer); err == nil {
			call.answer = answer
		}
		if call.stream != nil {
			// The handler ran, lost its claim, and has sent metadata of its own.
			header, trailer = nil, nil
		}
	}
	marks := trailerOf(result, err)
	if len(incoming.Get(grpcAttemptName)) > 0 || len(incoming.Get(retryAttemptName)) > 0 {
		marks.Set(EarlierTriesTrailer, "true")
	}
	// Without a stream, as in a direct call from a test, there is nobody to tell.
	_ = grpc.SetHeader(ctx, header)
	_ = grpc.SetTrailer(ctx, metadata.Join(trailer, marks))
	if err != nil {
		return nil, err
	}
	return call.answer, nil
}

// do finds out which intent the call is, and has it run once.
func (c *serverCall) do(ctx context.Context, incoming metadata.MD) (Result, error) {
	g, m := c.guard, c.method
	message, ok := messageOf(c.request)
	if !ok {
		return c.refuse(ctx, notAMessage("request"))
	}
	key, ok, keyErr := metadataKey(incoming, g.KeyNames)
	if keyErr != nil {
		return c.refuse(ctx, keyErr)
	}
	if !ok {
		if key, ok = KeyFrom(ctx); !ok {
			key = m.key.in(message.ProtoReflect())
		}
	}
	if key == "" {
		if m.Keyed {
			return c.refuse(ctx, keyRequired(g.KeyNames[0], m.KeyField))
		}
		return c.bypass(ctx, "")
	}
	asked, err := g.fingerprint(ctx, m, message)
	if err != nil {
		return c.refuse(ctx, err)
	}
	ref, err := g.ref(ctx, m, key, message)
	if err != nil {
		return c.refuse(ctx, err)
	}
	return g.Ledger.Do(ctx, ref, asked, c.work, g.options(m, message))
}

// refuse refuses a call without asking the ledger; in a dry run it lets it pass.
func (c *serverCall) refuse(ctx context.Context, err error) (Result, error) {
	if !c.guard.DryRun {
		return c.guard.refused(ctx, c.method, err)
	}
	return c.bypass(ctx, Refused)
}

func (c *serverCall) bypass(ctx context.Context, wouldBe Outcome) (Result, error) {
	ctx, done := c.guard.Ledger.telemetry.call(ctx, c.method.Operation)
	result, err := Result{Outcome: Bypassed, WouldBe: wouldBe}, errPanicked // unless the handler comes back
	defer func() { done(result, err) }()
	c.answer, err = c.handler(ctx, c.request)
	return result, err
}

// work runs the handler under a claim.
func (c *serverCall) work(ctx context.Context, claim Claim) (Response, error) {
	ctx = WithKey(ctx, claim.Ref.Key)
	if claim.Attempt > 0 {
		ctx = WithClaim(ctx, claim)
	}
	if stream := grpc.ServerTransportStreamFromContext(ctx); stream != nil {
		c.stream = &recordedStream{ServerTransportStream: stream}
		ctx = grpc.NewContextWithServerTransportStream(ctx, c.stream)
	}
	answer, err := c.handler(ctx, c.request)
	c.answer = answer
	if err != nil {
		return Response{}, err
	}
	message, ok := messageOf(answer)
	if !ok {
		// gRPC will not send it either.
		return Response{}, notAMessage("answer")
	}
	header, trailer := c.stream.recorded()
	return c.encode(message, header, trailer)
}

func (c *serverCall) encode(message proto.Message, header, trailer metadata.MD) (Response, error) {
	return c.guard.encode(c.method, message, header, trailer)
}

// recordedStream notes the metadata that a handler sends, so that a replay can carry it.
type recordedStream struct {
	grpc.ServerTransportStream
	mu              sync.Mutex
	header, trailer metadata.MD
}

func (s *recordedStream) SetHeader(md metadata.MD) error {
	err := s.ServerTransportStream.SetHeader(md)
	s.note(&s.header, md, err)
	return err
}

func (s *recordedStream) SendHeader(md metadata.MD) error {
	err := s.ServerTransportStream.SendHeader(md)
	s.note(&s.header, md, err)
	return err
}

func (s *recordedStream) SetTrailer(md metadata.MD) error {
	err := s.ServerTransportStream.SetTrailer(md)
	s.note(&s.trailer, md, err)
	return err
}

func (s *recordedStream) note(where *metadata.MD, md metadata.MD, err error) {
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	*where = metadata.Join(*where, md)
}

func (s *recordedStream) recorded() (header, trailer metadata.MD) {
	if s == nil {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.header, s.trailer
}
