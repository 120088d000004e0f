package sim

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// An auditor that never complains proves nothing: each of its complaints is raised here by what it is about.

func claimOf(incarnation int64, attempt int32) *idemv1.Claim {
	return &idemv1.Claim{
		Incarnation: incarnation, Attempt: attempt, Fence: incarnation + int64(attempt), Lease: durationpb.New(lease),
		LeaseExpireTime: timestamppb.New(time.Now().Add(lease)),
	}
}

func timesOf(settled time.Time, kept time.Duration) *idemv1.EntryTimes {
	return &idemv1.EntryTimes{
		SettleTime: timestamppb.New(settled), ExpireTime: timestamppb.New(settled.Add(kept)), TombstoneExpireTime: timestamppb.New(settled.Add(kept + tombstone)),
	}
}

// carriedOut is a key that was granted, had its effect and is answered.
func carriedOut(a *auditor) {
	a.granted("k", claimOf(1000, 1), time.Now(), true)
	a.happened("k", effect{1000, 1001, 1, "done"}, false)
	a.reporting("k", 1001)
	a.settled("k", 1000, "done", timesOf(time.Now(), retention))
}

func TestTheAuditorNamesWhatIsBroken(t *testing.T) {
	for name, fault := range map[string]func(a *auditor){
		effectWithoutGrant: func(a *auditor) { a.happened("k", effect{1000, 1001, 1, "done"}, false) },
		grantWithoutRow:    func(a *auditor) { a.granted("k", claimOf(1000, 1), time.Now(), false) },
		twoLiveClaims: func(a *auditor) {
			a.granted("k", claimOf(1000, 1), time.Now(), true)
			a.granted("k", claimOf(1000, 2), time.Now(), true)
		},
		changedAnswer: func(a *auditor) {
			carriedOut(a)
			a.replayed("k", declined)
		},
		changedAnswer + " (granted again)": func(a *auditor) {
			carriedOut(a)
			a.granted("k", claimOf(1000, 2), time.Now(), true)
		},
		earlyForgetting: func(a *auditor) {
			carriedOut(a)
			a.granted("k", claimOf(9000, 1), time.Now(), true)
		},
		earlyForgetting + " (refused)": func(a *auditor) {
			carriedOut(a)
			a.refused("k", "EXPIRED")
		},
		earlyForgetting + " (promised too little)": func(a *auditor) {
			a.granted("k", claimOf(1000, 1), time.Now(), true)
			a.happened("k", effect{1000, 1001, 1, "done"}, false)
			a.settled("k", 1000, "done", timesOf(time.Now(), retention-time.Second))
		},
		unwarnedEffect: func(a *auditor) {
			a.granted("k", claimOf(1000, 1), time.Now(), true)
			a.happened("k", effect{1000, 1001, 1, "done"}, true)
			<-time.After(2 * lease)
			a.granted("k", claimOf(1000, 2), time.Now(), true)
			a.happened("k", effect{1000, 1002, 2, "done again"}, true)
		},
		answerOfNothing: func(a *auditor) {
			a.granted("k", claimOf(1000, 1), time.Now(), true)
			a.replayed("k", "done")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAuditor()
				fault(a)
				want, _, _ := strings.Cut(name, " (")
				if got := strings.Join(a.complaints, "\n"); !strings.HasPrefix(got, want+":") {
					t.Errorf("the auditor says %q", got)
				}
			})
		})
	}
}

func TestTheAuditorHasNothingAgainstWhatIsRight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuditor()
		carriedOut(a)
		a.replayed("k", "done")
		<-time.After(retention + tombstone)
		a.refused("k", "EXPIRED")
		a.granted("k", claimOf(time.Now().UnixMicro(), 1), time.Now(), true)
		if len(a.complaints) > 0 {
			t.Error(a.complaints)
		}
	})
}
