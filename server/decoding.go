package server

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/ledger"
)

// A request that can not be decoded never gets as far as an interceptor in gRPC's hands, and is answered INTERNAL. Most often it is one whose
// text is not UTF-8, which C++, PHP and Ruby let callers send; that is the caller's fault and has to be refused as such, naming the field, after the
// caller was identified, and counted and logged as every call is.

// register registers a service so that its interceptors see undecodable requests too.
func register(server *grpc.Server, desc *grpc.ServiceDesc, impl any) {
	d := *desc
	d.Methods = make([]grpc.MethodDesc, len(desc.Methods))
	for i, m := range desc.Methods {
		d.Methods[i] = grpc.MethodDesc{MethodName: m.MethodName, Handler: decodingInside(m.Handler)}
	}
	server.RegisterService(&d, impl)
}

func decodingInside(handle grpc.MethodHandler) grpc.MethodHandler {
	return func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		var failed error
		decode = keepFailure(decode, &failed)
		if interceptor == nil {
			return handle(srv, ctx, decode, nil)
		}
		return handle(srv, ctx, decode, func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if failed != nil {
				ctx = context.WithValue(ctx, unreadableKey{}, failed)
			}
			return interceptor(ctx, req, info, next)
		})
	}
}

func keepFailure(decode func(any) error, failed *error) func(any) error {
	return func(into any) error {
		*failed = undecoded(decode(into))
		return nil
	}
}

type unreadableKey struct{}

// unreadable is why the request could not be decoded; nil if it could.
func unreadable(ctx context.Context) error {
	err, _ := ctx.Value(unreadableKey{}).(error)
	return err
}

// undecoded turns gRPC's error for an undecodable message into a refusal. Other errors stay as they are.
func undecoded(err error) error {
	st, _ := status.FromError(err)
	if st.Code() != codes.Internal || !strings.Contains(st.Message(), "unmarshal") {
		return err
	}
	for field, reason := range textFields {
		if strings.Contains(st.Message(), ErrorDomain+"."+field+" contains invalid UTF-8") {
			return &ledger.Refusal{Reason: reason, Message: wireField(field) + " must be valid UTF-8", Field: wireField(field), Rule: "must be valid UTF-8"}
		}
	}
	return &ledger.Refusal{Reason: ledger.ReasonInvalidRequest, Message: "the message can not be decoded: it is no valid protobuf, or holds text that is not UTF-8"}
}

// textFields are the texts that callers name things by.
var textFields = map[string]ledger.Reason{
	"EntryRef.tenant":         ledger.ReasonInvalidTenant,
	"EntryRef.operation":      ledger.ReasonInvalidOperation,
	"EntryRef.key":            ledger.ReasonInvalidKey,
	"Fingerprint.algorithm":   ledger.ReasonInvalidFingerprint,
	"BeginRequest.attempt_id": ledger.ReasonInvalidAttemptID,
	"BeginRequest.holder":     ledger.ReasonInvalidHolder,
}

// wireField is the field's path in the request, as BadRequest names it.
func wireField(field string) string {
	message, name, _ := strings.Cut(field, ".")
	switch message {
	case "EntryRef":
		return "ref." + name
	case "Fingerprint":
		return "fingerprints." + name
	default:
		return name
	}
}
