package model

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"
)

// faults are those that the model can express. What each breaks is what would go wrong in the ledger.
var faults = map[string]string{
	"NO_REVISION":   "!(((state==3)&&leased))",
	"OWN_CLOCK":     "!(((state==3)&&leased))",
	"ID_TWICE":      "!(used[id])",
	"NO_DOUBT":      "(effects<=1)",
	"NO_FENCE":      "(effects<=1)",
	"FENCE_BACK":    "(fence>granted)",
	"EARLY_ACK":     "((acknowledged==0)||(state==4))",
	"FORGET_EARLY":  "!(promised)",
	"SWEEP_PENDING": "(effects<=1)",
	"OTHERS_SETTLE": "(fence==mine)",
}

// limit is for one run of the checker; the whole model takes seconds.
const limit = 5 * time.Minute

func TestTheModelHolds(t *testing.T) {
	t.Parallel()
	out := check(t)
	if !bytes.Contains(out, []byte("errors: 0")) || bytes.Contains(out, []byte("Search not completed")) || bytes.Contains(out, []byte("max search depth too small")) {
		t.Fatalf("%s", out)
	}
	// What no order of steps reaches has not been checked: all that may stay unreached are the ends of processes that go on for ever.
	for _, line := range regexp.MustCompile(`(?m)^\tledger\.pml:\d+, state \d+, .*$`).FindAll(out, -1) {
		if !bytes.Contains(line, []byte("-end-")) {
			t.Errorf("never reached: %s", line)
		}
	}
	t.Logf("%s", regexp.MustCompile(`(?m)^.*states, stored|^.*errors: 0|^pan: elapsed.*$`).FindAll(out, -1))
}

func TestEveryFaultBreaksTheModel(t *testing.T) {
	t.Parallel()
	for fault, want := range faults {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			out := check(t, "-D"+fault)
			if !bytes.Contains(out, []byte("assertion violated")) || !bytes.Contains(out, []byte(want)) {
				t.Errorf("want %s violated, got\n%s", want, out)
			}
		})
	}
}

// check runs spin on the model and returns what its checker says.
func check(t *testing.T, flags ...string) []byte {
	t.Helper()
	for _, program := range []string{"spin", "gcc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("SKIPPED, THE MODEL WAS NOT CHECKED: no %s. Install spin and gcc, and run this again", program)
		}
	}
	file, err := filepath.Abs("ledger.pml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	run(t, dir, "spin", append(append([]string{"-a"}, flags...), file)...)
	run(t, dir, "gcc", "-O2", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c")
	return run(t, dir, filepath.Join(dir, "pan"), "-m100000")
}

func run(t *testing.T, dir, program string, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", program, args, err, out)
	}
	return out
}
