package ledger_test

import (
	"bytes"
	"reflect"
	"runtime"
	"testing"

	"pgregory.net/rapid"

	"github.com/idemd/idemd/ledger"
)

func drawResponse(t *rapid.T) *ledger.Response {
	r := &ledger.Response{
		Code: rapid.Int32().Draw(t, "code"), Body: rapid.SliceOf(rapid.Byte()).Draw(t, "body"), ContentType: rapid.String().Draw(t, "type"),
		ResourceType: rapid.String().Draw(t, "resource type"), ResourceID: rapid.String().Draw(t, "resource id"),
	}
	for range rapid.IntRange(0, 4).Draw(t, "pairs") {
		r.Metadata = append(r.Metadata, ledger.MetadataPair{
			Name: rapid.SampledFrom([]string{"x-a", "x-a", "x-b-bin", ""}).Draw(t, "name"), Value: rapid.SliceOf(rapid.Byte()).Draw(t, "value"),
		})
	}
	if rapid.Bool().Draw(t, "omitted") {
		r.BodyOmitted, r.BodySize, r.BodySHA256 = true, rapid.Int64().Draw(t, "size"), bytes.Repeat([]byte{7}, 32)
	}
	return r
}

func drawFailure(t *rapid.T) *ledger.Failure {
	f := &ledger.Failure{
		Code: rapid.Int32().Draw(t, "code"), Message: rapid.String().Draw(t, "message"), DetailsOmitted: rapid.Bool().Draw(t, "omitted"),
		Disposition: ledger.Disposition(rapid.IntRange(1, 3).Draw(t, "disposition")),
	}
	for range rapid.IntRange(0, 4).Draw(t, "details") {
		f.Details = append(f.Details, ledger.Detail{TypeURL: rapid.String().Draw(t, "url"), Value: rapid.SliceOf(rapid.Byte()).Draw(t, "value")})
	}
	return f
}

func drawAttempt(t *rapid.T) ledger.Attempt {
	moment := func(name string) ledger.Time { return ledger.Time(rapid.Int64().Draw(t, name)) }
	return ledger.Attempt{
		Number: rapid.Int32().Draw(t, "number"), IDHash: ledger.IDHash(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id")),
		Holder: rapid.String().Draw(t, "holder"), Principal: rapid.String().Draw(t, "principal"), RecoverOnly: rapid.Bool().Draw(t, "recover"),
		OnCredit: rapid.Bool().Draw(t, "credit"), Lease: seconds(t, "lease", 0, 100), BeganAt: moment("began"), LeaseUntil: moment("until"),
		EndedAt: moment("ended at"), Ended: ledger.Ended(rapid.IntRange(0, 7).Draw(t, "ended")),
		Report: ledger.Digest(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "report")),
	}
}

func drawHistory(t *rapid.T) *ledger.Entry {
	e := &ledger.Entry{}
	for range rapid.IntRange(0, 4).Draw(t, "earlier") {
		e.Earlier = append(e.Earlier, drawAttempt(t))
	}
	switch rapid.IntRange(0, 2).Draw(t, "evidence") {
	case 1:
		e.Evidence = &ledger.Evidence{Attempt: 3, At: 5, Report: ledger.Digest{1}, Response: drawResponse(t)}
	case 2:
		e.Evidence = &ledger.Evidence{Attempt: 3, At: 5, Report: ledger.Digest{1}, Failure: drawFailure(t)}
	}
	for range rapid.IntRange(0, 3).Draw(t, "resolutions") {
		e.Resolutions = append(e.Resolutions, ledger.Resolution{
			Action: ledger.ResolveAction(rapid.IntRange(1, 3).Draw(t, "action")), Attempt: rapid.Int32().Draw(t, "attempt"),
			At: ledger.Time(rapid.Int64().Draw(t, "at")), Principal: rapid.String().Draw(t, "principal"), Reason: rapid.String().Draw(t, "reason"),
			Report: ledger.Digest(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "report")),
		})
	}
	return e
}

// TestEncodingsComeBackAsTheyWere: what is stored as bytes is read back as it was, order and multiplicity included, and encodes the same again.
func TestEncodingsComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r, f := drawResponse(t), (*ledger.Failure)(nil)
		if rapid.Bool().Draw(t, "failure") {
			r, f = nil, drawFailure(t)
		}
		stored := ledger.EncodeAnswer(r, f)
		r2, f2, err := ledger.DecodeAnswer(stored)
		if err != nil || !bytes.Equal(ledger.EncodeAnswer(r2, f2), stored) || (r == nil) != (r2 == nil) || (f == nil) != (f2 == nil) {
			t.Fatalf("answer %+v %+v came back as %+v %+v: %v", r, f, r2, f2, err)
		}
		if ledger.ReportDigest(r, f) != ledger.ReportDigest(r2, f2) {
			t.Fatal("the answer that came back is another report")
		}
		if f != nil && f2.Message != f.Message || r != nil && (!bytes.Equal(r.Body, r2.Body) || len(r.Metadata) != len(r2.Metadata)) {
			t.Fatalf("answer %+v %+v came back as %+v %+v", r, f, r2, f2)
		}

		e, e2 := drawHistory(t), &ledger.Entry{}
		stored = ledger.EncodeHistory(e)
		if err := ledger.DecodeHistory(stored, e2); err != nil || !bytes.Equal(ledger.EncodeHistory(e2), stored) {
			t.Fatalf("history %+v came back as %+v: %v", e, e2, err)
		}
		if !reflect.DeepEqual(e.Earlier, e2.Earlier) || !reflect.DeepEqual(e.Resolutions, e2.Resolutions) {
			t.Fatalf("history %+v came back as %+v", e, e2)
		}
	})
}

