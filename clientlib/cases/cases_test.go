package cases

import (
	"sync"
	"testing"

	"github.com/idemd/idemd/clientlib"
)

func want(t *testing.T, what string, got, wanted reply) {
	t.Helper()
	if got != wanted {
		t.Errorf("%s was told %+v, want %+v", what, got, wanted)
	}
}

func wantBook(t *testing.T, s service, charges, total int) {
	t.Helper()
	if s.charges() != charges || s.total() != total {
		t.Errorf("the book has %d charges of %d in all, want %d of %d", s.charges(), s.total(), charges, total)
	}
}

func TestTheReplyNeverReachesTheClientAfterTheCommit(t *testing.T) {
	everyWay(t, func(t *testing.T, s service) {
		s.charge(t.Context(), "order-1", 500, true)
		wantBook(t, s, 1, 500)
		want(t, "the retry", s.charge(t.Context(), "order-1", 500, false), reply{total: 500, replayed: true})
		wantBook(t, s, 1, 500)
	})
}

func TestTwoIdenticalRequestsRace(t *testing.T) {
	everyWay(t, func(t *testing.T, s service) {
		const askers = 8
		replies := make([]reply, askers)
		var all sync.WaitGroup
		for i := range askers {
			all.Go(func() { replies[i] = s.charge(t.Context(), "order-1", 500, false) })
		}
		all.Wait()
		executed := 0
		for _, r := range replies {
			if !r.replayed {
				executed++
			}
			if r.total != 500 || r.refused != "" {
				t.Errorf("one was told %+v", r)
			}
		}
		if executed != 1 {
			t.Errorf("%d were told that theirs was the one that was executed", executed)
		}
		wantBook(t, s, 1, 500)
	})
}

func TestTheSameKeyWithAnotherPayload(t *testing.T) {
	everyWay(t, func(t *testing.T, s service) {
		s.charge(t.Context(), "order-1", 500, false)
		want(t, "a request for another amount", s.charge(t.Context(), "order-1", 700, false), reply{refused: clientlib.ReasonKeyReused})
		want(t, "the one whose key it is", s.charge(t.Context(), "order-1", 500, false), reply{total: 500, replayed: true})
		wantBook(t, s, 1, 500)
	})
}

func TestARecordExpiresAndAGenuineLateRetryArrives(t *testing.T) {
	everyWay(t, func(t *testing.T, s service) {
		s.charge(t.Context(), "order-1", 500, true)
		s.expire()
		// The answer is gone. To run it again would be a second charge; to say nothing would hide that it was made.
		want(t, "the late retry", s.charge(t.Context(), "order-1", 500, false), reply{refused: clientlib.ReasonExpired})
		want(t, "another intent", s.charge(t.Context(), "order-2", 100, false), reply{total: 600})
		wantBook(t, s, 2, 600)
	})
}

func TestTheReplayedAnswerMeansTheSameAsTheFirstAlthoughTheResourceHasChangedSince(t *testing.T) {
	everyWay(t, func(t *testing.T, s service) {
		want(t, "the first", s.charge(t.Context(), "order-1", 500, false), reply{total: 500})
		want(t, "another", s.charge(t.Context(), "order-2", 100, false), reply{total: 600})
		want(t, "the first one's retry", s.charge(t.Context(), "order-1", 500, false), reply{total: 500, replayed: true})
		wantBook(t, s, 2, 600)
	})
}
