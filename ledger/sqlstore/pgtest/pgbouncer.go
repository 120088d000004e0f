package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Pooler is a running PgBouncer with pool_mode transaction in front of a server.
type Pooler struct {
	dir     string
	process *process
}

// StartPooler starts a PgBouncer in front of s, and stops it when the test ends. Without the program the test is skipped and says so.
func StartPooler(t testing.TB, s *Server) *Pooler {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program = "/usr/sbin/pgbouncer"
	}
	if !isProgram(program) {
		t.Skip("SKIPPED, NOTHING WAS TESTED: no PgBouncer. Install pgbouncer and run this again")
	}
	if s.process == nil {
		t.Skip("SKIPPED: PgBouncer is only started in front of a server started here")
	}
	p := &Pooler{process: &process{program: program}}
	if p.dir, err = os.MkdirTemp("/tmp", "idemd-pgbouncer-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.process.stop()
		_ = os.RemoveAll(p.dir)
	})
	config := fmt.Sprintf(`[databases]
* = host=%s user=idemd
[pgbouncer]
listen_addr =
unix_socket_dir = %s
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 1000
max_db_connections = 4
server_idle_timeout = 5
log_connections = 0
log_disconnections = 0
`, s.SocketDir(), p.dir)
	path := filepath.Join(p.dir, "pgbouncer.ini")
	if err := os.WriteFile(path, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := ownByServerUser(p.dir); err != nil {
		t.Fatal(err)
	}
	if err := p.process.start([]string{path}); err != nil {
		t.Fatal(err)
	}
	p.awaitReady(t)
	return p
}

func (p *Pooler) awaitReady(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, p.URL(t, "postgres://idemd@localhost/postgres")+"&default_query_exec_mode=simple_protocol")
		if err == nil {
			_ = conn.Close(ctx)
			return
		}
		select {
		case <-p.process.done():
			t.Fatalf("pgbouncer ended while starting: %s", p.process.output())
		case <-ctx.Done():
			t.Fatalf("pgbouncer did not answer: %v: %s", err, p.process.output())
		case <-tick.C:
		}
	}
}

// URL is a database's URL by way of the pooler.
func (p *Pooler) URL(t testing.TB, databaseURL string) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = "localhost:6432"
	u.RawQuery = url.Values{"host": {p.dir}, "sslmode": {"disable"}}.Encode()
	return u.String()
}
