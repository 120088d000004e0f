package main

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestAWarningThatRepeatsIsCounted: a flood of one kind is a line each ten seconds that says how many there were. Other kinds, and what is no warning, are told.
func TestAWarningThatRepeatsIsCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := newLogger(&out, &settings{logLevel: choice{value: "info"}, logFormat: choice{value: "json"}}).With("a", 1)
		const flood = 35 * time.Second
		for began := time.Now(); time.Since(began) < flood; <-time.After(10 * time.Millisecond) {
			log.WarnContext(context.Background(), "call", "rpc", "Begin", "code", "Unavailable", "request_id", time.Now().String())
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 4 || strings.Contains(lines[0], "left_out") {
			t.Fatalf("3500 warnings of a kind are %d lines:\n%s", len(lines), &out)
		}
		for _, line := range lines[1:] {
			if !strings.Contains(line, `"left_out":999`) || !strings.Contains(line, `"a":1`) {
				t.Errorf("%s", line)
			}
		}
		out.Reset()
		for range 2 {
			log.Warn("call", "rpc", "Complete", "code", "Unavailable")
			log.Warn("call", "rpc", "Begin", "code", "Unavailable", "reason", "DRAINING")
			log.Warn("not ready")
		}
		if n := strings.Count(out.String(), "\n"); n != 3 {
			t.Errorf("three other kinds are %d lines:\n%s", n, &out)
		}
		out.Reset()
		for range 2 {
			log.Error("panic")
			log.Info("call", "rpc", "ResolveEntry", "code", "OK")
			log.Log(context.Background(), slog.LevelDebug, "not at this level")
		}
		if n := strings.Count(out.String(), "\n"); n != 4 {
			t.Errorf("four that are no warnings are %d lines:\n%s", n, &out)
		}
	})
}
