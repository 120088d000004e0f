package httpidem

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/idemd/idemd/clientlib"
)

// Middleware makes a middleware that carries out guarded requests once. What is wrong with the configuration is an error now and
// not at the first request. It may be put around any number of handlers, inside authentication, and outside of whatever
// compresses answers or turns them into something else.
//
// A handler finds its claim with clientlib.ClaimFrom and its key with clientlib.KeyFrom, in the request's context. A panic
// gives the claim up and goes on.
func Middleware(config Config) (func(http.Handler) http.Handler, error) {
	g, err := newGuard(config)
	if err != nil {
		return nil, err
	}
	return func(next http.Handler) http.Handler {
		if g.Off {
			return next
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !slices.Contains(g.Methods, r.Method) {
				next.ServeHTTP(w, r)
				return
			}
			operation, known := g.operationOf(r)
			route := g.of(operation)
			if known && operation == "" || route.Unguarded {
				next.ServeHTTP(w, r)
				return
			}
			x := &exchange{guard: g, next: next, w: w, request: r, operation: operation, route: route}
			x.serve(known)
		})
	}, nil
}

// operationOf names the route. known: somebody said so, also where it is none to guard.
func (g *guard) operationOf(r *http.Request) (operation string, known bool) {
	if g.Operation != nil {
		return g.Operation(r), true
	}
	operation = withMethod(r.Method, r.Pattern)
	return operation, operation != ""
}

// exchange is one guarded request and its answer.
type exchange struct {
	guard     *guard
	next      http.Handler
	w         http.ResponseWriter
	request   *http.Request
	operation string
	route     Route

	body    []byte
	capture *capture
}

func (x *exchange) serve(known bool) {
	g := x.guard
	if !known {
		g.Logger.ErrorContext(x.request.Context(), "httpidem: no operation: the guard stands outside of the mux, or there is none")
		x.refuse(&clientlib.Error{Code: codes.Internal, Reason: ReasonNoOperation, FromServer: true,
			Message: "the guard cannot tell which route this is; nothing was done"})
		return
	}
	key, present, err := keyOf(x.request.Header, g.Header, g.QuotedOnly)
	if err == nil && !present {
		if x.route.Keys == Optional {
			x.bypass("")
			return
		}
		err = keyRequired(g.Header)
	}
	if err != nil {
		x.refuse(err)
		return
	}
	principal, err := x.principal()
	if err != nil {
		x.refuse(err)
		return
	}
	if x.body, err = readBody(x.request, g.MaxBodyBytes); err != nil {
		x.refuseBody(err)
		return
	}
	ref := clientlib.Ref{Operation: x.operation, Key: key}
	if g.Tenant != nil {
		var tenantErr error
		if ref.Tenant, tenantErr = g.Tenant(x.request); tenantErr != nil {
			x.refuse(notNamed("the tenant of this request could not be named"))
			return
		}
	}
	x.do(ref, principal)
}

func (x *exchange) do(ref clientlib.Ref, principal string) {
	g := x.guard
	x.capture = newCapture(x.w, g.MaxResponseBytes)
	options := clientlib.Options{
		Abandoned: x.route.Abandoned, Lease: x.route.Lease, Wait: x.route.Wait, FailOpen: x.route.FailOpen, DryRun: g.DryRun,
		Request: restore(x.request, x.body),
		// What a status means was decided before it became an error; of itself a gRPC code says nothing here.
		Classes: clientlib.Classes{},
	}
	asked := g.fingerprintOf(x.request, principal, x.body)
	result, err := g.Ledger.Do(x.request.Context(), ref, asked, x.work, options)
	x.answer(result, err)
}

// principal names the caller; "" where callers are not told apart.
func (x *exchange) principal() (string, *clientlib.Error) {
	if x.guard.Principal.anonymous {
		return "", nil
	}
	name, err := x.guard.Principal.name(x.request)
	if err != nil {
		return "", notNamed("the caller could not be named")
	}
	if name == "" {
		return "", notNamed("nobody is named as the caller; the guard stands inside authentication")
	}
	return name, nil
}

func notNamed(message string) *clientlib.Error {
	return &clientlib.Error{Code: codes.Unauthenticated, Reason: clientlib.ReasonNoPrincipal, Message: message, FromServer: true}
}

// refuseBody refuses a request whose body has no fingerprint, or lets it pass where that was chosen.
func (x *exchange) refuseBody(err *clientlib.Error) {
	if err.Reason == ReasonBodyAlreadyRead {
		x.guard.Logger.ErrorContext(x.request.Context(), "httpidem: a body was read before the guard saw it, or replaced without its length",
			"operation", x.operation)
	}
	if err.Reason == ReasonBodyTooLarge && x.guard.PassTooLarge {
		x.bypass("")
		return
	}
	x.refuse(err)
}

