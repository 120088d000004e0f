package server_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"sync"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/server/servertest"
)

// recordedConn keeps what was read from it.
type recordedConn struct {
	net.Conn
	mu   sync.Mutex
	read bytes.Buffer // guarded by mu
}

func (c *recordedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read.Write(p[:n])
	return n, err
}

// frames are the HTTP/2 frames that were read whole, by their type, acknowledgements left out.
func (c *recordedConn) frames() map[byte]int {
	const header, ack = 9, 1
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[byte]int{}
	for raw := c.read.Bytes(); len(raw) >= header; {
		length := int(binary.BigEndian.Uint32(raw) >> 8)
		if kind, flags := raw[3], raw[4]; kind != framePing || flags&ack == 0 {
			out[kind]++
		}
		raw = raw[min(header+length, len(raw)):]
	}
	return out
}

const frameHeaders, framePing = 1, 6

// A daemon does not measure the network with every call: its callers would answer a ping for each.
func TestACallIsNotPingedAbout(t *testing.T) {
	t.Parallel()
	d := servertest.New(t, servertest.Options{TCP: true})
	var wire *recordedConn
	conn, err := grpc.NewClient("passthrough:///"+d.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
			wire = &recordedConn{Conn: c}
			return wire, err
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	const calls = 20
	for range calls {
		request := beginRequest(uuid.NewString())
		if _, err := idemv1.NewLedgerServiceClient(conn).Begin(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	if frames := wire.frames(); frames[framePing] != 0 || frames[frameHeaders] < calls {
		t.Errorf("%d calls were answered with %d frames of headers and %d pings", calls, frames[frameHeaders], frames[framePing])
	}
}
