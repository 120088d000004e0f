package examples_test

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// lossyProxy passes gRPC on, and loses every third reply: it lets the server answer, and then closes the connection instead of passing
// the answer on, so that the client cannot know whether its call was carried out.
type lossyProxy struct {
	listener      net.Listener
	target        string
	replies, lost atomic.Int64

	mu    sync.Mutex
	conns []net.Conn
	wait  sync.WaitGroup
}

func newLossyProxy(t *testing.T, target string) *lossyProxy {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &lossyProxy{listener: listener, target: target}
	p.wait.Go(p.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		p.mu.Lock()
		for _, conn := range p.conns {
			_ = conn.Close()
		}
		p.mu.Unlock()
		p.wait.Wait()
	})
	return p
}

func (p *lossyProxy) addr() string { return p.listener.Addr().String() }

func (p *lossyProxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		server, err := net.Dial("tcp", p.target) //nolint:noctx // loopback, and closed at the end
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, client, server)
		p.mu.Unlock()
		cut := func() { _ = client.Close(); _ = server.Close() }
		p.wait.Go(func() {
			defer cut()
			_, _ = io.Copy(server, client) // until either side goes away
		})
		p.wait.Go(func() {
			defer cut()
			p.answers(client, server)
		})
	}
}

// What of HTTP/2 is needed to see where an answer begins.
const (
	frameHeaderBytes = 9
	frameHeaders     = 1
	flagEndStream    = 1
)

// answers passes frames on to the client until a reply is to be lost. A reply begins with the first HEADERS frame of its stream, and ends
// with the one that ends the stream.
func (p *lossyProxy) answers(client io.Writer, server io.Reader) {
	begun := map[uint32]bool{}
	for {
		frame := make([]byte, frameHeaderBytes, 1024)
		if _, err := io.ReadFull(server, frame); err != nil {
			return
		}
		length := int(frame[0])<<16 | int(frame[1])<<8 | int(frame[2])
		kind, flags, stream := frame[3], frame[4], binary.BigEndian.Uint32(frame[5:])
		frame = append(frame, make([]byte, length)...)
		if _, err := io.ReadFull(server, frame[frameHeaderBytes:]); err != nil {
			return
		}
		if kind == frameHeaders && !begun[stream] {
			begun[stream] = true
			if p.replies.Add(1)%3 == 0 {
				p.lost.Add(1)
				return
			}
		}
		if kind == frameHeaders && flags&flagEndStream != 0 {
			delete(begun, stream)
		}
		if _, err := client.Write(frame); err != nil {
			return
		}
	}
}
