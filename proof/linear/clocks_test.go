package linear

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/ledger"
)

// clockVariable says how many seconds a program's clock is ahead, or behind. It goes over to the other side and back several times a second.
const clockVariable = "PROOF_CLOCK_AHEAD"

// skewedClocks are the flags that build a program on a standard library whose time.Now is wrong by as much as clockVariable says. The monotonic
// clock is left alone, as it is by whoever sets a machine's clock.
func skewedClocks(dir string) ([]string, error) {
	root, err := exec.CommandContext(context.Background(), "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	original := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	source, err := os.ReadFile(original)
	if err != nil {
		return nil, err
	}
	const reading = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if strings.Count(string(source), reading) != 1 {
		return nil, errors.New("time.Now is not written as it was: see how it reads the clock now, and change it there")
	}
	skewed := strings.Replace(string(source), reading, reading+"\tsec += ahead(mono)\n", 1) + `
// ahead is by how many seconds the clock is wrong at an instant.
func ahead(mono int64) (seconds int64) {
	text, _ := syscall.Getenv("` + clockVariable + `")
	negative := text != "" && text[0] == '-'
	for i := range len(text) {
		if d := int64(text[i]) - '0'; d >= 0 && d <= 9 {
			seconds = seconds*10 + d
		}
	}
	if negative != (mono/300_000_000%2 == 1) {
		return -seconds
	}
	return seconds
}
`
	skewed = strings.Replace(skewed, "import (", "import (\n\t\"syscall\"", 1)
	changed, overlay := filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json")
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{original: changed}})
	if err != nil {
		return nil, err
	}
	return []string{"-overlay", overlay}, errors.Join(os.WriteFile(changed, []byte(skewed), 0o600), os.WriteFile(overlay, list, 0o600))
}

// TestDaemonsWhoseClocksAreWrong: three processes on one database, whose own clocks are two leases ahead, as much behind, and right; the wrong ones jump
// over to the other side several times a second. Nobody sees it.
func TestDaemonsWhoseClocksAreWrong(t *testing.T) {
	t.Parallel()
	if scale() < 2 {
		t.Skip("SKIPPED: builds the standard library anew, a minute's work. make histories runs it, with SCALE=2 or more")
	}
	onEachEngine(t, clocksAreWrong)
}

func clocksAreWrong(t *testing.T, urls ...string) {
	d := prepare(t, urls...)
	var daemons []daemon
	for i, ahead := range []time.Duration{2 * lease, -2 * lease, 0} {
		p := programs.skewed.Start(t, []string{fmt.Sprintf("%s=%.0f", clockVariable, ahead.Seconds())}, "--store", d.program(t, i))
		if wrong := p.Off().Abs() > lease; wrong != (ahead != 0) {
			t.Fatalf("a daemon whose clock should be %v ahead logs times that are %v off", ahead, p.Off())
		}
		daemons = append(daemons, clientOf(p))
	}
	seeds(t, 1, func(seed uint64) {
		h := play{
			daemons: daemons, keys: 8, clients: 12, steps: 25, limit: int8(ledger.DefaultMaxAttempts), deadlines: true, lapse: d.lapse,
		}.run(t, seed)
		if h.takeovers() == 0 {
			t.Errorf("seed %d: no claim was taken over: the leases did not end", seed)
		}
	})
}
