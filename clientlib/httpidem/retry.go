package httpidem

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Defaults of [TransportConfig].
const (
	DefaultMaxTries       = 4
	DefaultFirstDelay     = 100 * time.Millisecond
	DefaultMaxDelay       = 5 * time.Second
	DefaultMaxRetryAfter  = 30 * time.Second
	DefaultMaxBufferBytes = 1 << 20
)

// TransportConfig says how requests get keys and are retried. Everything can be left out.
type TransportConfig struct {
	// Base sends the requests. Default: http.DefaultTransport.
	Base http.RoundTripper
	// Methods are the methods whose requests get keys and are retried. Default: POST, PATCH.
	Methods []string
	// Header is the name of the header. Default: Idempotency-Key.
	Header string
	// Bare sends keys without quotes, for services that take them only so. Default: in quotes, as the draft has them.
	Bare bool

	// MaxTries is how often a request is sent at most. 1: never again. Default: 4.
	MaxTries int
	// FirstDelay is the pause before the second try; each next one is twice as long, up to MaxDelay, all of them random over
	// their upper half. Default: 100 ms and 5 s.
	FirstDelay, MaxDelay time.Duration
	// MaxRetryAfter is the longest Retry-After that is waited for; with a longer one the answer is returned. Default: 30 s.
	MaxRetryAfter time.Duration
	// MaxBufferBytes is how much of a body is held to be sent again, where the request has no GetBody. A longer one is sent
	// once. Default: 1 MiB.
	MaxBufferBytes int64
	// RetryResponse says whether an answer is worth another try. Default: 409 and 503 that have a Retry-After, 425, and 429.
	RetryResponse func(*http.Response) bool
}

// Validate says what is wrong with the configuration, or nil.
func (c TransportConfig) Validate() error {
	switch {
	case c.Header != "" && !isName(c.Header):
		return invalid("TransportConfig.Header %q is not the name of a header", c.Header)
	case c.MaxTries < 0:
		return invalid("TransportConfig.MaxTries must not be negative")
	case c.FirstDelay < 0 || c.MaxDelay < 0 || c.MaxRetryAfter < 0:
		return invalid("TransportConfig: a delay must not be negative")
	case c.MaxBufferBytes < 0:
		return invalid("TransportConfig.MaxBufferBytes must not be negative")
	}
	return nil
}

func (c TransportConfig) withDefaults() TransportConfig {
	if c.Base == nil {
		c.Base = http.DefaultTransport
	}
	if len(c.Methods) == 0 {
		c.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if c.Header == "" {
		c.Header = DefaultHeader
	}
	if c.MaxTries == 0 {
		c.MaxTries = DefaultMaxTries
	}
	if c.FirstDelay == 0 {
		c.FirstDelay = DefaultFirstDelay
	}
	if c.MaxDelay == 0 {
		c.MaxDelay = max(DefaultMaxDelay, c.FirstDelay)
	}
	if c.MaxRetryAfter == 0 {
		c.MaxRetryAfter = DefaultMaxRetryAfter
	}
	if c.MaxBufferBytes == 0 {
		c.MaxBufferBytes = DefaultMaxBufferBytes
	}
	if c.RetryResponse == nil {
		c.RetryResponse = worthAnotherTry
	}
	return c
}

// worthAnotherTry is for answers that say of themselves that the same request may fare better. 409 and 503 do so only with
// Retry-After: without it a conflict is one that waiting does not solve, and 503 is any handler's word for "it broke".
func worthAnotherTry(response *http.Response) bool {
	switch response.StatusCode {
	case http.StatusConflict, http.StatusServiceUnavailable:
		_, asked := retryAfter(response.Header)
		return asked
	case http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	default:
		return false
	}
}

// again says whether to try once more after the given try (counted from 0), and after which pause. An error leaves open
// whether the request was carried out; the key makes that no matter.
func (t *Transport) again(ctx context.Context, try int, response *http.Response, err error) (time.Duration, bool) {
	if try+1 >= t.config.MaxTries || err != nil && lasting(ctx, err) {
		return 0, false
	}
	delay := t.delay(try)
	if err != nil {
		return delay, true
	}
	if !t.config.RetryResponse(response) {
		return 0, false
	}
	if asked, ok := retryAfter(response.Header); ok {
		if asked > t.config.MaxRetryAfter {
			return 0, false
		}
		// Those who were told the same time should not all come at it.
		delay = max(delay, asked+rand.N(asked/4+1))
	}
	return delay, true
}

func (t *Transport) delay(try int) time.Duration {
	delay := t.config.MaxDelay
	if try < 16 {
		delay = min(t.config.FirstDelay<<try, delay)
	}
	return delay/2 + rand.N(delay/2+1)
}

// retryAfter reads Retry-After: seconds, or a date.
func retryAfter(header http.Header) (time.Duration, bool) {
	value := strings.TrimSpace(header.Get("Retry-After"))
	if seconds, err := strconv.ParseInt(value, 10, 32); err == nil && seconds >= 0 {
		return time.Duration(seconds) * time.Second, true
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(time.Until(at), 0), true
	}
	return 0, false
}

// pause waits, or reports false once ctx has ended, at once where the wait would not end before the deadline.
func pause(ctx context.Context, d time.Duration) bool {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= d {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func isCertificateError(err error) bool {
	var certificate *tls.CertificateVerificationError
	return errors.As(err, &certificate)
}
