package ledger_test

import (
	"crypto/md5"  //nolint:gosec // the digests that must be recognised
	"crypto/sha1" //nolint:gosec // likewise
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/idemd/idemd/ledger"
)

// C52: a key is refused naming the rule, or kept exactly.
func TestC52_KeysAreRefusedOrKeptExactly(t *testing.T) {
	t.Parallel()
	kept := []string{
		" ", "  ", " k", "k ", `"k"`, "'k'", "K", "k", "é", "e\u0301", strings.Repeat("k", 255), strings.Repeat("😀", 200), strings.Repeat("😀", 255),
		"\u200b", "\ufeff", "../..", "%00", "a/b:c|d", "NULL", "\ufffd",
	}
	refused := map[string]string{
		"":                       "empty",
		"a\x00b":                 "control",
		"a\n":                    "control",
		"\ta":                    "control",
		"a\x7f":                  "control",
		"a\u0085":                "control",
		"a\xff":                  "UTF-8",
		"\xed\xa0\x80":           "UTF-8", // a lone surrogate
		strings.Repeat("k", 256): "255",
		strings.Repeat("k", 257): "255",
		strings.Repeat("😀", 256): "255",
	}
	b := newBench(t)
	for i, key := range kept {
		c := b.begin(key, "attempt "+itoa(i))
		if v := b.lookup(key); v.Entry.Ref.Key != key {
			t.Errorf("key %q is kept as %q", key, v.Entry.Ref.Key)
		}
		if c.Attempt != 1 {
			t.Errorf("key %q met another: attempt %d", key, c.Attempt)
		}
	}
	if b.model.Len() != len(kept) {
		t.Errorf("%d keys made %d entries", len(kept), b.model.Len())
	}
	for key, rule := range refused {
		_, err := b.tryBegin(key, "r")
		var refusal *ledger.Refusal
		if b.wantReason(err, ledger.ReasonInvalidKey); reasonOf(err) == ledger.ReasonInvalidKey {
			refusal = err.(*ledger.Refusal) //nolint:errorlint // reasonOf found it just now
			if refusal.Field != "ref.key" || !strings.Contains(refusal.Rule, rule) {
				t.Errorf("key %q: field %q, rule %q, want one about %q", key, refusal.Field, refusal.Rule, rule)
			}
		}
		b.wantReason(ledger.Ref{Tenant: key, Operation: "o", Key: "k"}.Validate(), ledger.ReasonInvalidTenant)
		b.wantReason(ledger.Ref{Tenant: "t", Operation: key, Key: "k"}.Validate(), ledger.ReasonInvalidOperation)
	}
	if r := (ledger.Ref{Tenant: strings.Repeat("t", 129), Operation: "o", Key: "k"}).Validate(); r == nil || r.Reason != ledger.ReasonInvalidTenant {
		t.Errorf("a tenant of 129 characters: %v", r)
	}
	for _, ref := range []ledger.Ref{{Tenant: "*", Operation: "o", Key: "k"}, {Tenant: "t", Operation: "*", Key: "k"}} {
		if r := ref.Validate(); r == nil || !strings.Contains(r.Rule, "stands for every") {
			t.Errorf("%q, which stands for all of them: %v", ref, r)
		}
	}
	if r := (ledger.Ref{Tenant: "**", Operation: "*/*", Key: "*"}).Validate(); r != nil {
		t.Errorf("names with a star: %v", r)
	}
	if r := (ledger.Ref{Tenant: strings.Repeat("t", 128), Operation: strings.Repeat("o", 255), Key: "k"}).Validate(); r != nil {
		t.Errorf("a scope at its limits: %v", r)
	}
}

// C40: a fingerprint of nothing comes from an adapter that hashed a body already read: every request would look alike.
func TestC40_TheDigestOfNothingIsRefused(t *testing.T) {
	t.Parallel()
	m, s1, s256, s384, s512 := md5.Sum(nil), sha1.Sum(nil), sha256.Sum256(nil), sha512.Sum384(nil), sha512.Sum512(nil) //nolint:gosec // see above
	own := sha256.Sum256([]byte(ledger.FingerprintDomain + "json-1\x00"))
	for name, hash := range map[string][]byte{"md5": m[:], "sha1": s1[:], "sha256": s256[:], "sha384": s384[:], "sha512": s512[:], "json-1": own[:]} {
		r := ledger.BeginRequest{
			Ref: ledger.Ref{Tenant: "t", Operation: "o", Key: "k"}, AttemptID: uuidOf("a"),
			Fingerprints: []ledger.Fingerprint{{Algorithm: "json-1", Hash: hash}},
		}
		refusal := r.Validate()
		if refusal == nil || refusal.Reason != ledger.ReasonInvalidFingerprint || refusal.Field != "fingerprints[0].hash" {
			t.Errorf("%s of nothing: %v", name, refusal)
		}
	}
}

