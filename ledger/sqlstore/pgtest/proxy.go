package pgtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Fault is what a [Proxy] does to one exchange: what the client sends up to a Sync, and what the server answers to it.
type Fault int

// The faults.
const (
	// CutBefore closes the connection before the exchange reaches the server: nothing happened.
	CutBefore Fault = iota + 1
	// CutAfter lets the server finish, and closes the connection instead of passing its answer on: it happened, or not, and the client
	// cannot know.
	CutAfter
	// FailBefore answers with an error that the server never raised: nothing happened.
	FailBefore
	// FailAfter lets the server finish and passes an error on instead of its answer.
	FailAfter
	// StallBefore keeps the exchange from the server until [Proxy.Disarm]. It reaches the server then, whether the client is still there or not.
	StallBefore
	// StallAfter lets the server finish, and keeps its answer back until [Proxy.Disarm].
	StallAfter
)

// Proxy passes PostgreSQL's protocol between clients and a server, without TLS, and plants faults in it. CockroachDB speaks the same.
type Proxy struct {
	listener net.Listener
	target   string // network address of the server
	network  string
	url      string

	mu       sync.Mutex
	armed    []armed
	disarmed chan struct{} // closed by the next Disarm
	replaced []replacement
	hits     int
	conns    map[net.Conn]struct{}
	closed   bool
	wait     sync.WaitGroup
}

type replacement struct{ old, by []byte }

type armed struct {
	fault    Fault
	code     string
	contains string
	left     int // how many more times; negative: for ever
	disarmed <-chan struct{}
}

// NewProxy starts a proxy to the server of a database URL, the first where it names several, and stops it when the test ends.
func NewProxy(t testing.TB, databaseURL string) *Proxy {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(u.Host, ",")
	p := &Proxy{network: "tcp", target: first, conns: map[net.Conn]struct{}{}, disarmed: make(chan struct{})}
	query := u.Query()
	if dir := query.Get("host"); dir != "" {
		port := u.Port()
		if port == "" {
			port = "5432"
		}
		p.network, p.target = "unix", filepath.Join(dir, ".s.PGSQL."+port)
		query.Del("host")
	}
	if p.listener, err = new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	query.Set("sslmode", "disable")
	u.Host, u.RawQuery = p.listener.Addr().String(), query.Encode()
	p.url = u.String()
	p.wait.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// URL is the database's URL by way of the proxy.
func (p *Proxy) URL() string { return p.url }

// Arm plants a fault in the next times exchanges (negative: in all of them) that execute a statement whose text contains a string. code
// is the SQLSTATE of the errors of FailBefore and FailAfter.
func (p *Proxy) Arm(fault Fault, contains, code string, times int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = append(p.armed, armed{fault, code, contains, times, p.disarmed})
}

// Disarm removes all faults, and lets what is stalled go on.
func (p *Proxy) Disarm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.disarm()
}

func (p *Proxy) disarm() {
	p.armed = nil
	close(p.disarmed)
	p.disarmed = make(chan struct{})
}

// Replace has a part of the text of statements replaced by another on its way to the server, wherever it stands, from the next statement that is prepared on.
func (p *Proxy) Replace(old, by string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.replaced = append(p.replaced, replacement{[]byte(old), []byte(by)})
}

// rewritten is a message that has the text of a statement in it, with what is to be replaced.
func (p *Proxy) rewritten(message []byte) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	body := message[5:]
	for _, r := range p.replaced {
		body = bytes.ReplaceAll(body, r.old, r.by)
	}
	return append(binary.BigEndian.AppendUint32([]byte{message[0]}, uint32(4+len(body))), body...)
}

// Hits is how many faults there have been.
func (p *Proxy) Hits() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hits
}

func (p *Proxy) faultFor(texts []string) (armed, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.armed {
		a := &p.armed[i]
		for _, text := range texts {
			if a.left != 0 && strings.Contains(text, a.contains) {
				a.left--
				p.hits++
				return *a, true
			}
		}
	}
	return armed{}, false
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := new(net.Dialer).DialContext(context.Background(), p.network, p.target)
		if err != nil || !p.track(client, server) {
			_ = client.Close()
			continue
		}
		p.wait.Go(func() {
			s := &session{proxy: p, client: client, server: server, statements: map[string]string{}}
			s.run()
			_ = client.Close()
			_ = server.Close()
			p.untrack(client, server)
		})
	}
}

func (p *Proxy) track(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		p.conns[c] = struct{}{}
	}
	return !p.closed
}

func (p *Proxy) untrack(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		delete(p.conns, c)
	}
}

func (p *Proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.disarm()
	for c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.wait.Wait()
}

// session is one client's connection. Client and server take turns: the proxy gathers what the client sends up to a Sync or a simple
// query, and then passes on what the server answers up to ReadyForQuery. pgx never sends a second exchange before the first is answered.
type session struct {
	proxy          *Proxy
	client, server net.Conn
	statements     map[string]string // by name, the text of what was prepared
}

