package httpidem

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"hash"
	"maps"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"
)

// capture takes what a handler writes and holds it back, so that it is sent once it is recorded, or not at all where the
// claim was lost meanwhile. What is too long, or is sent in pieces, it passes on instead, and notes only its length and hash.
//
// The header map is that of the underlying writer: what stands outside of the guard has put its own fields there.
type capture struct {
	w http.ResponseWriter
	// outside is what was in the header before the handler.
	outside http.Header
	// limit is how much of a body is held back, in bytes.
	limit int
	// outcome is what the answer is marked with.
	outcome string

	status int // 0: not yet given
	// head is the header as it was when the status was given. What is changed later can only be a trailer.
	head http.Header
	body bytes.Buffer
	// announced is the length that the handler said the body has; -1: it said none.
	announced int64
	// declared says that the handler chose whether there is a Content-Type; else it is guessed, as net/http does.
	declared bool

	passing  bool
	hijacked bool
	// Of what is passed on: how long it was, its hash, and whether writing it failed.
	size   int64
	sum    hash.Hash
	failed error
}

func newCapture(w http.ResponseWriter, limit int) *capture {
	return &capture{w: w, outside: w.Header().Clone(), limit: limit, sum: sha256.New()}
}

// committed says whether the client has been sent an answer, so that there is no other to be given.
func (c *capture) committed() bool { return c.passing || c.hijacked }

// Unwrap is for http.ResponseController.
func (c *capture) Unwrap() http.ResponseWriter { return c.w }

// Header is the header to be sent.
func (c *capture) Header() http.Header { return c.w.Header() }

// WriteHeader notes the status. Informational ones go out at once, as they would without a guard.
func (c *capture) WriteHeader(status int) {
	if c.hijacked || c.status != 0 {
		return
	}
	switch {
	case status < 100 || status > 999:
		panic(fmt.Sprintf("httpidem: invalid WriteHeader code %v", status)) // as net/http has it
	case status < 200 && status != http.StatusSwitchingProtocols:
		c.w.WriteHeader(status)
		return
	}
	c.status, c.head = status, c.Header().Clone()
	if c.head == nil {
		c.head = http.Header{}
	}
	_, c.declared = c.head["Content-Type"]
	c.announced = -1
	if length, err := strconv.ParseInt(c.head.Get("Content-Length"), 10, 64); err == nil && length >= 0 {
		c.announced = length
	}
	kind, _, _ := mime.ParseMediaType(c.head.Get("Content-Type"))
	if status == http.StatusSwitchingProtocols || kind == "text/event-stream" {
		c.pass()
	}
}

// Write holds data back, or passes it on.
func (c *capture) Write(data []byte) (int, error) {
	if c.hijacked {
		return 0, http.ErrHijacked
	}
	if c.status == 0 {
		c.WriteHeader(http.StatusOK)
	}
	if !hasBody(c.status) {
		return 0, http.ErrBodyNotAllowed
	}
	if !c.passing {
		if c.announced >= 0 && int64(c.body.Len()+len(data)) > c.announced {
			return 0, http.ErrContentLength // as net/http has it: held back, it would have the whole answer refused
		}
		if c.body.Len()+len(data) <= c.limit {
			return c.body.Write(data)
		}
		c.pass()
	}
	return c.forward(data)
}

func (c *capture) forward(data []byte) (int, error) {
	n, err := c.w.Write(data)
	c.size += int64(n)
	c.sum.Write(data[:n])
	if err != nil {
		c.failed = err
	}
	return n, err
}

// Flush is for http.Flusher.
func (c *capture) Flush() { _ = c.FlushError() }

// FlushError is for http.ResponseController. A handler that flushes wants its client to have what there is, now.
func (c *capture) FlushError() error {
	if c.hijacked {
		return http.ErrHijacked
	}
	if c.status == 0 {
		c.WriteHeader(http.StatusOK)
	}
	if !c.passing {
		c.pass()
	}
	err := http.NewResponseController(c.w).Flush()
	if err != nil {
		c.failed = err
	}
	return err
}

// Hijack is for http.Hijacker.
func (c *capture) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffer, err := http.NewResponseController(c.w).Hijack()
	if err == nil {
		c.hijacked = true
	}
	return conn, buffer, err
}

// pass sends what was held back, and from now on whatever comes.
func (c *capture) pass() {
	c.passing = true
	c.sendHead()
	if c.body.Len() > 0 {
		_, _ = c.forward(c.body.Bytes())
		c.body = bytes.Buffer{}
	}
}

// finish takes a handler that never wrote for one that had nothing to say.
func (c *capture) finish() {
	if c.status == 0 && !c.hijacked {
		c.WriteHeader(http.StatusOK)
	}
	if c.status != 0 && !c.declared && c.body.Len() > 0 && c.head.Get("Content-Encoding") == "" {
		c.head.Set("Content-Type", http.DetectContentType(c.body.Bytes()))
	}
}

// send sends what was held back, after it was recorded. That the client may be gone is no matter here.
func (c *capture) send(wouldBe string) {
	if c.committed() {
		return
	}
	if wouldBe != "" {
		c.head.Set(WouldBeHeader, wouldBe)
	}
	c.sendHead()
	if c.body.Len() > 0 {
		_, _ = c.w.Write(c.body.Bytes())
	}
}

// sendHead sends status and header as they were when the status was given, and keeps later changes for the trailer.
func (c *capture) sendHead() {
	live := c.Header()
	later := live.Clone()
	setHeader(live, c.head)
	for _, name := range []string{ReplayedHeader, OriginalTimeHeader} {
		live.Del(name) // of a guard further on: this answer is of now
	}
	live.Set(OutcomeHeader, c.outcome)
	c.w.WriteHeader(c.status)
	setHeader(live, later)
}

// discard forgets the handler's answer, where there is another to be sent.
func (c *capture) discard() { setHeader(c.Header(), c.outside) }

// trailer is what the handler set after the header, of the names that it declared or marked as trailers.
func (c *capture) trailer() http.Header {
	found := http.Header{}
	live := c.Header()
	for _, list := range c.head.Values("Trailer") {
		for name := range strings.SplitSeq(list, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			if values := live.Values(name); len(values) > 0 {
				found[name] = values
			}
		}
	}
	for name, values := range live {
		if name, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			name = http.CanonicalHeaderKey(name)
			found[name] = append(found[name], values...)
		}
	}
	return found
}

// setHeader makes a header map equal to another, without replacing it.
func setHeader(header, to http.Header) {
	clear(header)
	maps.Copy(header, to)
}

// hasBody says whether answers of a status can have a body.
func hasBody(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}
