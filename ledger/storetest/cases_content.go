package storetest

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/idemd/idemd/ledger"
)

// contentCases: what is written is what is read, whatever it holds and however big it is.
func contentCases() []testCase {
	out := []testCase{
		{"an entry comes back whole, whatever its texts and bytes hold", wholeRoundTrip},
		{"an entry put over another leaves nothing of the other", replacedWhole},
		{"a settlement keeps the answer whole, whatever it holds", answersRoundTrip},
		{"an entry that is at every limit at once comes back whole", fullestRoundTrip},
		{"a large body is replaced by a small one, by none, and back", bodiesReplaced},
		{"an answer that is stripped leaves nothing behind", strippedAnswer},
		{"an extension leaves body, history and evidence of the row alone", extensionKeepsContent},
		{"scopes that differ only in where a separator stands are different entries", separatorsDiffer},
		{"texts that some collation takes for equal are different entries", foldingTextsDiffer},
		{"any number of erased entries stand side by side", erasedSideBySide},
		{"the store keeps no hold on what it was given or gave", memoryIsNotShared},
	}
	for _, size := range []int{0, 1, 255, 256, 65_535, 65_536, ledger.MaxResponseBytes} {
		out = append(out, testCase{fmt.Sprintf("a body of %d bytes comes back whole by put, by settlement and as evidence", size),
			func(b *bench) { bodyOfSize(b, size) }})
	}
	return out
}

func wholeRoundTrip(b *bench) {
	for range 60 {
		e := b.entry(b.scope())
		want := copyEntry(e)
		want.Revision = 1
		if diff := differences(want, b.put(e)); diff != "" {
			b.Fatalf("differs from what was put:\n%s", diff)
		}
	}
}

func replacedWhole(b *bench) {
	scope := b.scope()
	row := b.put(b.entry(scope))
	for i := range 60 {
		e := b.entry(scope)
		want := copyEntry(e)
		want.Revision = int64(2 + i)
		row = b.mustApply(over(row, e))
		if diff := differences(want, row); diff != "" {
			b.Fatalf("differs from what was put over it:\n%s", diff)
		}
	}
}

func answersRoundTrip(b *bench) {
	for range 40 {
		row := b.put(b.claim())
		kind := []string{"complete", "fail"}[b.IntN(2)]
		b.mustApply(b.claimed(kind, row))
	}
}

func fullestRoundTrip(b *bench) {
	e := b.fullest(b.scope())
	row := b.put(e)
	b.mustApply(over(row, b.fullest(e.Scope)))
}

func bodyOfSize(b *bench, size int) {
	body := b.bytes(size)
	by := func(how string, got *ledger.Response) {
		if got == nil {
			b.Fatalf("%s: no answer", how)
		}
		if got.BodyOmitted || !bytes.Equal(got.Body, body) {
			b.Errorf("%s: a body of %d bytes came back as %d bytes, omitted %t", how, size, len(got.Body), got.BodyOmitted)
		}
	}
	row := b.put(b.claim())
	s := b.completion()
	s.Response = &ledger.Response{Body: bytes.Clone(body)}
	settled := b.mustApply(ledger.Write{Scope: row.Scope, Guard: claimOf(row), Settle: s})
	by("settlement", settled.Response)

	e := copyEntry(settled)
	e.Scope = b.scope()
	e.Response.ContentType = "application/x"
	by("put", b.put(e).Response)

	pending := b.claim()
	pending.Evidence = &ledger.Evidence{Attempt: 1, At: 1, Response: &ledger.Response{Body: bytes.Clone(body)}}
	by("evidence", b.put(pending).Evidence.Response)
}

