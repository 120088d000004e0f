package server_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// overASession is the test whose subtests make all calls of the ledger service on sessions.
const overASession = "TestOverASession/"

// TestOverASession has the tests of unary calls run once more with every call on a session: nothing may be otherwise there.
func TestOverASession(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T){
		"TestBeginGrants":                   TestBeginGrants,
		"TestResentBeginResumes":            TestResentBeginResumes,
		"TestAttemptIDIsACanonicalUUID":     TestAttemptIDIsACanonicalUUID,
		"TestBeginInProgress":               TestBeginInProgress,
		"TestWaitingBeginGetsTheAnswer":     TestWaitingBeginGetsTheAnswer,
		"TestWaitIsCutToTheDeadline":        TestWaitIsCutToTheDeadline,
		"TestMaxWaitZeroMeansNobodyWaits":   TestMaxWaitZeroMeansNobodyWaits,
		"TestCompleteTellsTimes":            TestCompleteTellsTimes,
		"TestFailDispositions":              TestFailDispositions,
		"TestFailDetailsOmittedByTheClient": TestFailDetailsOmittedByTheClient,
		"TestExtendRenews":                  TestExtendRenews,
		"TestRecoverGetsTheEvidence":        TestRecoverGetsTheEvidence,
		"TestLookupShowsTheHistory":         TestLookupShowsTheHistory,
		"TestTimesThroughAnEntrysLife":      TestTimesThroughAnEntrysLife,
		"TestExpiredEntryHasNoAnswer":       TestExpiredEntryHasNoAnswer,
		"TestReportOutlivesItsCaller":       TestReportOutlivesItsCaller,
		"TestC12":                           TestC12_CompleteAgainstAShortDeadline,
		"TestC30":                           TestC30_EmptyAnswersAreAnswers,
		"TestC31":                           TestC31_AnswerOverTheLimit,
		"TestC32":                           TestC32_EveryCodeIsReplayedIdentically,
		"TestC33":                           TestC33_MetadataKeepsOrderAndMultiplicity,
		"TestC34":                           TestC34_ReplaysSayThatTheyAre,
		"TestC50":                           TestC50_NobodyGetsAnothersAnswer,
		"TestC52":                           TestC52_KeysAreKeptExactlyOrRefused,
		"TestC53":                           TestC53_MissingNamesAreNamed,
		"TestSecretsStayOut":                TestSecretsStayOutOfLogsMetricsAndSpans,
		"TestEveryReasonOnTheWire":          TestEveryReasonOnTheWire,
		"TestCallsUnderWayAreBounded":       TestCallsUnderWayAreBounded,
		"TestDrainAnswersWaiters":           TestDrainAnswersWaiters,
		"TestDrainLetsReportsEnd":           TestDrainLetsReportsEnd,
		"TestDrainCutsOffWhatDoesNotEnd":    TestDrainCutsOffWhatDoesNotEnd,
	} {
		t.Run(name, test)
	}
}

// itself is how many calls under way a session is by itself, beside those that it carries.
func itself(t testing.TB) int {
	if strings.HasPrefix(t.Name(), overASession) {
		return 1
	}
	return 0
}

// sessionCalls is a caller who makes each call on a session: one stream for all that bring the same metadata.
type sessionCalls struct {
	idemv1.LedgerServiceClient
	ctx context.Context // of the streams

	mu      sync.Mutex
	streams map[string]*openSession
}

func onSessions(t testing.TB, plain idemv1.LedgerServiceClient) idemv1.LedgerServiceClient {
	if !strings.HasPrefix(t.Name(), overASession) {
		return plain
	}
	return &sessionCalls{LedgerServiceClient: plain, ctx: context.Background(), streams: map[string]*openSession{}}
}

// openSession is one stream, and who waits for what on it.
type openSession struct {
	grpc.BidiStreamingClient[idemv1.SessionRequest, idemv1.SessionResponse]

	mu      sync.Mutex
	last    uint64
	pending map[uint64]chan *idemv1.SessionResult
	broken  error
}

// openOn opens a stream and reads its results until it ends.
func openOn(ctx context.Context, client idemv1.LedgerServiceClient) (*openSession, error) {
	stream, err := client.Session(ctx)
	if err != nil {
		return nil, err
	}
	s := &openSession{BidiStreamingClient: stream, pending: map[uint64]chan *idemv1.SessionResult{}}
	go s.read()
	return s, nil
}

