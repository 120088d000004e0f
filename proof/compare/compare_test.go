package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// programs builds the daemon and this program, once.
func programs(t *testing.T) (compare, idemd string) {
	t.Helper()
	if testing.Short() {
		t.Skip("runs the real programs: not with -short")
	}
	dir := t.TempDir()
	compare, idemd = filepath.Join(dir, "compare"), filepath.Join(dir, "idemd")
	for program, source := range map[string]string{compare: ".", idemd: "../../cmd/idemd"} {
		if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, source).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	return compare, idemd
}

// TestEveryFormOfItRuns in small, with what is installed. What it measures is not judged here.
func TestEveryFormOfItRuns(t *testing.T) {
	t.Parallel()
	program, idemd := programs(t)
	for name, c := range map[string]struct {
		args, want []string
	}{
		"compare": {
			[]string{"-rounds", "1", "-length", "50ms"},
			[]string{"| echo |", "| echo stream |", "| idemd, embedded |", "| idemd, sessions |", "| idemd, replay |", "| idemd, alone |", "| embedded store, pairs, to the echo |", "to two SQLite transactions"},
		},
		"some of it": {
			[]string{"-rounds", "1", "-length", "50ms", "-only", "echo", "-only", "echo s"},
			[]string{"| echo |", "| echo stream |", "two unary calls"},
		},
		"growth": {
			[]string{"-do", "growth", "-entries", "500", "-tombstones", "200", "-length", "50ms"},
			[]string{"| pairs/s with ", "| resident memory", "| bytes of disk an entry", "| bytes of disk a tombstone, of 200"},
		},
		"sweep": {
			[]string{"-do", "sweep", "-entries", "500", "-length", "100ms", "-rate", "50", "-rounds", "2"},
			[]string{"500 expired entries", "| p99 of Begin, no sweep |", "| entries swept in a second, nobody calls |"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"-idemd", idemd, "-workers", "4", "-pool", "2", "-dir", t.TempDir(), "-cockroach", ""}, c.args...)
			out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			for _, want := range c.want {
				if !strings.Contains(string(out), want) {
					t.Errorf("%q is not in:\n%s", want, out)
				}
			}
			if strings.Contains(string(out), "not installed") {
				t.Logf("NOT ALL WAS RUN: %s", out)
			}
		})
	}
}

// TestACandidateThatFailsIsLeftOut, and said, and takes nobody with it.
func TestACandidateThatFailsIsLeftOut(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	failures := 0
	bad := &candidate{name: "bad", workers: 1, step: func(context.Context, int) error {
		mu.Lock()
		defer mu.Unlock()
		failures++
		return errors.New("no")
	}}
	good := &candidate{name: "good", workers: 2, step: func(context.Context, int) error { return nil }}
	runs, err := rounds(t.Context(), []*candidate{bad, good}, 2, time.Millisecond)
	if err != nil || len(runs["bad"]) != 0 || len(runs["good"]) != 2 || failures != 1 {
		t.Errorf("%v, %v, %d failures", runs, err, failures)
	}
	if _, err := rounds(t.Context(), []*candidate{bad}, 1, time.Millisecond); err == nil {
		t.Error("nothing was measured, and nothing said")
	}
}

func TestTargetsAreJudged(t *testing.T) {
	t.Parallel()
	if got := medianOf([]float64{5, 1, 3}); got != 3 {
		t.Errorf("median of three: %v", got)
	}
	if got := medianOf([]float64{4, 1, 3, 2}); got != 2.5 {
		t.Errorf("median of four: %v", got)
	}
	runs := map[string][]run{nameEmbedded: {{perSecond: 40}, {perSecond: 1}, {perSecond: 50}}, nameEcho: {{perSecond: 100}}}
	if got := targets[0].ratio(runs); got != 0.4 {
		t.Errorf("a ratio of medians is %v, want 0.4", got)
	}
	if got := targets[2].ratio(runs); got != 0 {
		t.Errorf("what was not measured is %v", got)
	}
	alone := targets[len(targets)-1]
	if got := alone.ratio(map[string][]run{nameAlone: {{p50: 3}}, nameAloneBare: {{p50: 1}}, nameAloneEcho: {{p50: 0.5}}}); got != 2 {
		t.Errorf("one caller alone is %v, want 2", got)
	}
	if got := alone.ratio(map[string][]run{nameAlone: {{p50: 3}}, nameAloneBare: {{p50: 1}}}); got != 0 {
		t.Errorf("one caller alone beside half of what it is compared with is %v", got)
	}
	for _, c := range []struct {
		target target
		got    float64
		want   string
	}{
		{target{want: 0.5}, 0.5, "0.5 | met"},
		{target{want: 0.5}, 0.49, "0.5 | **missed**"},
		{target{want: 2, atMost: true}, 2, "at most 2 | met"},
		{target{want: 2, atMost: true}, 2.1, "at most 2 | **missed**"},
		{target{}, 3, "none | "},
	} {
		if got := c.target.verdict(c.got); got != c.want {
			t.Errorf("%v of %+v: %q, want %q", c.got, c.target, got, c.want)
		}
	}
}

