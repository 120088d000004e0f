package ledger

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// The parts of an entry that no statement looks into are stored as bytes in this encoding: a version byte, then fields in a fixed
// order, integers as varints, texts and bytes with their length before them. The encoding is persisted: a change needs a new version
// byte, and old ones must stay readable.
const encodingVersion = 1

var errEncoding = errors.New("ledger: stored bytes are not in the expected encoding")

// EncodeFingerprints encodes an entry's fingerprints.
func EncodeFingerprints(fps []Fingerprint) []byte {
	e := encoder{encodingVersion}
	e.uint(uint64(len(fps)))
	for _, fp := range fps {
		e.text(fp.Algorithm)
		e.bytes(fp.Hash)
	}
	return e
}

// DecodeFingerprints is the inverse of EncodeFingerprints.
func DecodeFingerprints(b []byte) ([]Fingerprint, error) {
	d := newDecoder(b)
	fps := make([]Fingerprint, 0, 1)
	for n := d.count(); n > 0 && d.err == nil; n-- {
		fps = append(fps, Fingerprint{Algorithm: d.text(), Hash: d.bytes()})
	}
	return fps, d.end()
}

// EncodeAnswer encodes a response or a failure; nil if there is neither.
func EncodeAnswer(r *Response, f *Failure) []byte {
	if r == nil && f == nil {
		return nil
	}
	e := make(encoder, 0, 64+answerSize(r))
	e = append(e, encodingVersion)
	e.answer(r, f)
	return e
}

// DecodeAnswer is the inverse of EncodeAnswer.
func DecodeAnswer(b []byte) (*Response, *Failure, error) {
	if len(b) == 0 {
		return nil, nil, nil
	}
	d := newDecoder(b)
	r, f := d.answer()
	return r, f, d.end()
}

// EncodeHistory encodes earlier attempts, evidence and resolutions; nil if there are none.
func EncodeHistory(entry *Entry) []byte {
	if len(entry.Earlier) == 0 && entry.Evidence == nil && len(entry.Resolutions) == 0 {
		return nil
	}
	e := encoder{encodingVersion}
	e.uint(uint64(len(entry.Earlier)))
	for i := range entry.Earlier {
		e.attempt(&entry.Earlier[i])
	}
	e.bool(entry.Evidence != nil)
	if ev := entry.Evidence; ev != nil {
		e.int(int64(ev.Attempt))
		e.int(int64(ev.At))
		e.bytes(ev.Report[:])
		e.answer(ev.Response, ev.Failure)
	}
	e.uint(uint64(len(entry.Resolutions)))
	for i := range entry.Resolutions {
		r := &entry.Resolutions[i]
		e.int(int64(r.Action))
		e.int(int64(r.Attempt))
		e.int(int64(r.At))
		e.text(r.Principal)
		e.text(r.Reason)
		e.bytes(r.Report[:])
	}
	return e
}

// DecodeHistory is the inverse of EncodeHistory: it sets Earlier, Evidence and Resolutions of entry.
func DecodeHistory(b []byte, entry *Entry) error {
	entry.Earlier, entry.Evidence, entry.Resolutions = nil, nil, nil
	if len(b) == 0 {
		return nil
	}
	d := newDecoder(b)
	for n := d.count(); n > 0 && d.err == nil; n-- {
		entry.Earlier = append(entry.Earlier, d.attempt())
	}
	if d.bool() {
		ev := &Evidence{Attempt: int32(d.int()), At: Time(d.int()), Report: d.digest()}
		ev.Response, ev.Failure = d.answer()
		entry.Evidence = ev
	}
	for n := d.count(); n > 0 && d.err == nil; n-- {
		entry.Resolutions = append(entry.Resolutions, Resolution{
			Action: ResolveAction(d.int()), Attempt: int32(d.int()), At: Time(d.int()),
			Principal: d.text(), Reason: d.text(), Report: d.digest(),
		})
	}
	return d.end()
}

func answerSize(r *Response) int {
	if r == nil {
		return 0
	}
	return len(r.Body)
}

type encoder []byte

func (e *encoder) uint(v uint64) { *e = binary.AppendUvarint(*e, v) }
func (e *encoder) int(v int64)   { *e = binary.AppendVarint(*e, v) }
func (e *encoder) text(s string) { e.uint(uint64(len(s))); *e = append(*e, s...) }
func (e *encoder) bytes(b []byte) {
	e.uint(uint64(len(b)))
	*e = append(*e, b...)
}

func (e *encoder) bool(b bool) {
	if b {
		*e = append(*e, 1)
	} else {
		*e = append(*e, 0)
	}
}

