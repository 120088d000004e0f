package storetest

import (
	"strings"

	"github.com/idemd/idemd/ledger"
)

// judge is one way to judge a guard.
type judge func(g ledger.Guard, e *ledger.Entry, now ledger.Time) bool

// judging breaks how guards of one kind are judged; the others are judged as they should be.
func judging(kind ledger.GuardKind, j judge) func(*brokenStore) {
	return func(s *brokenStore) {
		s.holds = func(_ *brokenStore, w ledger.Write, e *ledger.Entry, now ledger.Time) bool {
			if w.Guard.Kind == kind {
				return j(w.Guard, e, now)
			}
			return w.Guard.Holds(e, now)
		}
	}
}

// forgiving breaks the claim guard by changing the row, or the guard, that it is judged on.
func forgiving(change func(g *ledger.Guard, e *ledger.Entry, now ledger.Time)) func(*brokenStore) {
	return judging(ledger.GuardClaim, func(g ledger.Guard, e *ledger.Entry, now ledger.Time) bool {
		if e == nil {
			return false
		}
		e = e.Clone()
		change(&g, e, now)
		return g.Holds(e, now)
	})
}

// also breaks the claim guard by one more condition.
func also(condition judge) func(*brokenStore) {
	return judging(ledger.GuardClaim, func(g ledger.Guard, e *ledger.Entry, now ledger.Time) bool {
		return g.Holds(e, now) && condition(g, e, now)
	})
}

func guardDefects() []defect {
	return append(rowGuardDefects(), claimGuardDefects()...)
}

func rowGuardDefects() []defect {
	return []defect{
		{"takes no fresh rows", judging(ledger.GuardAbsent, func(ledger.Guard, *ledger.Entry, ledger.Time) bool { return false }),
			[]string{"an absent guard holds where there is no row"}},
		{"upserts fresh rows", judging(ledger.GuardAbsent, func(ledger.Guard, *ledger.Entry, ledger.Time) bool { return true }),
			[]string{"an absent guard does not hold where there is a row, whatever its state"}},
		{"takes a closed row for none", judging(ledger.GuardAbsent, func(_ ledger.Guard, e *ledger.Entry, _ ledger.Time) bool {
			return e == nil || e.Closed
		}), []string{"an absent guard does not hold where there is a row, whatever its state"}},
		{"writes over pending rows only", judging(ledger.GuardRevision, func(g ledger.Guard, e *ledger.Entry, now ledger.Time) bool {
			return g.Holds(e, now) && e.State == ledger.Pending
		}), []string{"a revision guard holds for the row as it was read, whatever its state"}},
		{"ignores the revision", judging(ledger.GuardRevision, func(g ledger.Guard, e *ledger.Entry, _ ledger.Time) bool {
			return e != nil && e.Incarnation == g.Incarnation
		}), []string{
			"a revision guard does not hold for an older or a newer revision", "a revision guard holds only once for the same revision",
		}},
		{"ignores the incarnation of a revision", judging(ledger.GuardRevision, func(g ledger.Guard, e *ledger.Entry, _ ledger.Time) bool {
			return e != nil && e.Revision == g.Revision
		}), []string{
			"a revision guard does not hold for the same revision of another incarnation",
			"a revision guard does not hold for a stranger's row at the same revision, written after the row was forgotten",
		}},
		{"upserts over revisions", judging(ledger.GuardRevision, func(g ledger.Guard, e *ledger.Entry, now ledger.Time) bool {
			return e == nil || g.Holds(e, now)
		}), []string{"a revision guard does not hold where there is no row"}},
		{"writes over no lapsed row", judging(ledger.GuardRevision, func(g ledger.Guard, e *ledger.Entry, now ledger.Time) bool {
			return g.Holds(e, now) && now < e.DueAt
		}), []string{"a revision guard holds for a lapsed row: it does not look at the clock"}},
		{"joins the parts of a scope by a colon", func(s *brokenStore) {
			s.holds = uniqueBy(func(r ledger.Ref) string { return r.Tenant + ":" + r.Operation + ":" + r.Key })
		}, []string{"scopes that differ only in where a separator stands are different entries"}},
		{"folds the case of texts", func(s *brokenStore) {
			s.holds = uniqueBy(func(r ledger.Ref) string {
				return strings.ToLower(r.Tenant + "\x00" + r.Operation + "\x00" + r.Key)
			})
		}, []string{"texts that some collation takes for equal are different entries"}},
		{"allows one row per tenant, operation and key", func(s *brokenStore) {
			s.holds = uniqueBy(func(r ledger.Ref) string { return r.Tenant + "\x00" + r.Operation + "\x00" + r.Key })
		}, []string{"any number of erased entries stand side by side"}},
	}
}

// uniqueBy refuses to put a row whose name another row has.
func uniqueBy(name func(ledger.Ref) string) func(*brokenStore, ledger.Write, *ledger.Entry, ledger.Time) bool {
	return func(s *brokenStore, w ledger.Write, e *ledger.Entry, now ledger.Time) bool {
		if w.Put != nil {
			for scope, other := range s.entries {
				if scope != w.Scope && name(other.Ref) == name(w.Put.Ref) {
					return false
				}
			}
		}
		return w.Guard.Holds(e, now)
	}
}

