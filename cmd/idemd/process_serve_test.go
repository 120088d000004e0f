package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/types/known/durationpb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

func TestServeSaysWhereItIs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	readyFile := filepath.Join(dir, "ready.json")
	p := startDaemon(t, "--data-dir", filepath.Join(dir, "ledger"), "--ready-file", readyFile)

	content, err := os.ReadFile(readyFile)
	if err != nil {
		t.Fatal(err)
	}
	var r ready
	if err := json.Unmarshal(content, &r); err != nil {
		t.Fatal(err)
	}
	if r.GRPC != p.grpc || r.HTTP != p.http || r.PID != p.cmd.Process.Pid || strings.HasSuffix(r.GRPC, ":0") {
		t.Errorf("the ready file says %+v, the log %s and %s", r, p.grpc, p.http)
	}
	if got := runBinary(t, "health", "--addr", p.grpc); got.code != exitOK || got.stdout != "SERVING\n" {
		t.Errorf("health: %+v", got)
	}
	metrics := httpGet(t, p.http, "/metrics")
	for _, name := range []string{"idemd_ready 1", "idemd_embedded_clock_alarms_total 0", "go_goroutines ", "process_resident_memory_bytes "} {
		if !strings.Contains(metrics, "\n"+name) {
			t.Errorf("/metrics does not show %s", name)
		}
	}

	p.signal(syscall.SIGTERM)
	if code := p.waitExit(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	if _, err := os.Stat(readyFile); !os.IsNotExist(err) {
		t.Errorf("the ready file is still there: %v", err)
	}
	if got := runBinary(t, "health", "--addr", p.grpc); got.code != exitUnreachable {
		t.Errorf("health of a daemon that is gone: %+v", got)
	}
}

func httpGet(t *testing.T, addr, path string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestASecondDaemonOnTheSameDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startDaemon(t, "--data-dir", dir)
	got := runBinary(t, "serve", "--data-dir", dir, "--grpc-listen", "127.0.0.1:0", "--http-listen", "off")
	if want := fmt.Sprintf("in use by process %d", p.cmd.Process.Pid); got.code != exitFailed || !strings.Contains(got.stderr, want) {
		t.Errorf("want exit 1 and %q, got %+v", want, got)
	}
	if got := runBinary(t, "health", "--addr", p.grpc); got.code != exitOK {
		t.Errorf("the first daemon did not survive that: %+v", got)
	}
}

func TestATakenPortIsRefusedByTheNameOfItsFlag(t *testing.T) {
	t.Parallel()
	p := startDaemon(t, "--data-dir", t.TempDir())
	got := runBinary(t, "serve", "--data-dir", t.TempDir(), "--grpc-listen", p.grpc, "--http-listen", "off")
	if got.code != exitFailed || !strings.Contains(got.stderr, "--grpc-listen") || !strings.Contains(got.stderr, "address already in use") {
		t.Errorf("%+v", got)
	}
}

// TestSIGTERMAnswersThoseWhoWait: who waits for another's claim is told at once who has it, and the daemon ends in good order.
func TestSIGTERMAnswersThoseWhoWait(t *testing.T) {
	t.Parallel()
	p := startDaemon(t, "--data-dir", t.TempDir())
	client := p.connect()
	holder := &intent{key: "awaited", attemptID: uuid.NewString()}
	if _, err := client.Begin(t.Context(), holder.beginRequest()); err != nil {
		t.Fatal(err)
	}
	const waiters = 5
	type answer struct {
		out *idemv1.BeginResponse
		err error
	}
	answers := make(chan answer, waiters)
	for range waiters {
		request := (&intent{key: "awaited", attemptID: uuid.NewString()}).beginRequest()
		request.Wait = durationpb.New(30 * time.Second)
		go func() {
			out, err := client.Begin(t.Context(), request)
			answers <- answer{out, err}
		}()
	}
	p.untilMetric(fmt.Sprintf("idemd_waiting_calls %d", waiters))

	p.signal(syscall.SIGHUP) // harmless
	p.waitForLine("SIGHUP: nothing is reloaded; settings are read at start, and policies are set with idemd policy set")
	p.signal(syscall.SIGTERM)
	for range waiters {
		if a := <-answers; a.err != nil || a.out.GetInProgress().GetAttempt() != 1 {
			t.Errorf("a waiter is answered %v, %v", a.out, a.err)
		}
	}
	if code := p.waitExit(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// untilMetric reads /metrics until it has a line. Each reading is a round trip; there is no event to wait for from outside.
func (p *process) untilMetric(line string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	for ctx.Err() == nil {
		if body := httpGet(p.t, p.http, "/metrics"); strings.Contains("\n"+body, "\n"+line+"\n") {
			return
		}
	}
	p.t.Fatalf("/metrics never had the line %q", line)
}

// TestASecondSignalEndsAtOnce: a call that does not end holds the drain up, and whoever has no patience need not wait for it.
func TestASecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	p := startDaemon(t, "--data-dir", t.TempDir(), "--drain-timeout", "10m")
	p.openCall()
	p.signal(syscall.SIGINT)
	p.waitForLine("draining")
	p.signal(syscall.SIGINT)
	if code := p.waitExit(); code != exitSignal+int(syscall.SIGINT) {
		t.Errorf("exit code %d", code)
	}
}

// TestCallsThatDoNotEndAreCutOffAfterTheDrainTimeout, and the exit code says so.
func TestCallsThatDoNotEndAreCutOffAfterTheDrainTimeout(t *testing.T) {
	t.Parallel()
	p := startDaemon(t, "--data-dir", t.TempDir(), "--drain-timeout", "50ms")
	p.openCall()
	p.signal(syscall.SIGTERM)
	if code := p.waitExit(); code != exitFailed || !strings.Contains(p.log.String(), "cut off") {
		t.Errorf("exit code %d", code)
	}
}

// openCall leaves a call open that ends only with its caller or with the daemon: reflection is a conversation.
func (p *process) openCall() {
	p.t.Helper()
	conn, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	if err := stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		p.t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		p.t.Fatal(err)
	}
}

