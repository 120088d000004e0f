package ledger

import (
	"crypto/sha256"
	"hash"
	"slices"
	"unicode/utf8"
)

// ReportDigest identifies a report as its sender gave it, before anything was trimmed, so that a resend is recognised whatever policy
// says about storing it. A body counts by its size and SHA-256, so a body that was omitted is the same as the body itself.
func ReportDigest(r *Response, f *Failure) Digest {
	h := sha256.New()
	if r != nil {
		digestResponse(h, r)
	} else {
		digestFailure(h, f)
	}
	return Digest(h.Sum(nil))
}

func digestResponse(h hash.Hash, r *Response) {
	e := encoder{'R'}
	size, sum := r.BodySize, r.BodySHA256
	if !r.BodyOmitted {
		body := sha256.Sum256(r.Body)
		size, sum = int64(len(r.Body)), body[:]
	}
	e.int(int64(r.Code))
	e.int(size)
	e.bytes(sum)
	e.text(r.ContentType)
	e.uint(uint64(len(r.Metadata)))
	for _, m := range r.Metadata {
		e.text(m.Name)
		e.bytes(m.Value)
	}
	e.text(r.ResourceType)
	e.text(r.ResourceID)
	h.Write(e)
}

func digestFailure(h hash.Hash, f *Failure) {
	e := encoder{'F'}
	e.answer(nil, f)
	h.Write(e)
}

// withoutBody returns r with its body omitted, described by size and hash.
func (r *Response) withoutBody() *Response {
	c := *r
	if !c.BodyOmitted {
		sum := sha256.Sum256(c.Body)
		c.BodyOmitted, c.BodySize, c.BodySHA256, c.Body = true, int64(len(r.Body)), sum[:], nil
	}
	return &c
}

// TrimResponse returns what the rules let the ledger keep of a response. It never refuses: a settlement is worth more than its body.
func (r *Rules) TrimResponse(in *Response) *Response {
	out := *in
	if r.StoreResponse != StoreFull || int64(len(in.Body)) > r.MaxResponseBytes {
		out = *in.withoutBody()
	}
	out.Metadata = nil
	kept := 0
	for _, m := range in.Metadata {
		if r.StoreResponse != StoreFull || !r.Keeps(m.Name) {
			continue
		}
		if kept += len(m.Name) + len(m.Value); kept <= MaxMetadataBytes {
			out.Metadata = append(out.Metadata, m)
		}
	}
	if r.StoreResponse != StoreFull || utf8.RuneCountInString(out.ContentType) > MaxResourceChars {
		out.ContentType = ""
	}
	tooLong := utf8.RuneCountInString(out.ResourceType) > MaxResourceChars || utf8.RuneCountInString(out.ResourceID) > MaxResourceChars
	if r.StoreResponse == StoreNone || tooLong {
		out.ResourceType, out.ResourceID = "", ""
	}
	return &out
}

// TrimFailure returns what the rules let the ledger keep of a failure. As of a response, POINTER keeps no content (the details), and NONE the
// code only; details over the limit are omitted and a long message is cut at a character. DetailsOmitted says that something is missing.
func (r *Rules) TrimFailure(in *Failure) *Failure {
	out := *in
	size := 0
	for _, d := range in.Details {
		size += len(d.TypeURL) + len(d.Value)
	}
	if size > MaxDetailsBytes || size > 0 && r.StoreResponse != StoreFull {
		out.Details, out.DetailsOmitted = nil, true
	}
	longest := MaxMessageBytes
	if r.StoreResponse == StoreNone {
		longest = 0
	}
	if len(out.Message) > longest {
		cut := longest
		for cut > 0 && !utf8.RuneStart(out.Message[cut]) {
			cut--
		}
		out.Message, out.DetailsOmitted = out.Message[:cut], true
	}
	out.Details = slices.Clip(out.Details)
	return &out
}
