package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/cockroach-go/v2/testserver"
	"github.com/jackc/pgx/v5"
)

// CockroachVariable names a CockroachDB binary, 21.1 or later. Without it one in PATH is taken. None is ever fetched.
const CockroachVariable = "COCKROACH_BINARY"

// sharedCockroach is the single node, in memory, that all tests of a process use, started when the first one asks.
var sharedCockroach struct {
	once   sync.Once
	server testserver.TestServer
	err    error
}

var cockroachDatabases atomic.Int64

// CockroachURL returns the URL of a fresh, empty database on the CockroachDB that all tests of the process share. Without a binary the
// test is skipped and says so.
func CockroachURL(t testing.TB) string {
	t.Helper()
	binary := cockroachBinary(t)
	sharedCockroach.once.Do(func() {
		// With the path given, testserver does not go and fetch one.
		sharedCockroach.server, sharedCockroach.err = testserver.NewTestServer(testserver.CockroachBinaryPathOpt(binary), testserver.SetStoreMemSizeOpt(0.1))
	})
	if sharedCockroach.err != nil {
		t.Fatalf("pgtest: starting CockroachDB: %v", sharedCockroach.err)
	}
	u := *sharedCockroach.server.PGURL()
	u.Path = "/" + createCockroachDatabase(t, u.String())
	return u.String()
}

func cockroachBinary(t testing.TB) string {
	t.Helper()
	binary := os.Getenv(CockroachVariable)
	if binary == "" {
		binary, _ = exec.LookPath("cockroach")
	}
	if binary == "" {
		t.Skipf("SKIPPED, NOT TESTED ON COCKROACHDB: set %s to a cockroach 21.1 or later, or put one in PATH, and run this again", CockroachVariable)
	}
	return binary
}

func createCockroachDatabase(t testing.TB, url string) (name string) {
	t.Helper()
	name = fmt.Sprintf("test_%d", cockroachDatabases.Add(1))
	new(Server).execOn(t, url, "CREATE DATABASE "+name)
	return name
}

// Cluster is a CockroachDB of a test's own, on disk and on loopback, whose nodes can be killed and started again.
type Cluster struct {
	binary string
	dir    string
	nodes  []*node
}

type node struct {
	address string
	process *process
}

// StartCluster starts one of n nodes, and ends it with the test. Without a binary the test is skipped and says so.
func StartCluster(t testing.TB, n int) *Cluster {
	t.Helper()
	c := &Cluster{binary: cockroachBinary(t)}
	var err error
	if c.dir, err = os.MkdirTemp("", "idemd-cockroach-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	for _, address := range freeAddresses(t, n) {
		c.nodes = append(c.nodes, &node{address: address, process: &process{program: c.binary, attributes: diesWithTest}})
	}
	for i := range c.nodes {
		if err := c.run(i); err != nil {
			t.Fatalf("pgtest: starting CockroachDB: %v", err)
		}
	}
	if n > 1 {
		c.initialise(t)
	}
	for i := range c.nodes {
		if err := c.awaitReady(i); err != nil {
			t.Fatalf("pgtest: starting CockroachDB: %v", err)
		}
	}
	return c
}

// freeAddresses are n that nobody listens on. Somebody else could take one before it is used; then the test fails and says so.
func freeAddresses(t testing.TB, n int) (addresses []string) {
	t.Helper()
	for range n {
		listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = listener.Close() }()
		addresses = append(addresses, listener.Addr().String())
	}
	return addresses
}

func (c *Cluster) run(i int) error {
	args := []string{
		"start-single-node", "--insecure", "--listen-addr=" + c.nodes[i].address, "--http-addr=127.0.0.1:0",
		"--store=" + filepath.Join(c.dir, fmt.Sprint("node", i)), "--cache=64MiB", "--max-sql-memory=64MiB", "--logtostderr=ERROR",
	}
	if len(c.nodes) > 1 {
		args[0] = "start"
		args = append(args, "--join="+strings.Join(c.addresses(0), ","))
	}
	return c.nodes[i].process.start(args)
}

// initialise makes one cluster of the nodes. The command fails until the first of them listens.
func (c *Cluster) initialise(t testing.TB) {
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	for {
		out, err := exec.CommandContext(ctx, c.binary, "init", "--insecure", "--host="+c.nodes[0].address).CombinedOutput()
		if err == nil || strings.Contains(string(out), "already been initialized") {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("pgtest: cockroach init: %v: %s", err, out)
		}
		pause(ctx)
	}
}

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(100 * time.Millisecond):
	}
}

func (c *Cluster) awaitReady(i int) error {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	p := c.nodes[i].process
	for {
		err := c.answers(ctx, i)
		switch {
		case err == nil:
			return nil
		case !p.running():
			return fmt.Errorf("cockroach ended while starting: %s", p.output())
		case ctx.Err() != nil:
			return fmt.Errorf("cockroach did not answer within %v: %w: %s", startLimit, err, p.output())
		}
		pause(ctx)
	}
}

func (c *Cluster) answers(ctx context.Context, i int) error {
	conn, err := pgx.Connect(ctx, c.url([]string{c.nodes[i].address}, "defaultdb"))
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "SELECT count(*) FROM system.users")
	return errors.Join(err, conn.Close(ctx))
}

// addresses are those of all nodes, the given one first.
func (c *Cluster) addresses(first int) (addresses []string) {
	for i := range c.nodes {
		addresses = append(addresses, c.nodes[(first+i)%len(c.nodes)].address)
	}
	return addresses
}

func (c *Cluster) url(addresses []string, database string) string {
	return "postgresql://root@" + strings.Join(addresses, ",") + "/" + database + "?sslmode=disable"
}

// URLs returns, for every node, a URL of one fresh and empty database that tries this node first and then the others.
func (c *Cluster) URLs(t testing.TB) (urls []string) {
	t.Helper()
	name := createCockroachDatabase(t, c.url(c.addresses(0), "defaultdb"))
	for i := range c.nodes {
		urls = append(urls, c.url(c.addresses(i), name))
	}
	return urls
}

// Nodes is how many nodes there are.
func (c *Cluster) Nodes() int { return len(c.nodes) }

// Kill ends a node with SIGKILL.
func (c *Cluster) Kill(t testing.TB, i int) {
	t.Helper()
	if err := c.nodes[i].process.killHard(); err != nil {
		t.Fatalf("pgtest: killing node %d: %v", i, err)
	}
}

// Restart starts a node again after [Cluster.Kill], on its data, and waits until it answers.
func (c *Cluster) Restart(t testing.TB, i int) {
	t.Helper()
	err := c.run(i)
	if err == nil {
		err = c.awaitReady(i)
	}
	if err != nil {
		t.Fatalf("pgtest: starting node %d again: %v", i, err)
	}
}

func (c *Cluster) close() {
	for _, n := range c.nodes {
		_ = n.process.killHard() // nobody needs its data any more
	}
	_ = os.RemoveAll(c.dir)
}