// TestABackupIsTakenWhileTheDaemonServes, from another process, and holds what was acknowledged before it.
func TestABackupIsTakenWhileTheDaemonServes(t *testing.T) {
	t.Parallel()
	dir, restored := t.TempDir(), t.TempDir()
	destination := filepath.Join(restored, "ledger.db")
	p := startDaemon(t, "--data-dir", dir)
	backedUp := make(chan result, 1)
	all := load(t.Context(), p, 0, 4, 300, func() {
		// The load goes on while the backup is taken.
		go func() {
			backedUp <- runBinary(t, "backup", "--data-dir", dir, destination)
			_ = p.cmd.Process.Kill()
		}()
	})
	if got := <-backedUp; got.code != exitOK {
		t.Fatalf("backup: %+v", got)
	}
	if got := runBinary(t, "backup", "--data-dir", dir, destination); got.code != exitFailed || !strings.Contains(got.stderr, "is there already") {
		t.Errorf("a second backup to the same file: %+v", got)
	}
	info, err := os.Stat(destination)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the backup can be read by others: %v, %v", info.Mode(), err)
	}
	if files, _ := os.ReadDir(restored); len(files) != 1 {
		t.Errorf("left behind: %v", files)
	}
	// 300 acknowledgements came before the backup: begins and completes, so at least half as many entries.
	if there, _ := countThere(t, restored, all); there < 150 {
		t.Errorf("the backup holds %d entries of %d", there, len(all))
	}
}

// TestABackupIsTakenOfALedgerWhoseDaemonWasKilled: what was acknowledged may still stand in the write-ahead log alone, and is in the backup.
func TestABackupIsTakenOfALedgerWhoseDaemonWasKilled(t *testing.T) {
	t.Parallel()
	dir, restored := t.TempDir(), t.TempDir()
	p := startDaemon(t, "--data-dir", dir)
	all := load(t.Context(), p, 0, 4, 200, p.kill)
	if got := runBinary(t, "backup", "--data-dir", dir, filepath.Join(restored, "ledger.db")); got.code != exitOK {
		t.Fatalf("backup: %+v", got)
	}
	begun, completed := 0, 0
	for _, i := range all {
		if i.token != nil {
			begun++
		}
		if i.completed {
			completed++
		}
	}
	if there, answered := countThere(t, restored, all); there < begun || answered < completed || completed == 0 {
		t.Errorf("the backup holds %d entries and %d answers; acknowledged were %d and %d", there, answered, begun, completed)
	}
}

// countThere starts a daemon on a directory and counts which intents it knows, and which of them with their answer.
func countThere(t *testing.T, dir string, all []*intent) (there, answered int) {
	t.Helper()
	client := startDaemon(t, "--data-dir", dir).connect()
	for _, i := range all {
		out, err := client.Lookup(t.Context(), &idemv1.LookupRequest{Ref: ref(i.key)})
		if err != nil {
			continue // begun after the backup
		}
		there++
		answer := out.GetEntry().GetAnswer()
		if answer == nil {
			continue
		}
		answered++
		if !bytes.Equal(answer.GetResponse().GetBody(), []byte("answer of "+i.key)) {
			t.Errorf("%s: %v", i.key, answer)
		}
	}
	return there, answered
}

func TestPoliciesAreWrittenAtStartWhereThereAreNone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "policies.yaml")
	write := func(settlement string) {
		content := "policies:\n- tenant: default\n  operation: shop.v1.PaymentService/Charge\n  horizons: {settlement: " + settlement + "}\n  on_abandoned: hold\n"
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	retention := func(p *process) string {
		return runBinary(t, "policy", "get", "--addr", p.grpc, "shop.v1.PaymentService/Charge").stdout
	}
	write("90d")
	p := startDaemon(t, "--data-dir", dir, "--policies", file)
	if got := retention(p); !strings.Contains(got, "90d, decided by settlement") {
		t.Errorf("at the first start:\n%s", got)
	}
	p.kill()

	// An operator's change, or what an earlier start wrote, is not undone by a file.
	write("30d")
	if got := retention(startDaemon(t, "--data-dir", dir, "--policies", file)); !strings.Contains(got, "90d, decided by settlement") {
		t.Errorf("at the second start:\n%s", got)
	}
}

// TestSystemdIsTold: READY when the daemon serves, STOPPING when it drains.
func TestSystemdIsTold(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	if err := socket.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	read := func() string {
		buffer := make([]byte, 256)
		n, err := socket.Read(buffer)
		if err != nil {
			t.Fatal(err)
		}
		return string(buffer[:n])
	}
	p := startDaemonIn(t, []string{"NOTIFY_SOCKET=" + name}, "--data-dir", filepath.Join(dir, "ledger"))
	if got := read(); got != "READY=1" {
		t.Errorf("first %q", got)
	}
	p.signal(syscall.SIGTERM)
	if got := read(); got != "STOPPING=1" {
		t.Errorf("then %q", got)
	}
	if code := p.waitExit(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}
