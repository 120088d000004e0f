package storetest

import (
	"slices"

	"github.com/idemd/idemd/ledger"
)

// copyEntry returns a copy that shares no memory with e. [ledger.Entry.Clone] shares bodies, which is right inside the ledger, where
// nothing changes one in place; a store must not rely on its callers for that.
func copyEntry(e *ledger.Entry) *ledger.Entry {
	if e == nil {
		return nil
	}
	c := e.Clone()
	for i := range c.Fingerprints {
		c.Fingerprints[i].Hash = slices.Clone(c.Fingerprints[i].Hash)
	}
	c.Response, c.Failure = copyResponse(e.Response), copyFailure(e.Failure)
	if e.Evidence != nil {
		ev := *e.Evidence
		ev.Response, ev.Failure = copyResponse(ev.Response), copyFailure(ev.Failure)
		c.Evidence = &ev
	}
	return c
}

func copyResponse(r *ledger.Response) *ledger.Response {
	if r == nil {
		return nil
	}
	c := *r
	c.Body, c.BodySHA256 = slices.Clone(r.Body), slices.Clone(r.BodySHA256)
	c.Metadata = slices.Clone(r.Metadata)
	for i := range c.Metadata {
		c.Metadata[i].Value = slices.Clone(c.Metadata[i].Value)
	}
	return &c
}

func copyFailure(f *ledger.Failure) *ledger.Failure {
	if f == nil {
		return nil
	}
	c := *f
	c.Details = slices.Clone(f.Details)
	for i := range c.Details {
		c.Details[i].Value = slices.Clone(c.Details[i].Value)
	}
	return &c
}

func copyWrite(w ledger.Write) ledger.Write {
	w.Put = copyEntry(w.Put)
	if w.Settle != nil {
		s := *w.Settle
		s.Response, s.Failure = copyResponse(s.Response), copyFailure(s.Failure)
		w.Settle = &s
	}
	if w.Extend != nil {
		x := *w.Extend
		w.Extend = &x
	}
	return w
}
