package server_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/server/servertest"
)

// bytesCodec sends bytes as they are.
type bytesCodec struct{}

func (bytesCodec) Marshal(v any) ([]byte, error) {
	b, ok := v.([]byte)
	if !ok {
		return nil, fmt.Errorf("%T is not bytes", v)
	}
	return b, nil
}

func (bytesCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = data
	return nil
}

func (bytesCodec) Name() string { return "proto" }

// Whatever bytes a caller sends as a request, it is answered, or told what was wrong with it: nothing is the daemon's own fault.
func FuzzRequests(f *testing.F) {
	methods := []string{
		idemv1.LedgerService_Begin_FullMethodName, idemv1.LedgerService_Complete_FullMethodName, idemv1.LedgerService_Fail_FullMethodName,
		idemv1.LedgerService_Extend_FullMethodName, idemv1.LedgerService_Lookup_FullMethodName, idemv1.AdminService_PutPolicy_FullMethodName,
		idemv1.AdminService_GetPolicy_FullMethodName, idemv1.AdminService_DeletePolicy_FullMethodName, idemv1.AdminService_ListPolicies_FullMethodName,
		idemv1.AdminService_ListEntries_FullMethodName, idemv1.AdminService_ResolveEntry_FullMethodName, idemv1.AdminService_GetStats_FullMethodName,
	}
	whole := beginRequest("fuzzed")
	ref := whole.GetRef()
	for n, request := range []proto.Message{
		whole, &idemv1.CompleteRequest{Ref: ref, ClaimToken: []byte("token"), Response: &idemv1.Response{Body: []byte("x"), BodyOmitted: true}},
		&idemv1.FailRequest{Ref: ref, ClaimToken: make([]byte, 48), Disposition: idemv1.Disposition_DISPOSITION_FINAL},
		&idemv1.ExtendRequest{Ref: ref, ClaimToken: []byte("token"), Lease: durationpb.New(-1)}, &idemv1.LookupRequest{Ref: ref},
		&idemv1.PutPolicyRequest{Policy: &idemv1.Policy{Tenant: "*", Operation: "o", KeyFormat: &idemv1.KeyFormat{Kind: idemv1.KeyFormatKind_KEY_FORMAT_KIND_PATTERN, Pattern: "("}, Lease: durationpb.New(time.Second)}},
		&idemv1.GetPolicyRequest{Tenant: "t"}, &idemv1.DeletePolicyRequest{Tenant: "*", Operation: "*"}, &idemv1.ListPoliciesRequest{},
		&idemv1.ListEntriesRequest{PageSize: -1, PageToken: "x"}, &idemv1.ResolveEntryRequest{Ref: ref, Attempt: -1, Reason: "r"}, &idemv1.GetStatsRequest{},
	} {
		raw, err := proto.Marshal(request)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(n), raw)
		f.Add(uint8(n), raw[:len(raw)/2])
	}
	f.Add(uint8(0), []byte("\x0a\x03\x0a\x01\xff"))
	conn := servertest.New(f, servertest.Options{}).Conn()
	f.Fuzz(func(t *testing.T, n uint8, raw []byte) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		method := methods[int(n)%len(methods)]
		var answer []byte
		err := conn.Invoke(ctx, method, raw, &answer, grpc.ForceCodec(bytesCodec{}))
		switch s := status.Convert(err); {
		case err == nil || s.Code() == codes.DeadlineExceeded: // it may ask to wait
		case s.Code() == codes.Internal || s.Code() == codes.Unknown || len(s.Details()) == 0:
			t.Errorf("%s answers %x with %v, details %v", method, raw, s, s.Details())
		case strings.Contains(s.Message(), "goroutine "):
			t.Errorf("%s tells its insides: %v", method, s)
		}
	})
}
