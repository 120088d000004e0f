package httpidem

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/fingerprint"
)

// AlgorithmHTTP is the fingerprint of an HTTP request; docs/http.md specifies it.
const AlgorithmHTTP = "http-sha256-v1"

var errTooLarge = &clientlib.Error{
	Code: codes.ResourceExhausted, Reason: ReasonBodyTooLarge, FromServer: true,
	Message: "the body is over the limit of what can be carried out once; nothing was done",
}

// readBody reads a body whole, so that it can be hashed and then handed on. The error is errTooLarge where it is over the
// limit: read is then what was read already.
func readBody(r *http.Request, limit int64) (read []byte, err *clientlib.Error) {
	if r.ContentLength > limit {
		return nil, errTooLarge
	}
	if r.Body != nil && r.Body != http.NoBody {
		var readErr error
		read, readErr = io.ReadAll(io.LimitReader(r.Body, limit+1))
		var tooLarge *http.MaxBytesError
		switch {
		case errors.As(readErr, &tooLarge):
			return nil, errTooLarge
		case errors.Is(readErr, http.ErrBodyReadAfterClose):
			return nil, alreadyRead()
		case readErr != nil:
			return nil, &clientlib.Error{
				Code: codes.InvalidArgument, Reason: ReasonBodyUnreadable, FromServer: true,
				Message: "the body could not be read to its end; nothing was done",
			}
		case int64(len(read)) > limit:
			return read, errTooLarge
		}
	}
	// A body that somebody read before us would make one fingerprint of all requests. net/http reports one that the client cut
	// short as an error, so a clean end before the announced length, or of a body of no announced length that has nothing in it,
	// is somebody's reading.
	if int64(len(read)) < r.ContentLength || r.ContentLength < 0 && len(read) == 0 {
		return nil, alreadyRead()
	}
	return read, nil
}

func alreadyRead() *clientlib.Error {
	return &clientlib.Error{
		Code: codes.Internal, Reason: ReasonBodyAlreadyRead, FromServer: true,
		Message: "the body was read before the guard saw it, or is empty and of no announced length; nothing was done",
	}
}

// restore puts a body that was read in place of the original, to be read again.
func restore(r *http.Request, body []byte) *http.Request {
	if r.Body == nil || r.Body == http.NoBody {
		return r
	}
	again := r.WithContext(r.Context())
	again.Body = &restored{Reader: bytes.NewReader(body), original: r.Body}
	return again
}

// restored reads what was read before and closes the original.
type restored struct {
	io.Reader
	original io.Closer
}

func (b *restored) Close() error { return b.original.Close() }

// fingerprintOf says what was asked, and by whom. There is one algorithm for all requests, so that two that differ in kind,
// such as JSON and a form, are two requests and not incomparable. Each part has its length before it, so that none runs into
// the next. The host is left out: which name a service was reached by changes nothing.
func (g *guard) fingerprintOf(r *http.Request, principal string, body []byte) fingerprint.Fingerprint {
	digest := sha256.New()
	digest.Write([]byte("idem.fingerprint:" + AlgorithmHTTP + "\x00"))
	part(digest, principal)
	part(digest, r.Method)
	part(digest, r.URL.EscapedPath())
	part(digest, canonicalQuery(r.URL.RawQuery))
	for _, name := range g.HashHeaders {
		values := r.Header.Values(name)
		if name == "content-encoding" && isIdentity(values) {
			values = nil
		}
		count(digest, len(values))
		for _, value := range values {
			if name == "content-type" {
				value = canonicalType(value)
			}
			part(digest, value)
		}
	}
	of := g.bodyFingerprint(r.Header, body)
	part(digest, of.Algorithm)
	part(digest, string(of.Hash))
	return fingerprint.Fingerprint{Algorithm: AlgorithmHTTP, Hash: digest.Sum(nil)}
}

// bodyFingerprint hashes JSON by its value and anything else by its bytes. JSON that has no fingerprint of its own (it is
// ambiguous, or none at all) is for the handler to refuse; its bytes tell it apart well enough.
func (g *guard) bodyFingerprint(header http.Header, body []byte) fingerprint.Fingerprint {
	if len(body) == 0 {
		return fingerprint.Fingerprint{}
	}
	if isJSON(header.Get("Content-Type")) && isIdentity(header.Values("Content-Encoding")) {
		if sum, err := g.json.Sum(body); err == nil {
			return sum
		}
	}
	sum, err := fingerprint.Bytes(body)
	if err != nil {
		// Only of nothing at all, which was seen to above.
		return fingerprint.Fingerprint{}
	}
	return sum
}

func part(digest hash.Hash, text string) {
	count(digest, len(text))
	digest.Write([]byte(text))
}

func count(digest hash.Hash, n int) {
	var length [8]byte
	binary.BigEndian.PutUint64(length[:], uint64(n)) //nolint:gosec // a length is not negative
	digest.Write(length[:])
}

// canonicalQuery orders a query by its names, since clients that build it from a map do not; of one name the order counts.
func canonicalQuery(raw string) string {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return raw
	}
	return values.Encode()
}

func canonicalType(contentType string) string {
	kind, parameters, err := mime.ParseMediaType(contentType)
	if err != nil {
		return contentType
	}
	if canonical := mime.FormatMediaType(kind, parameters); canonical != "" {
		return canonical
	}
	return contentType
}

func isJSON(contentType string) bool {
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && (kind == "application/json" || kind == "text/json" || strings.HasSuffix(kind, "+json"))
}

func isIdentity(encodings []string) bool {
	return len(encodings) == 0 || len(encodings) == 1 && (encodings[0] == "" || strings.EqualFold(encodings[0], "identity"))
}
