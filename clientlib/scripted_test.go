package clientlib

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/idemd/idemd/clientlib/fingerprint"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// scripted is a ledger that says what a test wants, and notes what it was asked and when.
type scripted struct {
	grpc.ClientConnInterface // no streams

	answer func(ctx context.Context, n int, request proto.Message) (proto.Message, error)

	mu    sync.Mutex
	asked []asked
}

type asked struct {
	rpc     string
	at      time.Time
	request proto.Message
}

// Invoke answers a call; n counts the calls of its RPC from 0.
func (s *scripted) Invoke(ctx context.Context, method string, request, reply any, _ ...grpc.CallOption) error {
	message, _ := request.(proto.Message)
	s.mu.Lock()
	rpc := method[strings.LastIndex(method, "/")+1:]
	n := 0
	for _, a := range s.asked {
		if a.rpc == rpc {
			n++
		}
	}
	s.asked = append(s.asked, asked{rpc, time.Now(), proto.CloneOf(message)})
	s.mu.Unlock()
	answer, err := s.answer(ctx, n, message)
	if err != nil {
		return err
	}
	if into, ok := reply.(proto.Message); ok {
		proto.Merge(into, answer)
	}
	return nil
}

func (s *scripted) of(rpc string) []asked {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []asked
	for _, a := range s.asked {
		if a.rpc == rpc {
			found = append(found, a)
		}
	}
	return found
}

// grant is what a scripted ledger answers where all is well.
func grant(request proto.Message, lease time.Duration) proto.Message {
	switch request.(type) {
	case *idemv1.BeginRequest:
		return &idemv1.BeginResponse{Outcome: &idemv1.BeginResponse_Granted{Granted: &idemv1.Claim{
			ClaimToken: []byte("token"), Attempt: 1, Fence: 101, Incarnation: 100, Lease: durationpb.New(lease),
		}}}
	case *idemv1.CompleteRequest:
		return &idemv1.CompleteResponse{}
	case *idemv1.FailRequest:
		return &idemv1.FailResponse{}
	case *idemv1.ExtendRequest:
		return &idemv1.ExtendResponse{Lease: durationpb.New(lease)}
	default:
		return &idemv1.LookupResponse{}
	}
}

func scriptedClient(t *testing.T, config Config, answer func(context.Context, int, proto.Message) (proto.Message, error)) (*Client, *scripted) {
	t.Helper()
	s := &scripted{answer: answer}
	config.Conn = s
	config.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	c, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return c, s
}

var (
	away    = status.Error(codes.Unavailable, "away")
	testRef = Ref{Operation: "op", Key: "the-key"}
	rerun   = Options{Abandoned: Rerun()}
)

func testPrint(t *testing.T) fingerprint.Fingerprint {
	f, err := fingerprint.Bytes([]byte("request"))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func respond(body string) Work {
	return func(context.Context, Claim) (Response, error) { return Response{Body: []byte(body)}, nil }
}
