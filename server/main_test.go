package server_test

import (
	"testing"

	"go.uber.org/goleak"
)

// No test of this package leaves a goroutine behind: every daemon, connection and call that one starts, it also ends.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