func bodiesReplaced(b *bench) {
	e := b.entry(b.scope())
	e.State, e.Closed, e.Failure = ledger.Completed, false, nil
	e.Response = &ledger.Response{Body: b.bytes(ledger.MaxResponseBytes)}
	row := b.put(e)
	for _, size := range []int{3, ledger.MaxResponseBytes, 0, 200_000, -1, 100_000, -1, 5, ledger.MaxResponseBytes - 1, 70_000} {
		next := copyEntry(row)
		next.Response = nil
		if size >= 0 {
			next.Response = &ledger.Response{Code: int32(size), Body: b.bytes(size)}
		}
		row = b.mustApply(over(row, next))
	}
	b.forget(1, rowOf(row))
	b.leavesBehind(0)
}

func strippedAnswer(b *bench) {
	row := b.put(b.claim())
	s := b.completion()
	s.Response.Body = b.bytes(300_000)
	row = b.mustApply(ledger.Write{Scope: row.Scope, Guard: claimOf(row), Settle: s})
	tombstone := copyEntry(row)
	tombstone.Closed, tombstone.Response, tombstone.Evidence = true, nil, nil
	tombstone.DueAt = ledger.In(claimTombstone)
	row = b.mustApply(over(row, tombstone))
	if row.Response != nil || row.Failure != nil {
		b.Errorf("an answer is left: %+v, %+v", row.Response, row.Failure)
	}
	b.leavesBehind(1)
	again := copyEntry(row)
	again.Closed, again.Response = false, &ledger.Response{}
	if row = b.mustApply(over(row, again)); len(row.Response.Body) != 0 {
		b.Errorf("%d bytes of the stripped body came back with an empty answer", len(row.Response.Body))
	}
}

// leavesBehind checks how many rows of every kind the backend keeps, where it can tell.
func (b *bench) leavesBehind(want int) {
	b.Helper()
	if b.Residue == nil {
		return
	}
	if got := b.Residue(b); got != want {
		b.Errorf("%d rows are kept in all, want %d", got, want)
	}
}

func extensionKeepsContent(b *bench) {
	e := b.fullest(b.scope())
	e.State, e.Response, e.Closed, e.Current, e.Terms.Bound = ledger.Pending, nil, false, true, ledger.PrincipalHash{}
	e.SettledAt, e.DueAt, e.HoldFrom = 0, ledger.Never-1, ledger.Never
	// Of no length at all it would lapse with its first extension, and be nobody's to extend.
	e.Last.Lease, e.Terms.Retention = claimLease, claimRetention
	e.Evidence = &ledger.Evidence{Attempt: 1, At: 1, Response: &ledger.Response{Body: b.bytes(ledger.MaxEvidenceBytes)}}
	row := b.put(e)
	for range 3 {
		row = b.mustApply(ledger.Write{Scope: row.Scope, Guard: claimOf(row), Extend: &ledger.Extend{}})
	}
	b.mustApply(ledger.Write{Scope: row.Scope, Guard: claimOf(row), Settle: b.completion()})
}

// putRefs puts one claim per ref and checks that each comes back as its own, by Get and in a page of its tenant and operation.
func (b *bench) putRefs(refs []ledger.Ref) {
	b.Helper()
	rows := map[ledger.ScopeID]*ledger.Entry{}
	for _, ref := range refs {
		e := b.claim()
		e.Ref = ref
		row := b.put(e)
		rows[row.Scope] = row
	}
	for scope, row := range rows {
		if diff := differences(row, b.get(scope)); diff != "" {
			b.Errorf("%q: %s", row.Ref, diff)
		}
		want := 0
		for _, other := range rows {
			if other.Ref.Tenant == row.Ref.Tenant && other.Ref.Operation == row.Ref.Operation {
				want++
			}
		}
		got := b.pages(ledger.PageQuery{Order: ledger.ByName, Tenant: row.Ref.Tenant, Operation: row.Ref.Operation, Limit: 100})
		if len(got) != want || !slices.ContainsFunc(got, func(e *ledger.Entry) bool { return same(row, e) }) {
			b.Errorf("the page of %q has %d entries, want %d with it among them", row.Ref, len(got), want)
		}
	}
}

