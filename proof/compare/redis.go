package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// completeLua settles a key that is still pending under the caller's mark, and keeps it for a week.
const completeLua = `if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2], 'PX', 604800000) return 1 end return 0`

// redisPairs starts a Redis that syncs its log before it answers. One is a pair: SET NX, then a compare-and-set in Lua. Each
// worker has a connection of its own and waits for each answer.
func (l *lab) redisPairs(ctx context.Context) (*candidate, error) {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, fmt.Errorf("redis-server is %w", errMissing)
	}
	// The path of a unix socket must be short, so it does not follow a long -dir.
	short, err := os.MkdirTemp("/tmp", "idemd-redis-")
	if err != nil {
		return nil, err
	}
	l.atEnd(func() { _ = os.RemoveAll(short) })
	socket := filepath.Join(short, "redis.sock")
	c, err := l.start(program, "--port", "0", "--unixsocket", socket, "--dir", l.dir, "--appendonly", "yes", "--appendfsync", "always", "--save", "")
	if err != nil {
		return nil, err
	}
	var first *redisConn
	err = c.waitFor(ctx, "redis-server", func() bool {
		first, err = dialRedis(ctx, socket)
		if err != nil {
			return false
		}
		reply, err := first.do("PING")
		return err == nil && reply == "PONG"
	})
	if err != nil {
		return nil, err
	}
	digest, err := first.do("SCRIPT", "LOAD", completeLua)
	if err != nil {
		return nil, err
	}
	conns := []*redisConn{first}
	for len(conns) < l.workers {
		conn, err := dialRedis(ctx, socket)
		if err != nil {
			return nil, err
		}
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		l.atEnd(func() { _ = conn.conn.Close() })
	}
	step := func(_ context.Context, worker int) error {
		conn, id := conns[worker], uuid.New().String()
		key, mark := tenant+"\n"+operation+"\n"+id, "pending "+id
		reply, err := conn.do("SET", key, mark, "NX", "PX", "604800000")
		if err != nil {
			return err
		}
		if reply != "OK" {
			return fmt.Errorf("a fresh key was told %q", reply)
		}
		if reply, err = conn.do("EVALSHA", digest, "1", key, mark, string(randomBytes(l.bodyBytes))); err == nil && reply != "1" {
			err = fmt.Errorf("what was begun was told %q", reply)
		}
		return err
	}
	what := "SET NX, then a Lua compare-and-set; a connection for each caller, appendfsync always"
	return &candidate{nameRedis, what, unitPairs, l.workers, step, c.as("Redis")}, nil
}

// redisConn speaks as much of Redis's protocol as a pair needs.
type redisConn struct {
	conn net.Conn
	in   *bufio.Reader
	out  *bufio.Writer
}

func dialRedis(ctx context.Context, socket string) (*redisConn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	return &redisConn{conn: conn, in: bufio.NewReader(conn), out: bufio.NewWriter(conn)}, nil
}

// do sends one command and returns its reply as text.
func (c *redisConn) do(args ...string) (string, error) {
	_, _ = fmt.Fprintf(c.out, "*%d\r\n", len(args))
	for _, arg := range args {
		_, _ = fmt.Fprintf(c.out, "$%d\r\n%s\r\n", len(arg), arg)
	}
	if err := c.out.Flush(); err != nil {
		return "", err
	}
	line, err := c.in.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return "", errors.New("redis said nothing")
	}
	switch kind, rest := line[0], line[1:]; kind {
	case '+', ':':
		return rest, nil
	case '-':
		return "", errors.New(rest)
	case '$':
		n, err := strconv.Atoi(rest)
		if err != nil || n < 0 {
			return "", err
		}
		text := make([]byte, n+2)
		_, err = io.ReadFull(c.in, text)
		return string(text[:n]), err
	}
	return "", fmt.Errorf("redis said %q", line)
}