func (s *openSession) read() {
	for {
		message, err := s.Recv()
		s.mu.Lock()
		for _, r := range message.GetResults() {
			if waiting, ok := s.pending[r.GetId()]; ok {
				waiting <- r
				delete(s.pending, r.GetId())
			}
		}
		if err != nil {
			s.broken = err
			for id, waiting := range s.pending {
				close(waiting)
				delete(s.pending, id)
			}
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
	}
}

// start sends one call and returns where its result will be. It is closed without one where the stream ends first.
func (s *openSession) start(call *idemv1.SessionCall) (<-chan *idemv1.SessionResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return nil, s.broken
	}
	s.last++
	call.Id = s.last
	result := make(chan *idemv1.SessionResult, 1)
	s.pending[call.Id] = result
	return result, s.Send(&idemv1.SessionRequest{Calls: []*idemv1.SessionCall{call}})
}

func (s *openSession) cancel(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken == nil {
		_ = s.Send(&idemv1.SessionRequest{CancelIds: []uint64{id}})
	}
}

// metadataText is metadata as text: its own String leaves values out.
func metadataText(md metadata.MD) string { return fmt.Sprint(map[string][]string(md)) }

// of returns the stream for calls with the metadata of ctx.
func (c *sessionCalls) of(ctx context.Context) (*openSession, error) {
	md, _ := metadata.FromOutgoingContext(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.streams[metadataText(md)]; s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.broken == nil {
			return s, nil
		}
	}
	s, err := openOn(metadata.NewOutgoingContext(c.ctx, md), c.LedgerServiceClient)
	if err == nil {
		c.streams[metadataText(md)] = s
	}
	return s, err
}

// do makes one call as a unary stub would: it returns when there is a result or ctx ends.
func (c *sessionCalls) do(ctx context.Context, call *idemv1.SessionCall) (*idemv1.SessionResult, error) {
	if deadline, ok := ctx.Deadline(); ok {
		call.Timeout = durationpb.New(max(time.Until(deadline), 0))
	}
	s, err := c.of(ctx)
	if err != nil {
		return nil, err
	}
	results, err := s.start(call)
	if err != nil {
		return nil, err
	}
	select {
	case r, ok := <-results:
		if !ok {
			return nil, s.broken
		}
		if r.GetError() != nil {
			return nil, status.ErrorProto(r.GetError())
		}
		return r, nil
	case <-ctx.Done():
		s.cancel(call.GetId())
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

func (c *sessionCalls) Begin(ctx context.Context, req *idemv1.BeginRequest, _ ...grpc.CallOption) (*idemv1.BeginResponse, error) {
	r, err := c.do(ctx, &idemv1.SessionCall{Request: &idemv1.SessionCall_Begin{Begin: req}})
	return r.GetBegin(), err
}

func (c *sessionCalls) Complete(ctx context.Context, req *idemv1.CompleteRequest, _ ...grpc.CallOption) (*idemv1.CompleteResponse, error) {
	r, err := c.do(ctx, &idemv1.SessionCall{Request: &idemv1.SessionCall_Complete{Complete: req}})
	return r.GetComplete(), err
}

func (c *sessionCalls) Fail(ctx context.Context, req *idemv1.FailRequest, _ ...grpc.CallOption) (*idemv1.FailResponse, error) {
	r, err := c.do(ctx, &idemv1.SessionCall{Request: &idemv1.SessionCall_Fail{Fail: req}})
	return r.GetFail(), err
}

func (c *sessionCalls) Extend(ctx context.Context, req *idemv1.ExtendRequest, _ ...grpc.CallOption) (*idemv1.ExtendResponse, error) {
	r, err := c.do(ctx, &idemv1.SessionCall{Request: &idemv1.SessionCall_Extend{Extend: req}})
	return r.GetExtend(), err
}

func (c *sessionCalls) Lookup(ctx context.Context, req *idemv1.LookupRequest, _ ...grpc.CallOption) (*idemv1.LookupResponse, error) {
	r, err := c.do(ctx, &idemv1.SessionCall{Request: &idemv1.SessionCall_Lookup{Lookup: req}})
	return r.GetLookup(), err
}
