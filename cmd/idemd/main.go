// Command idemd is the daemon and the tool of its operators: one binary, so that what runs in the container can also ask it.
//
// It is the only reader of flags, environment and files. Every other package takes a plain Config.
package main

import (
	"context"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// world is all that the program has of what is outside it, so that tests can stand in for each part.
type world struct {
	stdin          io.Reader
	stdout, stderr *printer
	environ        []string
	uid            int // as whom it runs
	// asks: there is a person at stdin and stderr, who can be asked.
	asks bool
	// draws: stderr is a terminal, on which a line can be written over.
	draws bool
	zone  *time.Location
	// dial replaces the network; nil: the network.
	dial func(ctx context.Context, addr string) (net.Conn, error)
	// sleep replaces waiting; nil: it is waited.
	sleep func(time.Duration)
	// origins says where each setting that is not at its default came from, by flag name.
	origins map[string]string
}

// getenv reads one variable.
func (w *world) getenv(name string) string {
	for _, pair := range w.environ {
		if key, value, _ := strings.Cut(pair, "="); key == name {
			return value
		}
	}
	return ""
}

func main() {
	isTerminal := func(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }
	w := &world{
		stdin: os.Stdin, stdout: &printer{to: os.Stdout}, stderr: &printer{to: os.Stderr}, environ: os.Environ(), uid: os.Geteuid(), zone: time.Local,
		asks: isTerminal(os.Stdin) && isTerminal(os.Stderr), draws: isTerminal(os.Stderr),
	}
	os.Exit(w.run(context.Background(), os.Args[1:]))
}
