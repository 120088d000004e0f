package sqlitestore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/idemd/idemd/ledger"
)

// The details of an entry are what no statement looks for and no operator reads: one blob in its row, so that SQLite handles one value and not thirty. A version
// byte, flags, then fields in a fixed order, numbers as varints; sealed as an answer is. The encoding is persisted: a change needs a new version byte, and old
// ones must stay readable.
const detailsVersion = 1

// The flags. A field that its flag says is not there is not set, or is the one that it most often is.
const (
	detailCurrent = 1 << iota
	detailDoubt
	detailCredit
	detailRecoverOnly
	detailOnCredit
	detailNeverHeld     // HoldFrom is Never
	detailSameTombstone // as long as the retention
	detailWholeSeconds  // lengths of time are in seconds, not nanoseconds
	detailBound
	detailIDHash
	detailReport
	detailReportSettled // the report is the settlement
	detailSettlement
	detailAnswerApart // the answer stands in its own table
	detailHistoryApart
	detailFlagsEnd
)

var errDetails = errors.New("not in the expected encoding")

// details is what a row's blob says beside what it says of the entry.
type details struct {
	fingerprints []byte // as ledger.EncodeFingerprints makes them
	answerApart  bool
	historyApart bool
}

// encodeDetails is the blob of an entry, sealed.
func encodeDetails(e *ledger.Entry, d details) []byte {
	var flags uint64
	set := func(is bool, flag uint64) {
		if is {
			flags |= flag
		}
	}
	set(e.Current, detailCurrent)
	set(e.Doubt, detailDoubt)
	set(e.Credit, detailCredit)
	set(e.Last.RecoverOnly, detailRecoverOnly)
	set(e.Last.OnCredit, detailOnCredit)
	set(e.HoldFrom == ledger.Never, detailNeverHeld)
	set(e.Terms.Tombstone == e.Terms.Retention, detailSameTombstone)
	unit := unitOf(e)
	set(unit == time.Second, detailWholeSeconds)
	set(e.Terms.Bound != ledger.PrincipalHash{}, detailBound)
	set(e.Last.IDHash != ledger.IDHash{}, detailIDHash)
	set(e.Settlement != ledger.Digest{}, detailSettlement)
	set(d.answerApart, detailAnswerApart)
	set(d.historyApart, detailHistoryApart)
	switch {
	case e.Last.Report == ledger.Digest{}:
	case e.Last.Report == e.Settlement:
		flags |= detailReportSettled
	default:
		flags |= detailReport
	}

	w := detailsWriter(make([]byte, 0, 160+len(d.fingerprints)))
	w = append(w, detailsVersion)
	w.uint(flags)
	w.uint(uint64(len(d.fingerprints)))
	w = append(w, d.fingerprints...)
	if flags&detailNeverHeld == 0 {
		w.time(e, e.HoldFrom)
	}
	w.int(int64(e.RunGrants))
	w.int(int64(e.Terms.OnAbandoned))
	w.int(int64(e.Terms.MaxAttempts))
	w.int(int64(e.Terms.ReclaimWithin / unit))
	w.int(int64(e.Terms.Retention / unit))
	if flags&detailSameTombstone == 0 {
		w.int(int64(e.Terms.Tombstone / unit))
	}
	w.int(int64(e.Last.Lease / unit))
	w.time(e, e.Last.BeganAt)
	w.time(e, e.Last.EndedAt)
	w.int(int64(e.Last.Ended))
	w.time(e, e.AbandonedAt)
	w.int(int64(e.SettledBy))
	w.hash(flags&detailBound, e.Terms.Bound[:])
	w.hash(flags&detailIDHash, e.Last.IDHash[:])
	w.hash(flags&detailReport, e.Last.Report[:])
	w.hash(flags&detailSettlement, e.Settlement[:])
	return sealed(&e.Scope, w)
}

