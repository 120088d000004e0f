package main

import (
	"context"
	"fmt"
	"log/slog"
	"mime"
	"strconv"
	"sync"

	"github.com/idemd/idemd/clientlib"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// ownOutput is one of our own outputs, which the command's output and our own words share.
type ownOutput struct {
	mu sync.Mutex
	to *printer
}

// Write implements [io.Writer]. It never fails: a reader that went away must not end the command; the printer remembers.
func (s *ownOutput) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = s.to.Write(b)
	return len(b), nil
}

func (s *ownOutput) printf(format string, args ...any) { _, _ = fmt.Fprintf(s, format, args...) }

func (s *ownOutput) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.to.failed
}

// recorder keeps what a command writes, up to a limit over both outputs. Past it nothing is kept, so that nobody takes a part for the whole.
type recorder struct {
	mu             sync.Mutex
	limit, size    int64
	stdout, stderr []byte
}

// part is one of a recorder's two outputs: what is written to it is shown, and kept.
type part struct {
	recorder *recorder
	live     *ownOutput
	kept     *[]byte
}

// Write implements [io.Writer].
func (p part) Write(b []byte) (int, error) {
	_, _ = p.live.Write(b)
	r := p.recorder
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.size += int64(len(b)); r.size > r.limit {
		r.stdout, r.stderr = nil, nil
	} else {
		*p.kept = append(*p.kept, b...)
	}
	return len(b), nil
}

// over is how much was written where it was more than the limit, else 0.
func (r *recorder) over() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.size > r.limit {
		return r.size
	}
	return 0
}

// outputType is the media type of a kept output: the body is standard output and behind it standard error, and the parameter says where the
// one ends. So "idemd lookup --body" shows it readably.
const outputType = "application/vnd.idemd.output"

const outputSplit = "stdout"

// response is the output as the ledger is told it.
func (r *recorder) response(code int) clientlib.Response {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := clientlib.Response{
		Code:        int32(code), //nolint:gosec // an exit code is below 256
		ContentType: mime.FormatMediaType(outputType, map[string]string{outputSplit: strconv.Itoa(len(r.stdout))}),
	}
	if r.size > r.limit {
		out.BodyOmitted, out.BodySizeBytes = true, r.size
		return out
	}
	out.Body = append(append(out.Body, r.stdout...), r.stderr...)
	return out
}

// maxFailureOutput is how much output fits into the details of a failure, for which the ledger has 64 KiB, beside what else is there.
const maxFailureOutput = 60 << 10

// failureDetail is the output as it stands in the details of a failure.
func failureDetail(r clientlib.Response) *idemv1.Response {
	out := &idemv1.Response{
		Code: r.Code, Body: r.Body, ContentType: r.ContentType, BodyOmitted: r.BodyOmitted, BodySizeBytes: r.BodySizeBytes,
	}
	if len(out.Body) > maxFailureOutput {
		out.BodyOmitted, out.BodySizeBytes, out.Body = true, int64(len(out.Body)), nil
	}
	return out
}

// replayOutput prints a kept output. What an operator gave as the answer goes to standard output whole.
func (x *execution) replayOutput(body []byte, contentType string) {
	split := len(body)
	if kind, parameters, err := mime.ParseMediaType(contentType); err == nil && kind == outputType {
		if n, err := strconv.Atoi(parameters[outputSplit]); err == nil && n >= 0 && n <= len(body) {
			split = n
		}
	}
	_, _ = x.stdout.Write(body[:split])
	_, _ = x.stderr.Write(body[split:])
}

// complaints keep what the client library has to say about outcomes that it could not record.
type complaints struct {
	mu   sync.Mutex
	last string
}

func (c *complaints) logger() *slog.Logger { return slog.New(c) }

func (c *complaints) said() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// Enabled implements [slog.Handler]: of warnings, what there is to say is in the error that Do returns.
func (c *complaints) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelError
}

// Handle implements [slog.Handler].
func (c *complaints) Handle(_ context.Context, record slog.Record) error {
	text := record.Message
	record.Attrs(func(a slog.Attr) bool {
		if a.Key == "error" {
			text = a.Value.String()
		}
		return true
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = text
	return nil
}

// WithAttrs implements [slog.Handler].
func (c *complaints) WithAttrs([]slog.Attr) slog.Handler { return c }

// WithGroup implements [slog.Handler].
func (c *complaints) WithGroup(string) slog.Handler { return c }