// C30: an empty body, no body kept, and no answer at all are three things.
func TestC30_NothingAndNothingKeptDiffer(t *testing.T) {
	t.Parallel()
	empty := ledger.EncodeAnswer(&ledger.Response{}, nil)
	if r, f, err := ledger.DecodeAnswer(empty); err != nil || f != nil || r == nil || r.BodyOmitted || len(r.Body) != 0 {
		t.Errorf("an empty response came back as %+v %+v %v", r, f, err)
	}
	omitted := ledger.EncodeAnswer(&ledger.Response{BodyOmitted: true}, nil)
	if r, _, err := ledger.DecodeAnswer(omitted); err != nil || r == nil || !r.BodyOmitted {
		t.Errorf("a response without its body came back as %+v %v", r, err)
	}
	if r, f, err := ledger.DecodeAnswer(ledger.EncodeAnswer(nil, nil)); err != nil || r != nil || f != nil {
		t.Errorf("no answer came back as %+v %+v %v", r, f, err)
	}
	if err := ledger.DecodeHistory(ledger.EncodeHistory(&ledger.Entry{}), &ledger.Entry{}); err != nil {
		t.Errorf("no history: %v", err)
	}
}

// TestEncodingsRefuseWhatTheyDidNotWrite: every cut and every other version is an error, never half an entry.
func TestEncodingsRefuseWhatTheyDidNotWrite(t *testing.T) {
	t.Parallel()
	answer := ledger.EncodeAnswer(&ledger.Response{Body: []byte("x"), Metadata: []ledger.MetadataPair{{Name: "a", Value: []byte{0}}}}, nil)
	history := ledger.EncodeHistory(&ledger.Entry{Earlier: make([]ledger.Attempt, 2), Resolutions: make([]ledger.Resolution, 1)})
	prints := ledger.EncodeFingerprints(fingerprintsOf(command{}))
	decode := map[string]struct {
		stored []byte
		read   func([]byte) error
	}{
		"answer":       {answer, func(b []byte) error { _, _, err := ledger.DecodeAnswer(b); return err }},
		"history":      {history, func(b []byte) error { return ledger.DecodeHistory(b, &ledger.Entry{}) }},
		"fingerprints": {prints, func(b []byte) error { _, err := ledger.DecodeFingerprints(b); return err }},
	}
	for name, d := range decode {
		if err := d.read(d.stored); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for cut := 1; cut < len(d.stored); cut++ {
			if d.read(d.stored[:cut]) == nil {
				t.Errorf("%s: cut to %d of %d bytes, and read", name, cut, len(d.stored))
			}
		}
		if d.read(append(bytes.Clone(d.stored), 0)) == nil {
			t.Errorf("%s: a byte too many, and read", name)
		}
		other := bytes.Clone(d.stored)
		other[0] = 2
		if d.read(other) == nil {
			t.Errorf("%s: another version, and read", name)
		}
	}
}

// within fails when f allocates more than what n stored bytes can honestly need: lengths in stored bytes are not to be trusted.
func within(t *testing.T, n int, f func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > uint64(1<<20+n*1000) {
		t.Errorf("%d stored bytes made it allocate %d", n, grown)
	}
}

func FuzzDecodeAnswer(f *testing.F) {
	f.Add(ledger.EncodeAnswer(&ledger.Response{Body: []byte("x"), Metadata: []ledger.MetadataPair{{Name: "a"}}}, nil))
	f.Add(ledger.EncodeAnswer(nil, &ledger.Failure{Code: 9, Details: []ledger.Detail{{TypeURL: "t"}}}))
	f.Add([]byte{1, 1, 0, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		within(t, len(b), func() {
			if r, fail, err := ledger.DecodeAnswer(b); err == nil {
				_ = ledger.EncodeAnswer(r, fail)
			}
		})
	})
}

func FuzzDecodeHistory(f *testing.F) {
	f.Add(ledger.EncodeHistory(&ledger.Entry{Earlier: make([]ledger.Attempt, 3), Evidence: &ledger.Evidence{Response: &ledger.Response{}}}))
	f.Add(ledger.EncodeHistory(&ledger.Entry{Resolutions: make([]ledger.Resolution, 3)}))
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, b []byte) {
		within(t, len(b), func() { _ = ledger.DecodeHistory(b, &ledger.Entry{}) })
	})
}

func FuzzDecodeFingerprints(f *testing.F) {
	f.Add(ledger.EncodeFingerprints(fingerprintsOf(command{})))
	f.Add([]byte{1, 0xff, 0xff, 0x03})
	f.Fuzz(func(t *testing.T, b []byte) {
		within(t, len(b), func() { _, _ = ledger.DecodeFingerprints(b) })
	})
}
