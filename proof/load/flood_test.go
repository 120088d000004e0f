package load

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

const (
	floodCapacity = 500 // how many may wait
	floodTimes    = 10
	floodKeys     = 100
	// floodMemory bounds what the daemon may ever have had resident: several times what it has at rest, and far from what grows with the flood.
	floodMemory = 512 << 20
)

// TestAFloodIsRefusedAndSettlingGoesOn: ten times as many calls as the real daemon has room for. Those that find no room are refused with a reason and a
// time to retry, its memory stays bounded, every holder settles in the middle of it, and whoever got in is answered.
func TestAFloodIsRefusedAndSettlingGoesOn(t *testing.T) {
	t.Parallel()
	p := program.Start(t, nil, "--data-dir", t.TempDir(), "--max-waiters", strconv.Itoa(floodCapacity))
	client := idemv1.NewLedgerServiceClient(p.Conn())
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tokens := map[string][]byte{}
	for i := range floodKeys {
		key := fmt.Sprint("flooded ", i)
		out, err := client.Begin(ctx, request(key, 0))
		if err != nil || out.GetGranted() == nil {
			t.Fatalf("a claim on a fresh key: %v %v", out, err)
		}
		tokens[key] = out.GetGranted().GetClaimToken()
	}
	f := flood{t: t, client: client, enough: make(chan struct{})}
	f.start(ctx, tokens)
	select {
	case <-f.enough: // everything is taken, and more comes
	case <-ctx.Done():
		t.Fatal("nobody was refused")
	}
	for key, token := range tokens {
		_, err := client.Complete(ctx, &idemv1.CompleteRequest{Ref: entryRef(key), ClaimToken: token, Response: &idemv1.Response{Body: []byte("done")}})
		if err != nil {
			t.Errorf("in the flood, a Complete of %s: %v", key, err)
		}
	}
	f.waiting.Wait()
	t.Logf("%d calls: %d answered, %d refused; the daemon had at most %d MB resident", floodCapacity*floodTimes, f.answered.Load(), f.refused.Load(), peak(t, p.Pid())>>20)
	if f.answered.Load() < floodCapacity {
		t.Errorf("%d were answered, and there is room for %d", f.answered.Load(), floodCapacity)
	}
	if most := peak(t, p.Pid()); most > floodMemory {
		t.Errorf("the daemon had %d bytes resident", most)
	}
}

type flood struct {
	t                 *testing.T
	client            idemv1.LedgerServiceClient
	waiting           sync.WaitGroup
	answered, refused atomic.Int64
	enough            chan struct{} // closed when as many were refused as there is room for
}

// start sends all calls at once, to keys that are all claimed.
func (f *flood) start(ctx context.Context, tokens map[string][]byte) {
	for key := range tokens {
		for range floodCapacity * floodTimes / floodKeys {
			f.waiting.Go(func() {
				out, err := f.client.Begin(ctx, request(key, time.Minute))
				if err == nil {
					if string(out.GetCompleted().GetResponse().GetBody()) != "done" {
						f.t.Errorf("a Begin of %s was told %v", key, out)
					}
					f.answered.Add(1)
					return
				}
				if problem := untyped(err); problem != nil {
					f.t.Error(problem)
				}
				if f.refused.Add(1) == floodCapacity {
					close(f.enough)
				}
			})
		}
	}
}

// untyped says what a caller of a refused call was not told.
func untyped(err error) error {
	s := status.Convert(err)
	var reason string
	var retry bool
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			reason = d.GetReason()
		case *errdetails.RetryInfo:
			retry = d.GetRetryDelay().AsDuration() > 0
		}
	}
	if s.Code() != codes.ResourceExhausted || reason != "QUOTA" || !retry {
		return errors.New("refused without QUOTA and a time to retry: " + err.Error())
	}
	return nil
}

func entryRef(key string) *idemv1.EntryRef {
	return &idemv1.EntryRef{Tenant: "default", Operation: "load", Key: key}
}

func request(key string, wait time.Duration) *idemv1.BeginRequest {
	return &idemv1.BeginRequest{
		Ref: entryRef(key), AttemptId: uuid.NewString(), Wait: durationpb.New(wait), Lease: durationpb.New(10 * time.Minute),
		Fingerprints: []*idemv1.Fingerprint{{Algorithm: "test", Hash: make([]byte, 32)}}, Mode: idemv1.BeginMode_BEGIN_MODE_RUN,
	}
}

// peak is the most memory that a process ever had resident, in bytes; 0 where the system does not tell.
func peak(t *testing.T, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Logf("the daemon's memory is not looked at: %v", err)
		return 0
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kilobytes, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(value, "kB")), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kilobytes << 10
		}
	}
	return 0
}