// TestOnlySelects candidates by name, or by how their names begin.
func TestOnlySelects(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		only []string
		want []string
	}{
		{nil, names},
		{[]string{"echo"}, []string{nameEcho}}, // a whole name is that one
		{[]string{"echo ", nameRedis}, []string{nameEchoStream, nameRedis, nameEchoReplay}},
		{[]string{"idemd, P", "pgx, P"}, []string{namePostgres, nameByHand, nameFar, nameByHandFar}},
	} {
		var s selection
		for _, wanted := range c.only {
			if err := s.Set(wanted); err != nil {
				t.Error(err)
			}
		}
		got := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !s.has(name) })
		if !slices.Equal(got, c.want) {
			t.Errorf("%q selects %q, want %q", c.only, got, c.want)
		}
	}
	var s selection
	if err := s.Set("postgres"); err == nil || !strings.Contains(err.Error(), namePostgres) {
		t.Errorf("what selects nothing was told %v", err)
	}
}

// TestProcessorTimeIsCounted of a process that works, with all that it has started, also what has ended; and none of one that is not there.
func TestProcessorTimeIsCounted(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: only Linux tells")
	}
	before := processorTime(os.Getpid())
	for processorTime(os.Getpid()) < before+3*tick { // a loop that never ends here never counts
		_ = randomBytes(1 << 16)
	}
	if got := processorTime(-1); got != 0 {
		t.Errorf("nobody used %v", got)
	}
	// A shell whose first child has worked and ended, and whose second one works until it is killed.
	work := "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"
	shell := exec.CommandContext(t.Context(), "sh", "-c", "(exec sh -c '"+work+"'); echo ended; exec 3<&0; (while :; do :; done) & read -r line <&3; kill $!")
	input, err := shell.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := shell.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(children(), shell.Process.Pid) {
		t.Error("a process that this one has started is not among its children")
	}
	if line, err := bufio.NewReader(output).ReadString('\n'); line != "ended\n" {
		t.Fatalf("%q, %v", line, err)
	}
	c := &candidate{servers: []server{{"shell", shell.Process.Pid}, {"nobody", -1}}}
	ended := c.serversTime()
	if ended[0] == 0 {
		t.Error("the work of a child that has ended is not counted")
	}
	for c.serversTime()[0] < ended[0]+3*tick.Seconds() { // likewise
		runtime.Gosched()
	}
	if got := c.serversTime()[1]; got != 0 {
		t.Errorf("nobody used %v s", got)
	}
	_ = input.Close()
	_ = shell.Wait()
}

// TestADistanceTakesItsTime each way, and changes nothing.
func TestADistanceTakesItsTime(t *testing.T) {
	t.Parallel()
	database, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = database.Close() })
	go func() {
		for {
			conn, err := database.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn) }() // says what it hears
		}
	}()
	l := &lab{config: &config{distance: 20 * time.Millisecond}, dir: t.TempDir()}
	t.Cleanup(l.close)
	l.self, _ = programs(t)
	far, servers, err := l.away(t.Context(), "postgres://"+database.Addr().String()+"/db?sslmode=prefer")
	if err != nil || len(servers) != 1 || !strings.HasSuffix(far, "/db?sslmode=disable") {
		t.Fatalf("%q, %v, %v", far, servers, err)
	}
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimSuffix(strings.TrimPrefix(far, "postgres://"), "/db?sslmode=disable"))
	if err != nil {
		t.Fatal(err)
	}
	said, began := randomBytes(100_000), time.Now()
	go func() { _, _ = conn.Write(said) }()
	heard := make([]byte, len(said))
	if _, err := io.ReadFull(conn, heard); err != nil || !bytes.Equal(heard, said) {
		t.Errorf("something else was heard: %v", err)
	}
	if took := time.Since(began); took < 2*l.distance {
		t.Errorf("there and back took %v, a way takes %v", took, l.distance)
	}
	_ = conn.Close()
}