// decodeDetails is the inverse of encodeDetails. The entry's Scope and Incarnation must be set.
func decodeDetails(e *ledger.Entry, blob []byte) (details, error) {
	body, err := unsealed(&e.Scope, blob)
	if err != nil {
		return details{}, err
	}
	if len(body) == 0 || body[0] != detailsVersion {
		return details{}, fmt.Errorf("%w: another version", errDetails)
	}
	r := detailsReader{rest: body[1:], unit: time.Nanosecond}
	flags := r.uint()
	is := func(flag uint64) bool { return flags&flag != 0 }
	d := details{fingerprints: r.take(r.uint()), answerApart: is(detailAnswerApart), historyApart: is(detailHistoryApart)}
	e.Current, e.Doubt, e.Credit = is(detailCurrent), is(detailDoubt), is(detailCredit)
	e.Last.RecoverOnly, e.Last.OnCredit = is(detailRecoverOnly), is(detailOnCredit)
	e.HoldFrom = ledger.Never
	if !is(detailNeverHeld) {
		e.HoldFrom = r.time(e)
	}
	e.RunGrants = r.int32()
	e.Terms.OnAbandoned, e.Terms.MaxAttempts = ledger.OnAbandoned(r.int16()), r.int32()
	if is(detailWholeSeconds) {
		r.unit = time.Second
	}
	e.Terms.ReclaimWithin, e.Terms.Retention = r.duration(), r.duration()
	e.Terms.Tombstone = e.Terms.Retention
	if !is(detailSameTombstone) {
		e.Terms.Tombstone = r.duration()
	}
	e.Last.Lease = r.duration()
	e.Last.BeganAt, e.Last.EndedAt = r.time(e), r.time(e)
	e.Last.Ended = ledger.Ended(r.int16())
	e.AbandonedAt, e.SettledBy = r.time(e), r.int32()
	r.hash(is(detailBound), e.Terms.Bound[:])
	r.hash(is(detailIDHash), e.Last.IDHash[:])
	r.hash(is(detailReport), e.Last.Report[:])
	r.hash(is(detailSettlement), e.Settlement[:])
	if is(detailReportSettled) {
		e.Last.Report = e.Settlement
	}
	if r.failed || len(r.rest) != 0 || flags >= detailFlagsEnd || is(detailReport) && is(detailReportSettled) {
		return details{}, errDetails
	}
	return d, nil
}

type detailsWriter []byte

func (w *detailsWriter) uint(v uint64) { *w = binary.AppendUvarint(*w, v) }
func (w *detailsWriter) int(v int64)   { *w = binary.AppendVarint(*w, v) }

// time writes a time of e as 0 where it is not set, else one more than how long it is after the incarnation, with the sign in the last bit.
func (w *detailsWriter) time(e *ledger.Entry, t ledger.Time) {
	if t == 0 {
		w.uint(0)
		return
	}
	d := int64(t - e.Incarnation)
	w.uint(uint64(d<<1^d>>63) + 1) //nolint:gosec // all 64 bits are meant
}

// unitOf is the largest of second and nanosecond that all lengths of time of e are whole numbers of. Most are seconds, and take half the room.
func unitOf(e *ledger.Entry) time.Duration {
	for _, d := range []time.Duration{e.Terms.ReclaimWithin, e.Terms.Retention, e.Terms.Tombstone, e.Last.Lease} {
		if d%time.Second != 0 {
			return time.Nanosecond
		}
	}
	return time.Second
}

func (w *detailsWriter) hash(flag uint64, hash []byte) {
	if flag != 0 {
		*w = append(*w, hash...)
	}
}

// detailsReader reads what detailsWriter wrote. After the first fault everything reads as zero.
type detailsReader struct {
	rest   []byte
	unit   time.Duration
	failed bool
}

func (r *detailsReader) fail() { r.rest, r.failed = nil, true }

func (r *detailsReader) uint() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *detailsReader) int() int64 {
	v, n := binary.Varint(r.rest)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *detailsReader) int32() int32 {
	v := r.int()
	if v != int64(int32(v)) {
		r.fail()
	}
	return int32(v)
}

func (r *detailsReader) int16() int16 {
	v := r.int()
	if v != int64(int16(v)) {
		r.fail()
	}
	return int16(v)
}

func (r *detailsReader) take(n uint64) []byte {
	if n > uint64(len(r.rest)) {
		r.fail()
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

func (r *detailsReader) duration() time.Duration {
	v := time.Duration(r.int())
	if v*r.unit/r.unit != v {
		r.fail()
	}
	return v * r.unit
}

func (r *detailsReader) time(e *ledger.Entry) ledger.Time {
	v := r.uint()
	if v == 0 {
		return 0
	}
	v--
	return e.Incarnation + (ledger.Time(v>>1) ^ -ledger.Time(v&1)) //nolint:gosec // all 64 bits are meant
}

func (r *detailsReader) hash(there bool, into []byte) {
	if there {
		copy(into, r.take(uint64(len(into))))
	}
}
