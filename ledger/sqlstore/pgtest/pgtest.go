// Package pgtest starts a PostgreSQL for tests: one server per test process, on a unix socket in a temporary folder, and a fresh
// database for every test. It needs the server's own programs (initdb and postgres), in PATH or where Debian puts them, or a server
// named by IDEMD_TEST_POSTGRES_URL. Without either, tests that ask for a database are skipped and say so.
//
// A package whose tests use it ends with the server stopped:
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
// [CockroachURL] and [StartCluster] do the same with a CockroachDB, where there is a binary.
//
// [NewProxy] stands between a client and a server and loses or falsifies replies at a chosen statement.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// URLVariable names a server to use instead of one started here. Its user must be allowed to create databases.
const URLVariable = "IDEMD_TEST_POSTGRES_URL"

// shared is the server that all tests of a process use, started when the first one asks.
var shared struct {
	once   sync.Once
	server *Server
	err    error
}

// Main runs the tests of a package, stops the shared server and exits.
func Main(m *testing.M) {
	code := m.Run()
	Stop()
	os.Exit(code)
}

// Stop stops the shared servers, if any were started.
func Stop() {
	if sharedCockroach.server != nil {
		sharedCockroach.server.Stop()
	}
	if shared.server != nil {
		shared.server.close()
	}
}

// URL returns the URL of a fresh, empty database on the shared server. It is dropped when the test ends.
func URL(t testing.TB) string {
	t.Helper()
	return Shared(t).URL(t)
}

// Shared returns the server that all tests of the process share, and skips the test where there is none to be had.
func Shared(t testing.TB) *Server {
	t.Helper()
	shared.once.Do(func() {
		if given := os.Getenv(URLVariable); given != "" {
			shared.server = &Server{adminURL: given}
			return
		}
		shared.server, shared.err = start(nil)
	})
	requireServer(t, shared.err)
	return shared.server
}

// Start starts a server of the test's own, with settings such as "fsync=off" on top, and stops it when the test ends.
func Start(t testing.TB, settings ...string) *Server {
	t.Helper()
	s, err := start(settings)
	requireServer(t, err)
	t.Cleanup(s.close)
	return s
}

// Open starts a server for a program that is no test, with settings on top as in [Start]. Whoever opens one closes it.
func Open(settings ...string) (*Server, error) { return start(settings) }

// Close stops a server of [Open] and removes its data.
func (s *Server) Close() { s.close() }

// NotInstalled says whether an error of [Open] is that the server's programs were not found.
func NotInstalled(err error) bool {
	var missing *notInstalledError
	return errors.As(err, &missing)
}

// NewDatabase makes an empty database on a server of [Open], and returns its URL.
func (s *Server) NewDatabase(ctx context.Context) (string, error) {
	conn, err := pgx.Connect(ctx, s.adminURL)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(ctx) }()
	name := fmt.Sprintf("idemd_%d", databases.Add(1))
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+name+" TEMPLATE template0"); err != nil {
		return "", err
	}
	u, err := url.Parse(s.adminURL)
	if err != nil {
		return "", err
	}
	u.Path = "/" + name
	return u.String(), nil
}

func requireServer(t testing.TB, err error) {
	t.Helper()
	if NotInstalled(err) {
		t.Skipf("SKIPPED, NOTHING WAS TESTED: no PostgreSQL: %v. Install postgresql, or set %s to a server whose user may create databases.",
			err, URLVariable)
	}
	if err != nil {
		t.Fatalf("pgtest: starting PostgreSQL: %v", err)
	}
}

// Server is a running PostgreSQL.
type Server struct {
	adminURL string
	process  *process // nil for a server named by the environment
	dir      string
	settings []string
	free     names
}

var databases atomic.Int64

// URL returns the URL of a fresh, empty database. It is given back when the test ends.
func (s *Server) URL(t testing.TB) string {
	t.Helper()
	name := s.free.take()
	if name == "" {
		name = fmt.Sprintf("idemd_test_%d_%d", os.Getpid(), databases.Add(1))
		// template0: nobody is ever connected to it, so databases can be made from it at the same time.
		s.Exec(t, "CREATE DATABASE "+name+" TEMPLATE template0")
	}
	t.Cleanup(func() { s.giveBack(t, name) })
	return s.databaseURL(t, name)
}

func (s *Server) databaseURL(t testing.TB, name string) string {
	u, err := url.Parse(s.adminURL)
	if err != nil {
		t.Fatalf("pgtest: %s is not a URL", URLVariable)
	}
	u.Path = "/" + name
	return u.String()
}

// emptyDatabase drops whatever schemas a test has made, and makes an empty public one.
const emptyDatabase = `DO $$ DECLARE name TEXT; BEGIN
    FOR name IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
        EXECUTE format('DROP SCHEMA %I CASCADE', name);
    END LOOP;
    CREATE SCHEMA public;
END $$`

// giveBack empties a database of our own server for the next test: dropping one would cost a checkpoint, most of a second.
func (s *Server) giveBack(t testing.TB, name string) {
	switch {
	case s.process == nil:
		s.Exec(t, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
	case s.process.running():
		s.Exec(t, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '"+name+"'")
		s.execOn(t, s.databaseURL(t, name), emptyDatabase)
		s.free.put(name)
	}
}

// names is a list of databases that no test uses.
type names struct {
	mu   sync.Mutex
	list []string
}

func (n *names) take() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.list) == 0 {
		return ""
	}
	last := n.list[len(n.list)-1]
	n.list = n.list[:len(n.list)-1]
	return last
}

func (n *names) put(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, name)
}

// Exec runs one statement as the server's superuser, outside any test database.
func (s *Server) Exec(t testing.TB, sql string) {
	t.Helper()
	s.execOn(t, s.adminURL, sql)
}

func (s *Server) execOn(t testing.TB, url, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatalf("pgtest: connecting: %v", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, sql); err != nil {
		t.Fatalf("pgtest: %s: %v", sql, err)
	}
}

// Kill ends the server as a power cut would: no shutdown, no flush.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	if s.process == nil {
		t.Skip("SKIPPED: a server named by the environment is not killed")
	}
	if err := s.process.kill(); err != nil {
		t.Fatalf("pgtest: killing PostgreSQL: %v", err)
	}
}

// Restart starts the server again after [Server.Kill], on the same data.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	if err := s.run(); err != nil {
		t.Fatalf("pgtest: restarting PostgreSQL: %v", err)
	}
}

// SocketDir is the folder of the server's unix socket, "" for a server named by the environment.
func (s *Server) SocketDir() string {
	if s.process == nil {
		return ""
	}
	return s.dir
}

func (s *Server) close() {
	if s.process == nil {
		return
	}
	s.process.stop()
	_ = os.RemoveAll(s.dir)
}