func (s *session) run() {
	if !s.startUp() {
		return
	}
	for {
		exchange, texts, err := s.readExchange()
		if err != nil {
			_, _ = s.server.Write(exchange) // a Terminate, most likely
			return
		}
		if !s.answer(exchange, texts) {
			return
		}
	}
}

// startUp passes on the start of a session, whose first message has no type.
func (s *session) startUp() bool {
	var head [4]byte
	if _, err := io.ReadFull(s.client, head[:]); err != nil {
		return false
	}
	body := make([]byte, binary.BigEndian.Uint32(head[:])-4)
	if _, err := io.ReadFull(s.client, body); err != nil {
		return false
	}
	if _, err := s.server.Write(append(head[:], body...)); err != nil {
		return false
	}
	const cancelRequest = 80877102
	if binary.BigEndian.Uint32(body) == cancelRequest {
		return false // the server answers by closing
	}
	return s.passAuthentication()
}

// passAuthentication passes messages both ways until the server is ready.
func (s *session) passAuthentication() bool {
	for {
		kind, message, err := readMessage(s.server)
		if err != nil {
			return false
		}
		if _, err := s.client.Write(message); err != nil || kind == 'E' {
			return false
		}
		if kind == 'Z' {
			return true
		}
		if kind == 'R' && wantsAnswer(message) {
			_, reply, err := readMessage(s.client)
			if err != nil {
				return false
			}
			if _, err := s.server.Write(reply); err != nil {
				return false
			}
		}
	}
}

// wantsAnswer: every authentication message but Ok (0) and the last of SASL (12) asks the client for something.
func wantsAnswer(message []byte) bool {
	code := binary.BigEndian.Uint32(message[5:])
	return code != 0 && code != 12
}

// readExchange reads up to a Sync or a simple query, and the texts of the statements that it executes.
func (s *session) readExchange() (exchange []byte, texts []string, err error) {
	for {
		kind, message, err := readMessage(s.client)
		if err != nil {
			return exchange, texts, err
		}
		if kind == 'P' || kind == 'Q' {
			message = s.proxy.rewritten(message)
		}
		exchange = append(exchange, message...)
		body := message[5:]
		switch kind {
		case 'P': // Parse: name, text
			name, rest := cstring(body)
			text, _ := cstring(rest)
			s.statements[name] = text
		case 'B': // Bind: portal, statement
			_, rest := cstring(body)
			name, _ := cstring(rest)
			texts = append(texts, s.statements[name])
		case 'Q': // a simple query is an exchange by itself
			text, _ := cstring(body)
			return exchange, append(texts, text), nil
		case 'S':
			return exchange, texts, nil
		case 'X':
			return exchange, texts, io.EOF
		}
	}
}

func (s *session) answer(exchange []byte, texts []string) bool {
	a, faulty := s.proxy.faultFor(texts)
	if faulty && a.fault == CutBefore {
		return false
	}
	if faulty && a.fault == FailBefore {
		_, err := s.client.Write(errorAnswer(a.code))
		return err == nil
	}
	if faulty && a.fault == StallBefore {
		<-a.disarmed
		faulty = false
	}
	if _, err := s.server.Write(exchange); err != nil {
		return false
	}
	if faulty && a.fault == StallAfter {
		<-a.disarmed
		faulty = false
	}
	for {
		kind, message, err := readMessage(s.server)
		if err != nil {
			return false
		}
		if !faulty { // of a faulty exchange the client hears nothing of what the server said
			if _, err := s.client.Write(message); err != nil {
				return false
			}
		}
		if kind == 'Z' {
			break
		}
	}
	if faulty && a.fault == CutAfter {
		return false
	}
	if faulty {
		_, err := s.client.Write(errorAnswer(a.code))
		return err == nil
	}
	return true
}

// errorAnswer is an ErrorResponse and ReadyForQuery, outside a transaction.
func errorAnswer(code string) []byte {
	fields := fmt.Sprintf("SERROR\x00VERROR\x00C%s\x00Mplanted by a test in SELECT secret_text\x00\x00", code)
	out := binary.BigEndian.AppendUint32([]byte{'E'}, uint32(4+len(fields)))
	out = append(out, fields...)
	return append(out, 'Z', 0, 0, 0, 5, 'I')
}

func readMessage(r io.Reader) (kind byte, message []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	message = make([]byte, 1+binary.BigEndian.Uint32(head[1:]))
	copy(message, head[:])
	_, err = io.ReadFull(r, message[5:])
	return head[0], message, err
}

func cstring(b []byte) (string, []byte) {
	text, rest, _ := strings.Cut(string(b), "\x00")
	return text, []byte(rest)
}