func TestFingerprintsAreValidated(t *testing.T) {
	t.Parallel()
	good := make([]byte, 32)
	good[0] = 1
	for name, c := range map[string]struct {
		prints []ledger.Fingerprint
		field  string
	}{
		"none":                 {nil, "fingerprints"},
		"three":                {[]ledger.Fingerprint{{"a", good}, {"b", good}, {"c", good}}, "fingerprints"},
		"one algorithm twice":  {[]ledger.Fingerprint{{"a", good}, {"a", good}}, "fingerprints[1].algorithm"},
		"no algorithm":         {[]ledger.Fingerprint{{"", good}}, "fingerprints[0].algorithm"},
		"upper case":           {[]ledger.Fingerprint{{"A", good}}, "fingerprints[0].algorithm"},
		"a long algorithm":     {[]ledger.Fingerprint{{strings.Repeat("a", 65), good}}, "fingerprints[0].algorithm"},
		"a short hash":         {[]ledger.Fingerprint{{"a", good[:15]}}, "fingerprints[0].hash"},
		"a long hash":          {[]ledger.Fingerprint{{"a", make([]byte, 65)}}, "fingerprints[0].hash"},
		"the second one wrong": {[]ledger.Fingerprint{{"a", good}, {"b", nil}}, "fingerprints[1].hash"},
		"one":                  {[]ledger.Fingerprint{{"a", good[:16]}}, ""},
		"two":                  {[]ledger.Fingerprint{{"proto-1", good}, {"json_1.b", append(good, good...)}}, ""},
	} {
		r := ledger.BeginRequest{Ref: ledger.Ref{Tenant: "t", Operation: "o", Key: "k"}, AttemptID: uuidOf("a"), Fingerprints: c.prints}
		refusal := r.Validate()
		if c.field == "" && refusal != nil || c.field != "" && (refusal == nil || refusal.Field != c.field) {
			t.Errorf("%s: %v, want field %q", name, refusal, c.field)
		}
	}
}

// C79: an attempt id that is the key says that the caller does not make one for each attempt: two callers would share a claim.
func TestC79_AttemptIDsMustBeFresh(t *testing.T) {
	t.Parallel()
	id := [16]byte{0x12, 0x3e, 0x45, 0x67, 0xe8, 0x9b, 0x12, 0xd3, 0xa4, 0x56, 0x42, 0x66, 0x14, 0x17, 0x40, 0x00}
	b := newBench(t)
	for _, key := range []string{
		"123e4567-e89b-12d3-a456-426614174000", "123E4567-E89B-12D3-A456-426614174000", "123e4567e89b12d3a456426614174000",
		"{123e4567-e89b-12d3-a456-426614174000}", "urn:uuid:123e4567-e89b-12d3-a456-426614174000",
	} {
		for range 2 { // two callers
			r := b.beginRequest(key, "")
			r.AttemptID, r.AttemptIDText = id, "123e4567-e89b-12d3-a456-426614174000"
			_, err := b.ledger.Begin(t.Context(), ledger.Caller{}, r)
			b.wantReason(err, ledger.ReasonInvalidAttemptID)
		}
	}
	r := b.beginRequest("k", "")
	r.AttemptID = [16]byte{}
	_, err := b.ledger.Begin(t.Context(), ledger.Caller{}, r)
	b.wantReason(err, ledger.ReasonInvalidAttemptID)
	if b.model.Len() != 0 {
		t.Error("a refused Begin left a row")
	}
}

