package load

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

const (
	soakWorkers = 64
	// soakWindows are enough for a line through them, and each of an hour's is long enough to have a latency.
	soakWindows = 60
	// soakKept is how long answers, and then tombstones, are kept: short, so that as much goes as comes.
	soakKept = 20 * time.Second
)

// TestSoak runs the real daemon on the embedded store at half of what it can do, for as long as SOAK says ("make soak"), with entries that are
// forgotten as fast as they come: memory, goroutines, file handles and latency stay flat, as judge says it.
func TestSoak(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("SOAK"))
	if err != nil {
		t.Skip("SKIPPED: takes as long as it is told to, for example make soak DURATION=1h")
	}
	p := program.Start(t, nil, "--data-dir", t.TempDir(), "--sweep-interval", "5s")
	s := &soak{client: idemv1.NewLedgerServiceClient(p.Conn()), metrics: p.MetricsURL()}
	s.setPolicy(t, idemv1.NewAdminServiceClient(p.Conn()))
	full := s.load(t, max(length/60, 5*time.Second), 0)
	t.Logf("at full load: %v", full)
	var windows []window
	for range soakWindows {
		w := s.load(t, length/soakWindows, full.rate()/2)
		s.measure(t, &w)
		t.Log(w)
		windows = append(windows, w)
	}
	for _, quantity := range mayRise {
		t.Logf("after the first quarter: %v %s an hour", trendOf(windows[soakWindows/4:], quantity.of), quantity.name)
	}
	v := judge(windows)
	t.Logf("VERDICT: %v", v)
	if len(v.wrong) > 0 {
		t.Fail()
	}
}

type soak struct {
	client  idemv1.LedgerServiceClient
	metrics string
}

func (s *soak) setPolicy(t *testing.T, admin idemv1.AdminServiceClient) {
	t.Helper()
	_, err := admin.PutPolicy(t.Context(), &idemv1.PutPolicyRequest{Policy: &idemv1.Policy{
		Tenant: "*", Operation: "load", Tombstone: durationpb.New(soakKept), Horizons: &idemv1.Horizons{ClientRetry: durationpb.New(soakKept)},
	}})
	if err != nil {
		t.Fatal(err)
	}
}

// window is what was seen in a part of the time.
type window struct {
	length time.Duration
	pairs  int // of Begin and Complete
	failed int
	took   []time.Duration
	// After it.
	memory, goroutines, files float64
}

func (w window) rate() float64 { return float64(w.pairs) / w.length.Seconds() }

func (w window) String() string {
	return fmt.Sprintf("%.0f pairs a second, %d failed, p50 %v, p99 %v; %.0f MB, %.0f goroutines, %.0f file handles",
		w.rate(), w.failed, percentile(w.took, 50).Round(10*time.Microsecond), percentile(w.took, 99).Round(10*time.Microsecond), w.memory/1e6, w.goroutines, w.files)
}

// load keeps the daemon busy for a time with that many pairs a second, by a clock that does not wait for answers; 0: with as many as it can do.
func (s *soak) load(t *testing.T, length time.Duration, rate float64) window {
	t.Helper()
	w := window{length: length}
	var mu sync.Mutex
	var workers sync.WaitGroup
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	for n := range soakWorkers {
		workers.Go(func() {
			for i := 0; ; i++ {
				due := time.Now()
				if rate > 0 {
					due = began.Add(time.Duration(float64(n+i*soakWorkers) / rate * float64(time.Second)))
				}
				select {
				case <-ctx.Done():
				case <-time.After(time.Until(due)):
				}
				if ctx.Err() != nil {
					return
				}
				err := s.pair(t.Context())
				mu.Lock()
				w.pairs, w.took = w.pairs+1, append(w.took, time.Since(due))
				if err != nil {
					w.failed++
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	return w
}

func (s *soak) pair(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	key := uuid.NewString()
	out, err := s.client.Begin(ctx, request(key, 0))
	if err != nil {
		return err
	}
	_, err = s.client.Complete(ctx, &idemv1.CompleteRequest{
		Ref: entryRef(key), ClaimToken: out.GetGranted().GetClaimToken(), Response: &idemv1.Response{Body: make([]byte, 200)},
	})
	return err
}

// measure asks the daemon's metrics.
func (s *soak) measure(t *testing.T, w *window) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.metrics, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	wanted := map[string]*float64{"process_resident_memory_bytes": &w.memory, "go_goroutines": &w.goroutines, "process_open_fds": &w.files}
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		name, text, _ := strings.Cut(lines.Text(), " ")
		if value := wanted[name]; value != nil {
			if *value, err = strconv.ParseFloat(text, 64); err != nil {
				t.Fatal(err)
			}
			delete(wanted, name)
		}
	}
	for name := range wanted {
		t.Errorf("the daemon does not tell %s", name)
	}
}

// merge is several windows as one: all of their latencies, and the means of what was measured after each.
func merge(windows []window) (all window) {
	n := float64(len(windows))
	for _, w := range windows {
		all.length, all.pairs, all.failed, all.took = all.length+w.length, all.pairs+w.pairs, all.failed+w.failed, append(all.took, w.took...)
		all.memory, all.goroutines, all.files = all.memory+w.memory/n, all.goroutines+w.goroutines/n, all.files+w.files/n
	}
	return all
}