// TestProcessorTimeIsToldByWhose it is.
func TestProcessorTimeIsToldByWhose(t *testing.T) {
	t.Parallel()
	of := []run{{callersCPU: 10e-6, serversCPU: []float64{20e-6, 30e-6}}}
	if got := (&candidate{servers: []server{{"idemd", 1}, {"PostgreSQL", 2}}}).processor(of); got != "10 µs callers + 20 µs idemd + 30 µs PostgreSQL = 60 µs" {
		t.Errorf("told %q", got)
	}
	if got := (&candidate{}).processor(of); got != "10 µs callers" {
		t.Errorf("told %q", got)
	}
}

// TestTheEchoHasTheSizeOfTheLedgersMessages: what it is compared with must be as long.
func TestTheEchoHasTheSizeOfTheLedgersMessages(t *testing.T) {
	t.Parallel()
	for _, size := range []int{131, 193, 400} {
		request := echoRequest(size, 2*size)
		if got := proto.Size(request); got != size {
			t.Errorf("a request of %d bytes has %d", size, got)
		}
		if got := proto.Size(echo(request)); got != 2*size {
			t.Errorf("an answer of %d bytes has %d", 2*size, got)
		}
	}
	// Under 128 bytes the length takes one byte less.
	if got := proto.Size(echo(echoRequest(200, 80))); got < 79 || got > 80 {
		t.Errorf("an answer of 80 bytes has %d", got)
	}
	server := grpc.NewServer()
	server.RegisterService(&echoService, nil)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	l := &lab{config: &config{}}
	t.Cleanup(l.close)
	conns, err := l.dial(listener.Addr().String(), 2)
	if err != nil {
		t.Fatal(err)
	}
	var answer wrapperspb.BytesValue
	if err := conns[0].Invoke(t.Context(), echoUnary, echoRequest(10, 300), &answer); err != nil || proto.Size(&answer) != 300 {
		t.Errorf("%v, %d bytes", err, proto.Size(&answer))
	}
	streamed, err := streamedEchoes(t.Context(), conns, [2]int{10, 20}, [2]int{30, 40})
	if err != nil {
		t.Fatal(err)
	}
	var workers sync.WaitGroup
	for w := range 8 {
		workers.Go(func() {
			if err := streamed(t.Context(), w); err != nil {
				t.Error(err)
			}
		})
	}
	workers.Wait()
}

// TestRedisIsUnderstood: each kind of reply that a pair can get, and errors.
func TestRedisIsUnderstood(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	c := &redisConn{conn: ours, in: bufio.NewReader(ours), out: bufio.NewWriter(ours)}
	for _, r := range []struct{ reply, want, err string }{
		{"+OK\r\n", "OK", ""},
		{":1\r\n", "1", ""},
		{"$3\r\nabc\r\n", "abc", ""},
		{"$-1\r\n", "", ""},
		{"-ERR no\r\n", "", "ERR no"},
		{"*0\r\n", "", "redis said"},
		{"\r\n", "", "redis said nothing"},
	} {
		sent := make(chan string, 1)
		go func() {
			buf := make([]byte, 256)
			n, _ := theirs.Read(buf)
			sent <- string(buf[:n])
			_, _ = theirs.Write([]byte(r.reply))
		}()
		got, err := c.do("SET", "key")
		if got != r.want || (err == nil) != (r.err == "") || err != nil && !strings.Contains(err.Error(), r.err) {
			t.Errorf("%q: %q, %v", r.reply, got, err)
		}
		if command := <-sent; command != "*2\r\n$3\r\nSET\r\n$3\r\nkey\r\n" {
			t.Errorf("sent %q", command)
		}
	}
}