func TestBeginIsValidated(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, c := range map[string]struct {
		change func(*ledger.BeginRequest)
		want   ledger.Reason
	}{
		"a short lease":      {func(r *ledger.BeginRequest) { r.Lease = time.Second - 1 }, ledger.ReasonInvalidLease},
		"a long lease":       {func(r *ledger.BeginRequest) { r.Lease = 24*time.Hour + 1 }, ledger.ReasonInvalidLease},
		"a negative lease":   {func(r *ledger.BeginRequest) { r.Lease = -time.Second }, ledger.ReasonInvalidLease},
		"a negative wait":    {func(r *ledger.BeginRequest) { r.Wait = -1 }, ledger.ReasonInvalidWait},
		"a holder with NUL":  {func(r *ledger.BeginRequest) { r.Holder = "a\x00" }, ledger.ReasonInvalidHolder},
		"a long holder":      {func(r *ledger.BeginRequest) { r.Holder = strings.Repeat("h", 256) }, ledger.ReasonInvalidHolder},
		"an unknown mode":    {func(r *ledger.BeginRequest) { r.Mode = 2 }, ledger.ReasonInvalidRequest},
		"no tenant":          {func(r *ledger.BeginRequest) { r.Ref.Tenant = "" }, ledger.ReasonInvalidTenant},
		"no operation":       {func(r *ledger.BeginRequest) { r.Ref.Operation = "" }, ledger.ReasonInvalidOperation},
		"nothing wrong":      {func(*ledger.BeginRequest) {}, ""},
		"no holder":          {func(r *ledger.BeginRequest) { r.Holder = ""; r.Ref.Key = "k2" }, ""},
		"the shortest lease": {func(r *ledger.BeginRequest) { r.Lease = time.Second; r.Ref.Key = "k3" }, ""},
	} {
		r := b.beginRequest("k", name)
		c.change(&r)
		_, err := b.ledger.Begin(t.Context(), ledger.Caller{}, r)
		if reasonOf(err) != c.want || c.want == "" && err != nil {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestReportsAreValidated(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	c := b.begin("k", "a")
	_, err := b.ledger.Complete(t.Context(), ledger.Caller{}, ledger.CompleteRequest{Ref: c.ref, Token: c.Token})
	b.wantReason(err, ledger.ReasonInvalidReport)
	for name, f := range map[string]*ledger.Failure{
		"none": nil, "code OK": {Disposition: ledger.Final}, "no disposition": {Code: 9}, "an unknown disposition": {Code: 9, Disposition: 4},
	} {
		_, err := b.ledger.Fail(t.Context(), ledger.Caller{}, ledger.FailRequest{Ref: c.ref, Token: c.Token, Failure: f})
		if reasonOf(err) != ledger.ReasonInvalidReport {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = b.ledger.Extend(t.Context(), ledger.Caller{}, ledger.ExtendRequest{Ref: c.ref, Token: c.Token, Lease: time.Millisecond})
	b.wantReason(err, ledger.ReasonInvalidLease)
	for name, r := range map[string]ledger.ResolveRequest{
		"no reason":  {Ref: c.ref, Action: ledger.ResolveRelease, Attempt: 1},
		"no attempt": {Ref: c.ref, Action: ledger.ResolveRelease, Reason: "r"},
		"no answer":  {Ref: c.ref, Action: ledger.ResolveComplete, Attempt: 1, Reason: "r"},
		"no status":  {Ref: c.ref, Action: ledger.ResolveFail, Attempt: 1, Reason: "r"},
		"no action":  {Ref: c.ref, Attempt: 1, Reason: "r"},
	} {
		if _, err := b.ledger.Resolve(t.Context(), ledger.Caller{}, r); !strings.HasPrefix(string(reasonOf(err)), "INVALID_") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if v := b.lookup("k"); v.Condition != ledger.Live {
		t.Errorf("after refusals the entry is %s", conditionNames[v.Condition])
	}
}

// TestReasonsAreListedOnce: tables that must be complete are checked against Reasons.
func TestReasonsAreListedOnce(t *testing.T) {
	t.Parallel()
	seen := map[ledger.Reason]bool{}
	for _, r := range ledger.Reasons() {
		if seen[r] || string(r) != strings.ToUpper(string(r)) {
			t.Errorf("reason %q", r)
		}
		seen[r] = true
	}
}

// Whatever a caller names, it is refused, or is a scope of its own within the limits.
func FuzzRef(f *testing.F) {
	for _, seed := range [][3]string{
		{"acme", "charge", "k"}, {"", "", ""}, {"*", "o", "k"}, {"a", "b:c", "d"}, {"a:b", "c", "d"}, {"t", "o", "\x00"}, {"t", "o", "\u0085"},
		{"t", "o", "\xff"}, {"t", "o", strings.Repeat("\U0001f600", 255)}, {"t", "o", strings.Repeat("x", 256)}, {"t", "o", " "},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	secret, err := ledger.NewSecret(make([]byte, ledger.SecretBytes))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, tenant, operation, key string) {
		ref := ledger.Ref{Tenant: tenant, Operation: operation, Key: key}
		fits := tenant != "*" && operation != "*"
		for _, part := range []struct {
			text string
			most int
		}{{tenant, 128}, {operation, 255}, {key, 255}} {
			bad := func(c rune) bool { return unicode.IsControl(c) }
			fits = fits && part.text != "" && utf8.ValidString(part.text) && utf8.RuneCountInString(part.text) <= part.most && !strings.ContainsFunc(part.text, bad)
		}
		if refusal := ref.Validate(); (refusal == nil) != fits {
			t.Fatalf("%q: %v", ref, refusal)
		}
		if !fits {
			return
		}
		for i := range len(key) {
			moved := ledger.Ref{Tenant: tenant, Operation: operation + key[:i], Key: key[i:]}
			if moved != ref && secret.Scope(moved) == secret.Scope(ref) {
				t.Fatalf("%q and %q are one scope", ref, moved)
			}
		}
	})
}

// However many algorithms callers make up, each has its own digest of nothing, and a bounded number is remembered.
func TestDigestsOfNothingAreKeptInBounds(t *testing.T) {
	t.Parallel()
	var algorithms []string
	for i := range 3 * ledger.MaxEmptyDigests {
		algorithms = append(algorithms, fmt.Sprint("made-up-", i), "json-1")
	}
	digests, kept := ledger.EmptyDigestsOf(append(algorithms, algorithms...)...)
	if kept != ledger.MaxEmptyDigests {
		t.Errorf("%d are kept, want %d", kept, ledger.MaxEmptyDigests)
	}
	for i, digest := range digests {
		algorithm := algorithms[i%len(algorithms)]
		if want := sha256.Sum256([]byte(ledger.FingerprintDomain + algorithm + "\x00")); digest != want {
			t.Fatalf("%s: %x, want %x", algorithm, digest, want)
		}
	}
}
