package sqlitestore

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/idemd/idemd/ledger"
)

// drawDetailed draws an entry with what details hold, and nothing else.
func drawDetailed(t *rapid.T) (*ledger.Entry, details) {
	hash := func(name string, size int) []byte {
		if rapid.Bool().Draw(t, name+" is there") {
			return rapid.SliceOfN(rapid.Byte(), size, size).Draw(t, name)
		}
		return make([]byte, size)
	}
	moment := func(name string) ledger.Time {
		return ledger.Time(rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(1, math.MaxInt64)).Draw(t, name))
	}
	length := func(name string) time.Duration {
		if rapid.Bool().Draw(t, name+" in seconds") {
			return time.Duration(rapid.Int64Range(-1<<33, 1<<33).Draw(t, name)) * time.Second
		}
		return time.Duration(rapid.Int64().Draw(t, name))
	}
	e := &ledger.Entry{
		Scope: ledger.ScopeID(hash("scope", 32)), Incarnation: ledger.Time(rapid.Int64Range(1, math.MaxInt64).Draw(t, "incarnation")),
		Current: rapid.Bool().Draw(t, "current"), Doubt: rapid.Bool().Draw(t, "doubt"), Credit: rapid.Bool().Draw(t, "credit"),
		HoldFrom: rapid.SampledFrom([]ledger.Time{0, ledger.Never, moment("hold from")}).Draw(t, "held"), RunGrants: rapid.Int32().Draw(t, "grants"),
		Terms: ledger.Terms{
			OnAbandoned: ledger.OnAbandoned(rapid.Int16().Draw(t, "on abandoned")), MaxAttempts: rapid.Int32().Draw(t, "cap"),
			ReclaimWithin: length("reclaim within"), Retention: length("retention"), Tombstone: length("tombstone"),
			Bound: ledger.PrincipalHash(hash("bound", 16)),
		},
		Last: ledger.Attempt{
			IDHash: ledger.IDHash(hash("id", 16)), RecoverOnly: rapid.Bool().Draw(t, "recover"), OnCredit: rapid.Bool().Draw(t, "on credit"),
			Lease: length("lease"), BeganAt: moment("began"), EndedAt: moment("ended at"), Ended: ledger.Ended(rapid.Int16().Draw(t, "ended")),
			Report: ledger.Digest(hash("report", 32)),
		},
		AbandonedAt: moment("abandoned"), SettledBy: rapid.Int32().Draw(t, "by"), Settlement: ledger.Digest(hash("settlement", 32)),
	}
	if rapid.Bool().Draw(t, "one report") {
		e.Last.Report = e.Settlement
	}
	if rapid.Bool().Draw(t, "one length") {
		e.Terms.Tombstone = e.Terms.Retention
	}
	return e, details{
		fingerprints: rapid.SliceOf(rapid.Byte()).Draw(t, "fingerprints"),
		answerApart:  rapid.Bool().Draw(t, "answer apart"), historyApart: rapid.Bool().Draw(t, "history apart"),
	}
}

// blank is what a reader knows of e before its details.
func blank(e *ledger.Entry) *ledger.Entry {
	return &ledger.Entry{Scope: e.Scope, Incarnation: e.Incarnation}
}

func TestDetailsComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		e, d := drawDetailed(t)
		got := blank(e)
		back, err := decodeDetails(got, encodeDetails(e, d))
		if err != nil || !reflect.DeepEqual(got, e) {
			t.Fatalf("%+v came back as %+v: %v", e, got, err)
		}
		if !bytes.Equal(back.fingerprints, d.fingerprints) || back.answerApart != d.answerApart || back.historyApart != d.historyApart {
			t.Fatalf("%+v came back as %+v", d, back)
		}
	})
}

// TestDetailsRefuseWhatTheyDidNotWrite: a cut, a byte too many, another version or another scope's is an error, never half an entry.
func TestDetailsRefuseWhatTheyDidNotWrite(t *testing.T) {
	t.Parallel()
	e := claimed(1).Put
	e.Scope, e.Incarnation, e.Last.BeganAt, e.HoldFrom = scopeOf(1), testStart, testStart, testStart+5
	blob := encodeDetails(e, details{fingerprints: ledger.EncodeFingerprints(e.Fingerprints)})
	body := blob[:len(blob)-4]
	if _, err := decodeDetails(blank(e), sealed(&e.Scope, bytes.Clone(body))); err != nil {
		t.Fatal(err)
	}
	wrong := map[string][]byte{"too long": append(bytes.Clone(body), 0), "another version": append([]byte{2}, body[1:]...)}
	for cut := range body {
		if _, err := decodeDetails(blank(e), sealed(&e.Scope, bytes.Clone(body[:cut]))); err == nil {
			t.Errorf("cut to %d of %d bytes, and read", cut, len(body))
		}
	}
	for how, b := range wrong {
		if _, err := decodeDetails(blank(e), sealed(&e.Scope, bytes.Clone(b))); err == nil {
			t.Errorf("%s, and read", how)
		}
	}
	for at := range blob {
		turned := bytes.Clone(blob)
		turned[at] ^= 4
		if _, err := decodeDetails(blank(e), turned); !errors.Is(err, errChecksum) {
			t.Errorf("a bit turned in byte %d: %v", at, err)
		}
	}
	other := blank(e)
	other.Scope[31]++
	if _, err := decodeDetails(other, blob); !errors.Is(err, errChecksum) {
		t.Errorf("in another's row: %v", err)
	}
}

// FuzzDecodeDetails: whatever stands there, it is refused or is one entry's.
func FuzzDecodeDetails(f *testing.F) {
	e := claimed(1).Put
	e.Incarnation, e.Last.BeganAt = testStart, testStart
	blob := encodeDetails(e, details{fingerprints: []byte{1, 0}})
	f.Add(blob[:len(blob)-4])
	f.Add([]byte{1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, body []byte) {
		first := &ledger.Entry{Incarnation: testStart}
		d, err := decodeDetails(first, sealed(&first.Scope, bytes.Clone(body)))
		if err != nil {
			return
		}
		second := &ledger.Entry{Incarnation: testStart}
		if _, err := decodeDetails(second, encodeDetails(first, d)); err != nil || !reflect.DeepEqual(first, second) {
			t.Errorf("read as %+v, written and read as %+v: %v", first, second, err)
		}
	})
}
