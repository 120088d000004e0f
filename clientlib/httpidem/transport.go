package httpidem

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/idemd/idemd/clientlib"
)

// Transport gives requests keys and retries them: an http.RoundTripper that may be used by any number of goroutines.
//
// It counts on the other side to know the header. Around a service that does not, its retries are duplicates.
type Transport struct {
	config TransportConfig
}

// NewTransport makes a transport, or says what is wrong with its configuration.
//
// The key of a request is the one in its header, else that of its context (clientlib.WithKey), else a fresh UUID: the same
// for all tries of one RoundTrip, and another for the next. Whoever sends one intent again by a new call gives it the key.
func NewTransport(config TransportConfig) (*Transport, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	return &Transport{config: config.withDefaults()}, nil
}

// RoundTrip sends a request, and sends it again where that is safe and may help. It returns the last answer.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if !slices.Contains(t.config.Methods, r.Method) {
		return t.config.Base.RoundTrip(r)
	}
	value, err := t.key(r)
	if err != nil {
		closeBody(r.Body)
		return nil, err
	}
	source, err := t.source(r)
	if err != nil {
		return nil, err
	}
	for try := 0; ; try++ {
		body, err := source.next()
		if err != nil {
			return nil, err
		}
		sent := r.Clone(r.Context())
		sent.Body = body
		sent.Header.Set(t.config.Header, value)
		response, err := t.config.Base.RoundTrip(sent)
		delay, again := t.again(r.Context(), try, response, err)
		if !again || !source.rewinds || !pause(r.Context(), delay) {
			return response, err
		}
		if response != nil {
			discard(response.Body)
		}
	}
}

// CloseIdleConnections closes those of the base, for http.Client.
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.config.Base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

// key is what the header is to say.
func (t *Transport) key(r *http.Request) (string, error) {
	if values := r.Header.Values(t.config.Header); len(values) > 0 {
		if len(values) > 1 || strings.TrimSpace(values[0]) == "" {
			return "", invalid("the request has a header %s that is empty or there twice", t.config.Header)
		}
		return values[0], nil
	}
	key, ok := clientlib.KeyFrom(r.Context())
	if !ok {
		key = uuid.NewString()
	}
	if t.config.Bare {
		if _, rule := parseKey(key); rule != "" || key[0] == '"' {
			return "", invalid("the context's key can not be sent without quotes")
		}
		return key, nil
	}
	value, ok := quote(key)
	if !ok || key == "" {
		return "", invalid("the context's key is empty or has characters that a header does not take; derive one, with clientlib.DeriveKey")
	}
	return value, nil
}

// source gives a request's body as often as it is sent.
type source struct {
	// first is for the first try; getBody for those after it.
	first   io.ReadCloser
	getBody func() (io.ReadCloser, error)
	rewinds bool
	used    bool
}

func (t *Transport) source(r *http.Request) (*source, error) {
	switch {
	case r.Body == nil || r.Body == http.NoBody:
		return &source{first: r.Body, getBody: func() (io.ReadCloser, error) { return r.Body, nil }, rewinds: true}, nil
	case r.GetBody != nil:
		return &source{first: r.Body, getBody: r.GetBody, rewinds: true}, nil
	case r.ContentLength > t.config.MaxBufferBytes:
		return &source{first: r.Body}, nil
	}
	read, err := io.ReadAll(io.LimitReader(r.Body, t.config.MaxBufferBytes+1))
	if err != nil {
		closeBody(r.Body)
		return nil, err
	}
	if int64(len(read)) > t.config.MaxBufferBytes {
		rest := &restored{Reader: io.MultiReader(bytes.NewReader(read), r.Body), original: r.Body}
		return &source{first: rest}, nil
	}
	closeBody(r.Body)
	again := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(read)), nil }
	first, _ := again()
	return &source{first: first, getBody: again, rewinds: true}, nil
}

func (s *source) next() (io.ReadCloser, error) {
	if !s.used {
		s.used = true
		return s.first, nil
	}
	return s.getBody()
}

func closeBody(body io.Closer) {
	if body != nil {
		_ = body.Close()
	}
}

// discard reads a little of a body that nobody wants, so that its connection can be used again, and closes it.
func discard(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, 64<<10)
	_ = body.Close()
}

// lasting says whether an error of sending will be the same the next time.
func lasting(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, http.ErrSchemeMismatch) || isCertificateError(err)
}
