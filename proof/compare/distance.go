package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"time"
)

// A database is seldom on the machine of those who call it, and one that copies what it commits to another machine answers no sooner than that one has it.
// Here both cost nothing, so what is saved where a step costs time does not show. A way to PostgreSQL that takes as long as one through a network does
// makes up for that: a process in between hands everything on after some time.

// chunk is what travels, and when it arrives.
type chunk struct {
	due  time.Time
	data []byte
}

// serveDistance is that process: it says where it listens, and serves until it is told to end.
func serveDistance(ctx context.Context, network, address string, each time.Duration) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	fmt.Println(listener.Addr())
	for {
		near, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		far, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			_ = near.Close()
			continue
		}
		go handOn(near, far, each)
		go handOn(far, near, each)
	}
}

// handOn hands on what one end says, after a time, until it ends.
func handOn(from, to net.Conn, after time.Duration) {
	travelling := make(chan chunk, 1024)
	go func() {
		defer func() { _ = to.Close() }()
		for c := range travelling {
			time.Sleep(time.Until(c.due))
			if _, err := to.Write(c.data); err != nil {
				_ = from.Close()
			}
		}
	}()
	defer close(travelling)
	for {
		data := make([]byte, 16<<10)
		n, err := from.Read(data)
		if err != nil {
			return
		}
		travelling <- chunk{time.Now().Add(after), data[:n]}
	}
}

// away puts a distance between callers and the database of a URL, and returns the URL to call.
func (l *lab) away(ctx context.Context, databaseURL string) (string, []server, error) {
	u, err := url.Parse(databaseURL)
	if err != nil {
		return "", nil, err
	}
	network, address, query := "tcp", u.Host, u.Query()
	if dir := query.Get("host"); dir != "" {
		network, address = "unix", filepath.Join(dir, ".s.PGSQL."+cmp.Or(u.Port(), "5432"))
		query.Del("host")
	}
	c, err := l.start(l.self, "-do", doDistance, "-distance", l.distance.String(), "-network", network, "-address", address)
	if err != nil {
		return "", nil, err
	}
	if err := c.waitFor(ctx, "the distance", func() bool { return strings.HasSuffix(c.output.String(), "\n") }); err != nil {
		return "", nil, err
	}
	query.Set("sslmode", "disable")
	u.Host, u.RawQuery = strings.TrimSpace(c.output.String()), query.Encode()
	return u.String(), c.as("distance"), nil
}
