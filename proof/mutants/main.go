// Command mutants breaks the code on purpose, one fault at a time, in a copy of the tree, and runs the tests that must notice. A fault that
// nobody notices survives, and is reported; then the exit status is 1.
//
//	go run ./proof/mutants             all of them
//	go run ./proof/mutants takeover    those whose name contains a word
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

// mutant is one deliberate fault: old, which stands once in the file, becomes new.
type mutant struct {
	name string
	file string
	old  string
	new  string
	// suites must notice: arguments of "go test", tried in order until one fails.
	suites [][]string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	survivors, err := run(ctx, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(2)
	}
	if survivors > 0 {
		os.Exit(1)
	}
}

func run(ctx context.Context, words []string) (survivors int, err error) {
	dir, err := os.MkdirTemp("", "idemd-mutants-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := copyTree(ctx, dir); err != nil {
		return 0, err
	}
	unsound := unsoundSuites(ctx, dir, words)
	tried := 0
	began := time.Now()
	for _, m := range mutants {
		if !chosen(m, words) {
			continue
		}
		tried++
		start := time.Now()
		killer, err := m.try(ctx, dir, unsound)
		switch {
		case ctx.Err() != nil:
			return survivors, ctx.Err()
		case err != nil:
			survivors++
			fmt.Printf("NOT MADE  %s: %v\n", m.name, err)
		case killer == "":
			survivors++
			fmt.Printf("SURVIVED  %s (%v): %s\n", m.name, time.Since(start).Round(time.Second), m.file)
		default:
			fmt.Printf("killed    %s (%v): by %s\n", m.name, time.Since(start).Round(time.Second), killer)
		}
	}
	fmt.Printf("%d of %d killed, in %v\n", tried-survivors, tried, time.Since(began).Round(time.Second))
	return survivors, nil
}

// unsoundSuites runs every suite on the tree as it is, and returns those that fail there: they notice nothing, so they are left out.
func unsoundSuites(ctx context.Context, dir string, words []string) map[string]bool {
	unsound := map[string]bool{}
	for _, m := range mutants {
		if !chosen(m, words) {
			continue
		}
		for _, suite := range m.suites {
			name := strings.Join(suite, " ")
			if _, seen := unsound[name]; seen || ctx.Err() != nil {
				continue
			}
			out, err := test(ctx, dir, suite)
			unsound[name] = err != nil
			if err != nil {
				fmt.Printf("UNSOUND   %s fails without any fault, and is left out: %v\n%s\n", name, err, out)
			}
		}
	}
	return unsound
}

func chosen(m mutant, words []string) bool {
	for _, word := range words {
		if strings.Contains(m.name, word) {
			return true
		}
	}
	return len(words) == 0
}

// copyTree copies what belongs to the project as it is in the working tree, without what git ignores.
func copyTree(ctx context.Context, to string) error {
	out, err := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		return fmt.Errorf("git ls-files: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		content, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted, and not committed yet
		}
		if err != nil {
			return err
		}
		target := filepath.Join(to, name)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(target, content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// try applies m in dir, runs its suites, undoes it, and returns which suite failed, "" if none did.
func (m mutant) try(ctx context.Context, dir string, unsound map[string]bool) (killer string, err error) {
	path := filepath.Join(dir, filepath.FromSlash(m.file))
	whole, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	broken, err := m.apply(whole)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(path, broken, 0o600); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.WriteFile(path, whole, 0o600)) }()
	if out, err := command(ctx, dir, "build", "./"+filepath.ToSlash(filepath.Dir(m.file))).CombinedOutput(); err != nil {
		return "", fmt.Errorf("it does not compile: %w\n%s", err, out)
	}
	for _, suite := range m.suites {
		if unsound[strings.Join(suite, " ")] {
			continue
		}
		out, err := test(ctx, dir, suite)
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		if err != nil {
			return strings.Join(suite, " ") + firstFailure(out), nil
		}
	}
	return "", nil
}

func (m mutant) apply(whole []byte) ([]byte, error) {
	if n := bytes.Count(whole, []byte(m.old)); n != 1 {
		return nil, fmt.Errorf("%s has %d times, and not once:\n%s", m.file, n, m.old)
	}
	return bytes.Replace(whole, []byte(m.old), []byte(m.new), 1), nil
}

func test(ctx context.Context, dir string, suite []string) ([]byte, error) {
	return command(ctx, dir, append([]string{"test", "-count=1", "-failfast", "-timeout", "10m"}, suite...)...).CombinedOutput()
}

func command(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PROOF_ARTIFACTS="+filepath.Join(dir, "artifacts"))
	return cmd
}

// firstFailure is the name of the test that failed first.
func firstFailure(out []byte) string {
	for line := range strings.SplitSeq(string(out), "\n") {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "--- FAIL: "); ok {
			return ": " + strings.Fields(name)[0]
		}
	}
	return ": it did not end as it should"
}
