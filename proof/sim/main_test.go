package sim

import (
	"os"
	"runtime/debug"
	"testing"
)

// TestMain lets garbage lie longer: a world is short, and leaves much of it.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}