func separatorsDiffer(b *bench) {
	var refs []ledger.Ref
	for _, separator := range []string{":", "/", "|", "%", "_", "\\", "'", "\"", ",", " ", "\u00a0", "*", ".", "-"} {
		refs = append(refs,
			ledger.Ref{Tenant: "a", Operation: "b" + separator + "c", Key: "d"},
			ledger.Ref{Tenant: "a" + separator + "b", Operation: "c", Key: "d"},
			ledger.Ref{Tenant: "a", Operation: "b", Key: "c" + separator + "d"},
			ledger.Ref{Tenant: "a" + separator, Operation: "b", Key: "d"},
			ledger.Ref{Tenant: "a", Operation: separator + "b", Key: "d"},
		)
	}
	b.putRefs(refs)
}

func foldingTextsDiffer(b *bench) {
	var refs []ledger.Ref
	for _, text := range []string{
		"a", "A", "a ", " a", "a\u00a0", "á", "a\u0301", "ａ", "ß", "ss", "SS", "İ", "i", "ı", "I", "ﬁ", "fi", "1", "01", "1.0", "a\u200b", "\ufeffa",
		"K", "\u212a", "%", "_", "a%", "a_", "NULL", "''", "\"a\"", `a\`, `a\\`,
	} {
		refs = append(refs, ledger.Ref{Tenant: text, Operation: "op", Key: "k"}, ledger.Ref{Tenant: "t", Operation: text, Key: "k"},
			ledger.Ref{Tenant: "t", Operation: "op", Key: text})
	}
	b.putRefs(refs)
}

func erasedSideBySide(b *bench) {
	var rows []*ledger.Entry
	for range 10 {
		row := b.put(b.entry(b.scope()))
		erased := copyEntry(row)
		erased.Ref, erased.Closed, erased.Response, erased.Failure = ledger.Ref{}, true, nil, nil
		rows = append(rows, b.mustApply(over(row, erased)))
	}
	for _, row := range rows {
		if diff := differences(row, b.get(row.Scope)); diff != "" {
			b.Error(diff)
		}
	}
	b.sameRows(b.pages(ledger.PageQuery{Order: ledger.ByName, Limit: 3}), b.inOrder(ledger.ByName, rows))
}

func memoryIsNotShared(b *bench) {
	e := b.fullest(b.scope())
	b.Clock.Advance(b.tick)
	want := copyEntry(e)
	want.Revision = 1
	b.write(b.Store, fresh(e))
	scribble(e)
	if diff := differences(want, b.get(e.Scope)); diff != "" {
		b.Errorf("what the caller did to its entry after the put shows in the row:\n%s", diff)
	}
	scribble(b.get(e.Scope))
	if diff := differences(want, b.get(e.Scope)); diff != "" {
		b.Errorf("what a reader did to the entry it got shows in the row:\n%s", diff)
	}
	for _, listed := range b.pages(ledger.PageQuery{Order: ledger.ByName, Limit: 10}) {
		scribble(listed)
	}
	if diff := differences(want, b.get(e.Scope)); diff != "" {
		b.Errorf("what a reader did to the page it got shows in the row:\n%s", diff)
	}
	row := b.put(b.claim())
	s := b.completion()
	s.Response = &ledger.Response{Body: []byte("answer")}
	b.write(b.Store, ledger.Write{Scope: row.Scope, Guard: claimOf(row), Settle: s})
	s.Response.Body[0] = 'X'
	if got := b.get(row.Scope); string(got.Response.Body) != "answer" {
		b.Errorf("what the caller did to its answer after the settlement shows in the row: %q", got.Response.Body)
	}
}

// scribble overwrites memory that e reaches.
func scribble(e *ledger.Entry) {
	e.Fingerprints[0].Hash[0] ^= 0xff
	e.Earlier[0].Holder = "scribbled"
	e.Resolutions[0].Reason = "scribbled"
	e.Evidence.Failure.Details[0].Value[0] ^= 0xff
	e.Response.Code++
	e.Response.Metadata[0].Value[0] ^= 0xff
	for i := range e.Response.Body {
		e.Response.Body[i] ^= 0xff
	}
}
