package clientlib

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// UnaryClientInterceptor makes the interceptor that makes calls of marked methods once. It stands outside a retry
// interceptor, so that all retries are of one intent:
//
//	grpc.WithChainUnaryInterceptor(guard, retry.UnaryClientInterceptor(...))
//
// Where the retry has to stand outside, give each call a key ([WithKey], or a key_field), or have a
// [UnaryClientKeyInterceptor] stand outside of both. gRPC's own retries, by service config, are always inside.
//
// What is wrong with the guard, or with a method's marks, is an error now and not at the first call. It may be used by any
// number of connections.
func UnaryClientInterceptor(config Guard) (grpc.UnaryClientInterceptor, error) {
	g, err := newGuard(config, false)
	if err != nil {
		return nil, err
	}
	return func(
		ctx context.Context, name string, request, reply any, conn *grpc.ClientConn, invoker grpc.UnaryInvoker, options ...grpc.CallOption,
	) error {
		m := g.methods[name]
		if m == nil || g.Off {
			return invoker(ctx, name, request, reply, conn, options...)
		}
		call := &clientCall{guard: g, method: m, request: request, reply: reply, conn: conn, invoker: invoker, options: options}
		return call.run(ctx)
	}, nil
}

// UnaryClientKeyInterceptor makes the small outer half of a client's guard: it only gives calls of guarded methods a fresh key
// where they have none. Put it outside a retry interceptor that has to stand outside the guard:
//
//	grpc.WithChainUnaryInterceptor(keys, retry.UnaryClientInterceptor(...), guard)
func UnaryClientKeyInterceptor(config Guard) (grpc.UnaryClientInterceptor, error) {
	config.SelfTest = false // the guard itself does it
	g, err := newGuard(config, false)
	if err != nil {
		return nil, err
	}
	return func(
		ctx context.Context, name string, request, reply any, conn *grpc.ClientConn, invoker grpc.UnaryInvoker, options ...grpc.CallOption,
	) error {
		if m := g.methods[name]; m != nil && !g.Off {
			// What is wrong with the key, the guard itself will say.
			if key, err := g.givenKey(ctx, m, request); err == nil && key == "" {
				ctx = WithKey(ctx, uuid.NewString())
			}
		}
		return invoker(ctx, name, request, reply, conn, options...)
	}, nil
}

// givenKey is the key that the caller gave. Empty: none.
func (g *guard) givenKey(ctx context.Context, m *method, request any) (string, error) {
	outgoing, _ := metadata.FromOutgoingContext(ctx)
	key, ok, err := metadataKey(outgoing, g.sentNames())
	if err != nil {
		return "", err
	}
	if ok {
		return key, nil
	}
	if key, ok := KeyFrom(ctx); ok {
		if !travels(key) {
			return "", badKey(g.KeyNames[0], travelRule)
		}
		return key, nil
	}
	if message, ok := messageOf(request); ok {
		return m.key.in(message.ProtoReflect()), nil
	}
	return "", nil
}

// sentNames are the names under which a key may be in outgoing metadata: those of the guard, and that of WithKey.
func (g *guard) sentNames() []string {
	return append(append([]string{}, g.KeyNames...), DefaultKeyName)
}

// clientCall is one call of a guarded method.
type clientCall struct {
	guard          *guard
	method         *method
	request, reply any
	conn           *grpc.ClientConn
	invoker        grpc.UnaryInvoker
	options        []grpc.CallOption
	// called: the call was made, so that the caller's options are filled.
	called bool
}

func (c *clientCall) run(ctx context.Context) error {
	result, err := c.do(ctx)
	if c.called {
		if err == nil && result.Outcome == Replayed {
			// The claim was lost meanwhile, and another attempt's answer counts.
			_, _, err = c.replay(result)
		}
		return unwrapClass(err)
	}
	var header, trailer metadata.MD
	if err == nil {
		header, trailer, err = c.replay(result)
	}
	fillCallOptions(c.options, header, metadata.Join(trailer, trailerOf(result, err)), err)
	return err
}

