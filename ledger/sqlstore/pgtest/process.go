package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sort"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const startLimit = 60 * time.Second

type notInstalledError struct{ program string }

func (e *notInstalledError) Error() string { return e.program + " was not found" }

// baseSettings keep the server small and loud. fsync stays on: what is tested here is durability too.
var baseSettings = []string{
	"listen_addresses=", "max_connections=400", "shared_buffers=64MB", "log_min_messages=warning", "log_checkpoints=off", "checkpoint_timeout=1h", "max_wal_size=4GB",
}

func start(settings []string) (*Server, error) {
	initdb, postgres, err := findPrograms()
	if err != nil {
		return nil, err
	}
	// The path of a unix socket must be short, so the folder does not follow a long TMPDIR.
	dir, err := os.MkdirTemp("/tmp", "idemd-pgtest-")
	if err != nil {
		return nil, err
	}
	if err := ownByServerUser(dir); err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	if err := runInitdb(initdb, data); err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	all := append(append([]string{"unix_socket_directories=" + dir}, baseSettings...), settings...)
	s := &Server{
		adminURL: "postgres://idemd@localhost/postgres?sslmode=disable&host=" + dir, dir: dir, settings: all,
		process: &process{program: postgres},
	}
	if err := s.run(); err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return s, nil
}

// runInitdb makes the cluster with a linguistic collation where the version can, so that a column that forgot to ask for byte
// order is found out.
func runInitdb(initdb, data string) error {
	base := []string{"-D", data, "-U", "idemd", "--auth=trust", "-E", "UTF8", "--locale=C", "--no-sync"}
	if serverCommand(initdb, append(base, "--locale-provider=icu", "--icu-locale=en-US")...).Run() == nil {
		return nil
	}
	_ = os.RemoveAll(data)
	if out, err := serverCommand(initdb, base...).CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	return nil
}

func (s *Server) run() error {
	args := []string{"-D", filepath.Join(s.dir, "data")}
	for _, setting := range s.settings {
		args = append(args, "-c", setting)
	}
	if err := s.process.start(args); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, s.adminURL)
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-s.process.done():
			return fmt.Errorf("postgres ended while starting: %s", s.process.output())
		case <-ctx.Done():
			return fmt.Errorf("postgres did not answer within %v: %w: %s", startLimit, err, s.process.output())
		case <-tick.C:
		}
	}
}

// findPrograms looks in PATH and where Debian and Red Hat put each version, newest first.
func findPrograms() (initdb, postgres string, err error) {
	var dirs []string
	if path, err := exec.LookPath("initdb"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin"} {
		found, _ := filepath.Glob(pattern)
		sort.Sort(sort.Reverse(sort.StringSlice(found)))
		dirs = append(dirs, found...)
	}
	for _, dir := range dirs {
		initdb, postgres = filepath.Join(dir, "initdb"), filepath.Join(dir, "postgres")
		if isProgram(initdb) && isProgram(postgres) {
			return initdb, postgres, nil
		}
	}
	return "", "", &notInstalledError{"initdb"}
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir() && info.Mode()&0o111 != 0
}

// serverCommand is a command as the user that the server runs as: PostgreSQL refuses root.
func serverCommand(program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(context.Background(), program, args...) // ended by process.stop
	cmd.Dir = "/"
	cmd.SysProcAttr = serverAttributes()
	return cmd
}

// process is one run of a server program. It dies with the test process.
type process struct {
	program string
	// attributes are those of the command; nil: as the user that PostgreSQL's server runs as.
	attributes func() *syscall.SysProcAttr

	mu   sync.Mutex
	cmd  *exec.Cmd
	log  *lockedBuffer
	over chan struct{}
}

func (p *process) start(args []string) error {
	cmd := serverCommand(p.program, args...)
	if p.attributes != nil {
		cmd.SysProcAttr = p.attributes()
	}
	log := &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = log, log
	over, started := make(chan struct{}), make(chan error, 1)
	go func() {
		// The signal at the parent's death goes by the thread that started the child, so this one has to live as long.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
		close(over)
	}()
	if err := <-started; err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd, p.log, p.over = cmd, log, over
	return nil
}

func (p *process) current() (*exec.Cmd, chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd, p.over
}

func (p *process) done() <-chan struct{} {
	_, over := p.current()
	return over
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

func (p *process) running() bool {
	cmd, over := p.current()
	if cmd == nil {
		return false
	}
	select {
	case <-over:
		return false
	default:
		return true
	}
}

// stop asks for a fast shutdown, and kills what does not follow.
func (p *process) stop() {
	cmd, over := p.current()
	if !p.running() {
		return
	}
	_ = cmd.Process.Signal(syscall.SIGINT)
	select {
	case <-over:
	case <-time.After(20 * time.Second):
		_ = cmd.Process.Kill()
		<-over
	}
}

// kill ends PostgreSQL by its own power cut: every process of it ends at once, without a checkpoint. SIGKILL would leave backends behind.
func (p *process) kill() error { return p.end(syscall.SIGQUIT) }

// killHard ends a server that is one process.
func (p *process) killHard() error { return p.end(syscall.SIGKILL) }

func (p *process) end(by syscall.Signal) error {
	cmd, over := p.current()
	if !p.running() {
		return errors.New("not running")
	}
	if err := cmd.Process.Signal(by); err != nil {
		return err
	}
	<-over
	return nil
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