func claimGuardDefects() []defect {
	return []defect{
		{"lets no claim write", also(func(ledger.Guard, *ledger.Entry, ledger.Time) bool { return false }),
			eachClaimGuard("for the holder of the current claim")},
		{"lets a claim write within its lease only", also(func(_ ledger.Guard, e *ledger.Entry, now ledger.Time) bool {
			return now < e.Last.LeaseUntil
		}), eachClaimGuard("after the lease")},
		{"ignores the attempt", forgiving(func(g *ledger.Guard, e *ledger.Entry, _ ledger.Time) { g.Attempt = e.Last.Number }),
			eachClaimGuard("another attempt's number", "no attempt's number", "an earlier attempt's number")},
		{"knows the first attempt only", also(func(g ledger.Guard, _ *ledger.Entry, _ ledger.Time) bool { return g.Attempt == 1 }),
			eachClaimGuard("for the second attempt")},
		{"ignores the incarnation of a claim", forgiving(func(g *ledger.Guard, e *ledger.Entry, _ ledger.Time) {
			g.Incarnation = e.Incarnation
		}), eachClaimGuard("an earlier incarnation", "a later incarnation")},
		{"ignores whether the attempt is current", forgiving(func(_ *ledger.Guard, e *ledger.Entry, _ ledger.Time) { e.Current = true }),
			eachClaimGuard("no longer current")},
		{"ignores the state", forgiving(func(_ *ledger.Guard, e *ledger.Entry, _ ledger.Time) { e.State = ledger.Pending }),
			eachClaimGuard("entry is completed", "failed for good", "may be tried again")},
		{"ignores that the entry is closed", forgiving(func(_ *ledger.Guard, e *ledger.Entry, _ ledger.Time) { e.Closed = false }),
			eachClaimGuard("when the entry is closed")},
		{"ignores the lapse", forgiving(func(_ *ledger.Guard, e *ledger.Entry, _ ledger.Time) { e.DueAt = ledger.Never }),
			eachClaimGuard("at the very instant the entry lapses", "after the entry has lapsed")},
		{"lapses a step too late", forgiving(func(_ *ledger.Guard, e *ledger.Entry, _ ledger.Time) { e.DueAt++ }),
			eachClaimGuard("at the very instant the entry lapses")},
		{"lapses a step too early", also(func(_ ledger.Guard, e *ledger.Entry, now ledger.Time) bool {
			return e.HoldFrom <= e.DueAt || now < e.DueAt-1
		}), eachClaimGuard("one step before the entry lapses")},
		{"lapses what is held", also(func(_ ledger.Guard, e *ledger.Entry, now ledger.Time) bool { return now < e.DueAt }),
			eachClaimGuard("held from before it", "held from that very instant", "always held")},
		{"lapses what is held from its due time", also(func(_ ledger.Guard, e *ledger.Entry, now ledger.Time) bool {
			return e.HoldFrom < e.DueAt || now < e.DueAt
		}), eachClaimGuard("held from that very instant")},
		{"holds a step too early", forgiving(func(_ *ledger.Guard, e *ledger.Entry, _ ledger.Time) {
			if e.HoldFrom == e.DueAt+1 {
				e.HoldFrom--
			}
		}), eachClaimGuard("held one step later")},
		{"takes a hold from zero for none", also(func(_ ledger.Guard, e *ledger.Entry, now ledger.Time) bool {
			return e.HoldFrom != 0 || now < e.DueAt
		}), eachClaimGuard("always held")},
		{"takes never for a number that has overflowed", also(func(_ ledger.Guard, e *ledger.Entry, _ ledger.Time) bool {
			return e.DueAt != ledger.Never
		}), eachClaimGuard("never due")},
		{"lets nobody use a bound entry", also(func(_ ledger.Guard, e *ledger.Entry, _ ledger.Time) bool {
			return e.Terms.Bound == ledger.PrincipalHash{}
		}), eachClaimGuard("for the principal that the entry is bound to")},
		{"ignores the binding", forgiving(func(g *ledger.Guard, e *ledger.Entry, _ ledger.Time) { g.Principal = e.Terms.Bound }),
			eachClaimGuard("another principal than", "for nobody when")},
		{"lets nobody in particular use a bound entry", forgiving(func(g *ledger.Guard, e *ledger.Entry, _ ledger.Time) {
			if g.Principal == (ledger.PrincipalHash{}) {
				g.Principal = e.Terms.Bound
			}
		}), eachClaimGuard("for nobody when")},
		{"wants the principal of an entry that has none", also(func(g ledger.Guard, e *ledger.Entry, _ ledger.Time) bool {
			return g.Principal == e.Terms.Bound
		}), eachClaimGuard("any principal when")},
		{"refuses every entry in doubt", also(func(_ ledger.Guard, e *ledger.Entry, _ ledger.Time) bool { return !e.Doubt }),
			eachClaimGuard("in doubt where doubt does not matter")},
		{"ignores doubt", forgiving(func(g *ledger.Guard, _ *ledger.Entry, _ ledger.Time) { g.Undoubted = false }),
			eachClaimGuard("does not hold in doubt")},
		{"refuses every guard that asks about doubt", also(func(g ledger.Guard, _ *ledger.Entry, _ ledger.Time) bool { return !g.Undoubted }),
			eachClaimGuard("out of doubt")},
		{"reports a claim written where there is no row", judging(ledger.GuardClaim, func(g ledger.Guard, e *ledger.Entry, now ledger.Time) bool {
			return e == nil || g.Holds(e, now)
		}), eachClaimGuard("where there is no row")},
	}
}
