// Package pgtest starts a PostgreSQL for tests: one server per test process, on a unix socket in a temporary folder, and a fresh
// database for every test. It needs the server's own programs (initdb and postgres), in PATH or where Debian puts them, or a server
// named by IDEMD_TEST_POSTGRES_URL. Without either, tests that ask for a database are skipped and say so.
//
// A package whose tests use it ends with the server stopped:
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
// [NewProxy] stands between a client and a server and loses or falsifies replies at a chosen statement.
package pgtest

import (
	"context"
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

// Stop stops the shared server, if one was started.
func Stop() {
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

func requireServer(t testing.TB, err error) {
	t.Helper()
	if missing, ok := err.(*notInstalledError); ok {
		t.Skipf("SKIPPED, NOTHING WAS TESTED: no PostgreSQL: %v. Install postgresql, or set %s to a server whose user may create databases.",
			missing, URLVariable)
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
}

var databases atomic.Int64

// URL returns the URL of a fresh, empty database, dropped when the test ends.
func (s *Server) URL(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("idemd_test_%d_%d", os.Getpid(), databases.Add(1))
	// template0: nobody is ever connected to it, so databases can be made from it at the same time.
	s.Exec(t, "CREATE DATABASE "+name+" TEMPLATE template0")
	t.Cleanup(func() {
		if s.process == nil || s.process.running() {
			s.Exec(t, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
		}
	})
	u, err := url.Parse(s.adminURL)
	if err != nil {
		t.Fatalf("pgtest: %s is not a URL", URLVariable)
	}
	u.Path = "/" + name
	return u.String()
}

// Exec runs one statement as the server's superuser, outside any test database.
func (s *Server) Exec(t testing.TB, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.adminURL)
	if err != nil {
		t.Fatalf("pgtest: connecting: %v", err)
	}
	defer conn.Close(ctx)
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
	os.RemoveAll(s.dir)
}
