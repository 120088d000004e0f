package main

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// repeatEvery is how often a warning is let through that comes again and again.
const repeatEvery = 10 * time.Second

// repeatsHandler lets the first warning of a kind through, and then one in repeatEvery, with the number of those left out. While a store is away every call
// fails alike, and the log of that must not fill the disk that the store may be on. Errors, which are bugs, and what operators did are never left out.
type repeatsHandler struct {
	slog.Handler
	seen *repeats
}

// repeats are the kinds of warnings seen. There are as many as messages, RPCs and reasons: nothing that a caller chooses makes a new one.
type repeats struct {
	mu    sync.Mutex
	kinds map[string]*repeat // guarded by mu
}

type repeat struct {
	told    time.Time
	leftOut int64
}

func withoutRepeats(h slog.Handler) slog.Handler {
	return &repeatsHandler{h, &repeats{kinds: map[string]*repeat{}}}
}

func (h *repeatsHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level != slog.LevelWarn {
		return h.Handler.Handle(ctx, r)
	}
	leftOut, tell := h.seen.note(kindOf(r), r.Time)
	if !tell {
		return nil
	}
	if leftOut > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int64("left_out", leftOut))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (h *repeatsHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &repeatsHandler{h.Handler.WithAttrs(attrs), h.seen}
}

// WithGroup implements [slog.Handler].
func (h *repeatsHandler) WithGroup(name string) slog.Handler {
	return &repeatsHandler{h.Handler.WithGroup(name), h.seen}
}

// note counts a warning, and reports whether to tell it, and how many were left out since the last one.
func (s *repeats) note(kind string, at time.Time) (leftOut int64, tell bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kinds[kind]
	if k == nil {
		s.kinds[kind] = &repeat{told: at}
		return 0, true
	}
	if at.Sub(k.told) < repeatEvery {
		k.leftOut++
		return 0, false
	}
	leftOut, k.told, k.leftOut = k.leftOut, at, 0
	return leftOut, true
}

func kindOf(r slog.Record) string {
	kind := []string{r.Message}
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "rpc", "code", "reason":
			kind = append(kind, a.Value.String())
		}
		return true
	})
	return strings.Join(kind, "|")
}