func (e *encoder) answer(r *Response, f *Failure) {
	e.bool(r != nil)
	if r != nil {
		e.int(int64(r.Code))
		e.bytes(r.Body)
		e.text(r.ContentType)
		e.uint(uint64(len(r.Metadata)))
		for _, m := range r.Metadata {
			e.text(m.Name)
			e.bytes(m.Value)
		}
		e.text(r.ResourceType)
		e.text(r.ResourceID)
		e.bool(r.BodyOmitted)
		e.int(r.BodySize)
		e.bytes(r.BodySHA256)
		return
	}
	e.bool(f != nil)
	if f == nil {
		return
	}
	e.int(int64(f.Code))
	e.text(f.Message)
	e.uint(uint64(len(f.Details)))
	for _, x := range f.Details {
		e.text(x.TypeURL)
		e.bytes(x.Value)
	}
	e.bool(f.DetailsOmitted)
	e.int(int64(f.Disposition))
}

func (e *encoder) attempt(a *Attempt) {
	e.int(int64(a.Number))
	e.bytes(a.IDHash[:])
	e.text(a.Holder)
	e.text(a.Principal)
	e.bool(a.RecoverOnly)
	e.bool(a.OnCredit)
	e.int(int64(a.Lease))
	e.int(int64(a.BeganAt))
	e.int(int64(a.LeaseUntil))
	e.int(int64(a.EndedAt))
	e.int(int64(a.Ended))
	e.bytes(a.Report[:])
}

// decoder reads what encoder wrote. The first fault sticks: everything after it reads as zero.
type decoder struct {
	rest []byte
	err  error
}

func newDecoder(b []byte) *decoder {
	d := &decoder{rest: b}
	if v := d.byte(); d.err == nil && v != encodingVersion {
		d.err = fmt.Errorf("%w: version %d", errEncoding, v)
	}
	return d
}

func (d *decoder) fail() { d.err, d.rest = errEncoding, nil }

func (d *decoder) byte() byte {
	if d.err != nil || len(d.rest) == 0 {
		d.fail()
		return 0
	}
	b := d.rest[0]
	d.rest = d.rest[1:]
	return b
}

func (d *decoder) bool() bool {
	switch d.byte() {
	case 0:
		return false
	case 1:
		return true
	default:
		d.fail()
		return false
	}
}

func (d *decoder) uint() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) int() int64 {
	v, n := binary.Varint(d.rest)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

// count reads the length of a list. Every item takes at least one byte, so a longer list than bytes is a fault.
func (d *decoder) count() int {
	n := d.uint()
	if n > uint64(len(d.rest)) {
		d.fail()
		return 0
	}
	return int(n)
}

func (d *decoder) take() []byte {
	n := d.count()
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) text() string { return string(d.take()) }

func (d *decoder) bytes() []byte { return append([]byte{}, d.take()...) }

func (d *decoder) digest() (out Digest) {
	if b := d.take(); len(b) == len(out) {
		copy(out[:], b)
	} else {
		d.fail()
	}
	return out
}

func (d *decoder) end() error {
	if d.err == nil && len(d.rest) != 0 {
		d.fail()
	}
	return d.err
}

func (d *decoder) answer() (*Response, *Failure) {
	if d.bool() {
		r := &Response{Code: int32(d.int()), Body: d.bytes(), ContentType: d.text()}
		for n := d.count(); n > 0 && d.err == nil; n-- {
			r.Metadata = append(r.Metadata, MetadataPair{Name: d.text(), Value: d.bytes()})
		}
		r.ResourceType, r.ResourceID = d.text(), d.text()
		r.BodyOmitted, r.BodySize, r.BodySHA256 = d.bool(), d.int(), d.bytes()
		if len(r.BodySHA256) == 0 {
			r.BodySHA256 = nil
		}
		return r, nil
	}
	if !d.bool() {
		return nil, nil
	}
	f := &Failure{Code: int32(d.int()), Message: d.text()}
	for n := d.count(); n > 0 && d.err == nil; n-- {
		f.Details = append(f.Details, Detail{TypeURL: d.text(), Value: d.bytes()})
	}
	f.DetailsOmitted, f.Disposition = d.bool(), Disposition(d.int())
	return nil, f
}

func (d *decoder) attempt() Attempt {
	a := Attempt{Number: int32(d.int())}
	if b := d.take(); len(b) == len(a.IDHash) {
		copy(a.IDHash[:], b)
	} else {
		d.fail()
	}
	a.Holder, a.Principal = d.text(), d.text()
	a.RecoverOnly, a.OnCredit = d.bool(), d.bool()
	a.Lease = time.Duration(d.int())
	a.BeganAt, a.LeaseUntil, a.EndedAt = Time(d.int()), Time(d.int()), Time(d.int())
	a.Ended = Ended(d.int())
	a.Report = d.digest()
	return a
}