// refuse refuses a request without asking the ledger; in a dry run it lets it pass.
func (x *exchange) refuse(err *clientlib.Error) {
	if x.guard.DryRun {
		x.bypass(clientlib.Refused)
		return
	}
	x.mark(clientlib.Refused)
	problem, retryAfter := x.guard.refused(err)
	sendProblem(x.w, problem, retryAfter)
}

// bypass has the request carried out without a guard, with whatever was read of its body.
func (x *exchange) bypass(wouldBe clientlib.Outcome) {
	x.mark(clientlib.Bypassed)
	if wouldBe != "" {
		x.w.Header().Set(WouldBeHeader, string(wouldBe))
	}
	r := x.request
	if len(x.body) > 0 {
		r = restore(r, nil)
		r.Body = &restored{Reader: io.MultiReader(bytes.NewReader(x.body), x.request.Body), original: x.request.Body}
	}
	x.next.ServeHTTP(x.w, r)
}

func (x *exchange) mark(outcome clientlib.Outcome) { x.w.Header().Set(OutcomeHeader, string(outcome)) }

// errStream is why a claim is given up although the status was one of success.
var errStream = errors.New("httpidem: the answer could not be sent whole, so the handler may have stopped half-way")

// work runs the handler under a claim, and says what its answer means.
func (x *exchange) work(ctx context.Context, claim clientlib.Claim) (clientlib.Response, error) {
	c, word := x.capture, &spoken{}
	ctx = context.WithValue(clientlib.WithKey(ctx, claim.Ref.Key), spokenContext{}, word)
	c.outcome = string(clientlib.Bypassed)
	if claim.Attempt > 0 {
		ctx = clientlib.WithClaim(ctx, claim)
		c.outcome = string(clientlib.Executed)
	}
	x.next.ServeHTTP(c, restore(x.request, x.body).WithContext(ctx))
	c.finish()
	if c.hijacked {
		kept := clientlib.Response{Code: http.StatusSwitchingProtocols}
		omitBody(&kept)
		if word.get() == retryable {
			return kept, clientlib.NothingHappened(failureOf(kept, false))
		}
		return kept, nil
	}
	// Of an answer that was held back the client has seen nothing yet, so it cannot have stopped the handler by going away.
	broke := c.passing && (c.failed != nil || ctx.Err() != nil)
	kept := x.kept()
	switch x.route.Classes.settles(c, word.get(), broke) {
	case completed:
		return kept, nil
	case final:
		return clientlib.Response{}, clientlib.Final(failureOf(kept, true))
	case retryable:
		return clientlib.Response{}, clientlib.NothingHappened(failureOf(kept, false))
	default:
		if broke && c.status < 400 {
			return clientlib.Response{}, errStream
		}
		return clientlib.Response{}, failureOf(kept, false)
	}
}

// kept is what the ledger keeps of the handler's answer.
func (x *exchange) kept() clientlib.Response {
	c := x.capture
	answer := Answer{Status: c.status, Header: c.head, Body: c.body.Bytes()}
	kept := record(answer, c.trailer(), x.guard.ReplayHeaders)
	kept.ResourceType, kept.ResourceID = x.guard.Pointer(x.request, answer)
	if c.passing && hasBody(c.status) {
		omitBody(&kept)
		kept.BodySizeBytes, kept.BodySHA256 = c.size, c.sum.Sum(nil)
	}
	return kept
}

func omitBody(kept *clientlib.Response) {
	kept.Body, kept.BodyOmitted = nil, true
}

// answer sends what the client is to get: what the handler answered, the answer of then, or why there is none.
func (x *exchange) answer(result clientlib.Result, err error) {
	c := x.capture
	if c.committed() {
		return // it has been sent, and cannot be taken back, even where the claim was lost
	}
	executed := result.Outcome == clientlib.Executed || result.Outcome == clientlib.Bypassed
	if executed && c.status != 0 && (err == nil || isWork(err)) {
		c.send(string(result.WouldBe))
		return
	}
	c.discard()
	x.mark(result.Outcome)
	header := x.w.Header()
	if !result.OriginalTime.IsZero() {
		header.Set(OriginalTimeHeader, result.OriginalTime.UTC().Format(time.RFC3339Nano))
	}
	switch {
	case err == nil:
		header.Set(ReplayedHeader, "true")
		replay(x.w, result.Response)
	case result.Outcome == clientlib.ReplayedAsFailure:
		header.Set(ReplayedHeader, "true")
		x.replayFailure(err)
	default:
		problem, retryAfter := x.guard.refused(problemOf(err))
		sendProblem(x.w, problem, retryAfter)
	}
}

func (x *exchange) replayFailure(err error) {
	kept, reason, message := answerOf(err)
	if reason == "" {
		replay(x.w, kept)
		return
	}
	sendProblem(x.w, Problem{
		Type: x.guard.problemType(reason), Title: problemKinds[reason].title, Status: int(kept.Code), Detail: message, Reason: reason,
	}, 0)
}
