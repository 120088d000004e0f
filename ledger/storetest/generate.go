package storetest

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"time"

	"github.com/idemd/idemd/ledger"
)

// generator makes entries that the ledger could have written, with the oddest contents that it lets through. It is used instead of a
// property-testing library so that who imports this package for its Model gets no further dependency and no further flags.
type generator struct{ *rand.Rand }

func newGenerator(seed uint64) generator { return generator{rand.New(rand.NewPCG(seed, seed))} }

// oddTexts are pieces that some layer somewhere trims, folds, quotes, cuts or takes for its own syntax. There is no control character
// among them: the ledger refuses those in every text that is a column.
var oddTexts = []string{
	"😀", "👩‍👩‍👧‍👦",
	"é", "e\u0301", "ß", "ſ", "İ", "ı", "Å", "\u212b", "ﬁ", "中文", "العربية", "\u202e", "\u200b", "\ufeff", "\ufffd", "\U0010ffff",
	"\ufffe", "\u2028", "\u00a0", " ", "  ", "'", "''", `"`, "`", `\`, `\\`, `\x00`, `\u0000`,
	"%", "_", "%s", "$1", "?", ":a", "@p", "--", "/*", "*/", ";",
	"NULL", "null", "0", "-1", "1e3", "true", "{", "}", "[", "]", "(", ")", ",", "|", "/", ":", "=", "&", "#", "<", ">", "A", "a", "Z", "z",
}

// text returns 1 to maxChars characters without control characters.
func (g generator) text(maxChars int) string {
	chars := 1 + g.IntN(min(maxChars, 24))
	if g.IntN(12) == 0 {
		chars = maxChars
	}
	var out []rune
	for len(out) < chars {
		out = append(out, []rune(oddTexts[g.IntN(len(oddTexts))])...)
	}
	return string(out[:chars])
}

// optional returns a text or none.
func (g generator) optional(maxChars int) string {
	if g.IntN(3) == 0 {
		return ""
	}
	return g.text(maxChars)
}

// free returns a text in which control characters are allowed too.
func (g generator) free(maxChars int) string {
	s := g.optional(maxChars)
	if g.IntN(4) == 0 {
		s += "\x00\n\r\t\x1b\x7f"
	}
	return s
}

// bytes returns n bytes.
func (g generator) bytes(n int) []byte {
	b := make([]byte, 0, n+8)
	for len(b) < n {
		b = binary.LittleEndian.AppendUint64(b, g.Uint64())
	}
	return b[:n:n]
}

// body returns a body: often none, empty or of one byte.
func (g generator) body() []byte {
	switch g.IntN(6) {
	case 0:
		return nil
	case 1:
		return []byte{}
	case 2:
		return []byte{0}
	case 3:
		return g.bytes(g.IntN(70_000))
	default:
		return g.bytes(g.IntN(100))
	}
}

func (g generator) scope() (id ledger.ScopeID) {
	copy(id[:], g.bytes(len(id)))
	return id
}

func (g generator) digest() (d ledger.Digest) {
	copy(d[:], g.bytes(len(d)))
	return d
}

func (g generator) idHash() (h ledger.IDHash) {
	copy(h[:], g.bytes(len(h)))
	return h
}

func (g generator) principal() (h ledger.PrincipalHash) {
	copy(h[:], g.bytes(len(h)))
	return h
}

// when returns an instant, seldom an extreme one.
func (g generator) when() ledger.Time {
	switch g.IntN(12) {
	case 0:
		return 0
	case 1:
		return ledger.Never
	case 2:
		return 1
	case 3:
		return ledger.Never - 1
	default:
		return ledger.Time(1_600_000_000_000_000 + g.Int64N(1_000_000_000_000_000))
	}
}

// length returns a duration in whole microseconds.
func (g generator) length() time.Duration {
	switch g.IntN(8) {
	case 0:
		return 0
	case 1:
		return ledger.MaxRetention
	case 2:
		return time.Microsecond
	default:
		return time.Duration(g.Int64N(int64(30*24*time.Hour/time.Microsecond))) * time.Microsecond
	}
}

func (g generator) int32() int32 {
	return []int32{0, 1, -1, math.MaxInt32, math.MinInt32, 17, 200, g.Int32N(1000)}[g.IntN(8)]
}

func (g generator) ref() ledger.Ref {
	return ledger.Ref{
		Tenant:    g.text(ledger.MaxTenantChars),
		Operation: g.text(ledger.MaxOperationChars),
		Key:       g.text(ledger.MaxKeyChars),
	}
}

func (g generator) fingerprints() []ledger.Fingerprint {
	var out []ledger.Fingerprint
	for range 1 + g.IntN(ledger.MaxFingerprints) {
		out = append(out, ledger.Fingerprint{
			Algorithm: g.text(ledger.MaxAlgorithmChars),
			Hash:      g.bytes(ledger.MinHashBytes + g.IntN(ledger.MaxHashBytes-ledger.MinHashBytes+1)),
		})
	}
	return out
}

func (g generator) response() *ledger.Response {
	r := &ledger.Response{
		Code: g.int32(), Body: g.body(), ContentType: g.free(100),
		ResourceType: g.optional(ledger.MaxResourceChars), ResourceID: g.optional(ledger.MaxResourceChars),
	}
	for range g.IntN(5) {
		r.Metadata = append(r.Metadata, ledger.MetadataPair{
			Name:  []string{"x-a", "x-a", "etag", "location", "x-b-bin"}[g.IntN(5)],
			Value: [][]byte{nil, {}, []byte("a, b,\tc"), {0, 0xff, 0}, g.bytes(g.IntN(100))}[g.IntN(5)],
		})
	}
	if g.IntN(4) == 0 {
		r.Body, r.BodyOmitted, r.BodySize, r.BodySHA256 = nil, true, g.Int64(), g.bytes(32)
	}
	return r
}

func (g generator) failure() *ledger.Failure {
	f := &ledger.Failure{
		Code: g.int32(), Message: g.free(300), DetailsOmitted: g.IntN(4) == 0,
		Disposition: ledger.Disposition(1 + g.IntN(3)),
	}
	for range g.IntN(4) {
		f.Details = append(f.Details, ledger.Detail{TypeURL: g.free(100), Value: g.body()})
	}
	return f
}

func (g generator) attempt(number int32) ledger.Attempt {
	return ledger.Attempt{
		Number: number, IDHash: g.idHash(), Holder: g.optional(ledger.MaxHolderChars), Principal: g.optional(200),
		RecoverOnly: g.IntN(4) == 0, OnCredit: g.IntN(4) == 0, Lease: g.length(),
		BeganAt: g.when(), LeaseUntil: g.when(), EndedAt: g.when(), Ended: ledger.Ended(g.IntN(8)), Report: g.digest(),
	}
}

func (g generator) evidence() *ledger.Evidence {
	ev := &ledger.Evidence{Attempt: g.int32(), At: g.when(), Report: g.digest()}
	if g.IntN(2) == 0 {
		ev.Response = g.response()
	} else {
		ev.Failure = g.failure()
	}
	return ev
}

func (g generator) resolutions(n int) []ledger.Resolution {
	var out []ledger.Resolution
	for range n {
		out = append(out, ledger.Resolution{
			Action: ledger.ResolveAction(1 + g.IntN(3)), Attempt: g.int32(), At: g.when(),
			Principal: g.optional(200), Reason: g.optional(ledger.MaxReasonChars), Report: g.digest(),
		})
	}
	return out
}

func (g generator) terms() ledger.Terms {
	t := ledger.Terms{
		OnAbandoned: ledger.OnAbandoned(1 + g.IntN(2)), MaxAttempts: 1 + g.Int32N(ledger.MaxRunAttempts),
		ReclaimWithin: g.length(), Retention: g.length(), Tombstone: g.length(),
	}
	if g.IntN(2) == 0 {
		t.Bound = g.principal()
	}
	return t
}

// entry returns a whole entry with absolute times, as some write could leave it. Not every combination of fields is one that the ledger
// makes; a store keeps them all.
func (g generator) entry(scope ledger.ScopeID) *ledger.Entry {
	number := 1 + g.Int32N(4)
	e := &ledger.Entry{
		Scope: scope, Ref: g.ref(), Incarnation: 1 + ledger.Time(g.Int64N(int64(ledger.Never))),
		State: ledger.State(1 + g.IntN(4)), Closed: g.IntN(6) == 0,
		Fingerprints: g.fingerprints(), Terms: g.terms(), HoldFrom: g.when(), RunGrants: g.Int32N(40), Credit: g.IntN(3) == 0,
		Doubt: g.IntN(2) == 0, Last: g.attempt(number), Current: g.IntN(2) == 0, DueAt: g.when(),
	}
	for n := range number - 1 {
		e.Earlier = append(e.Earlier, g.attempt(n+1))
	}
	if g.IntN(3) == 0 {
		e.Evidence = g.evidence()
	}
	if g.IntN(3) == 0 {
		e.Resolutions = g.resolutions(1 + g.IntN(3))
	}
	if g.IntN(8) == 0 {
		e.Ref = ledger.Ref{} // erased
	}
	if e.State == ledger.Pending {
		e.AbandonedAt = g.when()
		return e
	}
	e.SettledAt, e.SettledBy, e.Settlement = g.when(), g.Int32N(3), g.digest()
	switch {
	case e.Closed:
	case e.State == ledger.Completed:
		e.Response = g.response()
	default:
		e.Failure = g.failure()
	}
	return e
}

// fullest returns an entry that is at every limit at once, without its body.
func (g generator) fullest(scope ledger.ScopeID) *ledger.Entry {
	e := g.entry(scope)
	widest := func(chars int) string {
		out := make([]rune, chars)
		for i := range out {
			out[i] = 0x1f600 + rune(g.IntN(60))
		}
		return string(out)
	}
	e.Ref = ledger.Ref{
		Tenant: widest(ledger.MaxTenantChars), Operation: widest(ledger.MaxOperationChars), Key: widest(ledger.MaxKeyChars),
	}
	e.State, e.Closed, e.Failure, e.Response = ledger.Completed, false, nil, g.response()
	e.Response.ResourceType, e.Response.ResourceID = widest(ledger.MaxResourceChars), widest(ledger.MaxResourceChars)
	e.Response.Metadata = []ledger.MetadataPair{{Name: "x-long", Value: g.bytes(ledger.MaxMetadataBytes)}}
	e.Last, e.Earlier = g.attempt(ledger.MaxAttempts), nil
	for n := range int32(ledger.MaxAttempts - 1) {
		a := g.attempt(n + 1)
		a.Holder, a.Principal = widest(ledger.MaxHolderChars), widest(ledger.MaxHolderChars)
		e.Earlier = append(e.Earlier, a)
	}
	e.Evidence = &ledger.Evidence{Attempt: 3, At: g.when(), Report: g.digest(), Failure: g.failure()}
	e.Evidence.Failure.Details = []ledger.Detail{{TypeURL: widest(100), Value: g.bytes(ledger.MaxDetailsBytes)}}
	e.Resolutions = g.resolutions(ledger.MaxAttempts + 1)
	for i := range e.Resolutions {
		e.Resolutions[i].Reason = widest(ledger.MaxReasonChars)
	}
	return e
}