// do finds out which intent the call is, and has it made once.
func (c *clientCall) do(ctx context.Context) (Result, error) {
	g, m := c.guard, c.method
	message, ok := messageOf(c.request)
	if !ok {
		return c.refuse(ctx, notAMessage("request"))
	}
	key, err := g.givenKey(ctx, m, c.request)
	if err != nil {
		return c.refuse(ctx, err)
	}
	if key == "" {
		if outgoing, _ := metadata.FromOutgoingContext(ctx); len(outgoing.Get(retryAttemptName)) > 0 {
			return c.refuse(ctx, retriedWithoutKey(g.KeyNames[0]))
		}
		key = uuid.NewString()
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

// retriedWithoutKey stops the second try of a call whose first one had a key that is gone: with another key it would be
// another intent.
func retriedWithoutKey(name string) *Error {
	e := keyRequired(name, "")
	e.Message = "a retry interceptor stands outside the guard and retries a call without a key, which would be done twice: " +
		"put the guard outside the retry, or a UnaryClientKeyInterceptor outside of both, or give the call a key with WithKey"
	return e
}

// refuse refuses a call without asking the ledger; in a dry run it lets it pass.
func (c *clientCall) refuse(ctx context.Context, err error) (Result, error) {
	if !c.guard.DryRun {
		return c.guard.refused(ctx, c.method, err)
	}
	c.called = true
	ctx, done := c.guard.Ledger.telemetry.call(ctx, c.method.Operation)
	result := Result{Outcome: Bypassed, WouldBe: Refused}
	err = errPanicked // unless the call comes back
	defer func() { done(result, err) }()
	err = c.invoker(ctx, c.method.Method, c.request, c.reply, c.conn, c.options...)
	return result, err
}

// work makes the call.
func (c *clientCall) work(ctx context.Context, claim Claim) (Response, error) {
	c.called = true
	ctx = withOutgoingKey(ctx, claim.Ref.Key, c.guard.sentNames())
	var header, trailer metadata.MD
	var tries atomic.Int32 // a retry interceptor inside makes several
	options := append(append([]grpc.CallOption{}, c.options...), grpc.Header(&header), grpc.Trailer(&trailer),
		grpc.OnFinish(func(error) { tries.Add(1) }))
	if err := c.invoker(ctx, c.method.Method, c.request, c.reply, c.conn, options...); err != nil {
		return Response{}, c.judge(err, trailer, int(tries.Load()))
	}
	answer, ok := messageOf(c.reply)
	if !ok {
		return Response{}, notAMessage("answer")
	}
	return c.guard.encode(c.method, answer, header, trailer)
}

// judge puts a class to an error where the other side's trailer knows better than its code. What was not done by the word of
// the code alone may have been done all the same.
func (c *clientCall) judge(err error, trailer metadata.MD, tries int) error {
	var marked *classified
	if errors.As(err, &marked) {
		return err // an interceptor inside has said so
	}
	switch {
	case didNotRun(trailer, tries):
		return NothingHappened(err)
	case wasReplayedFailure(trailer):
		return Final(err)
	case c.guard.options(c.method, nil).Classes.ClassOf(err) == Retryable:
		return classify(err, Unknown)
	default:
		return err
	}
}

// replay gives the caller the answer of then.
func (c *clientCall) replay(result Result) (header, trailer metadata.MD, err error) {
	answer, ok := messageOf(c.reply)
	if !ok {
		return nil, nil, notAMessage("answer")
	}
	return c.guard.decode(result, answer)
}

// unwrapClass takes off what judge put on, so that the caller gets the very error of the call.
func unwrapClass(err error) error {
	for {
		marked, ok := err.(*classified) //nolint:errorlint // only the outermost is ours
		if !ok {
			return err
		}
		err = marked.error
	}
}
