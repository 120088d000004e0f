package workload

import (
	"slices"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Span is something whose length is measured.
type Span string

// The spans. Under a rate, those that begin a turn count from when it was due.
const (
	SpanBegin      Span = "begin"      // a Begin of a fresh intent, until it is granted
	SpanComplete   Span = "complete"   // its Complete
	SpanPair       Span = "pair"       // both
	SpanReplay     Span = "replay"     // a Begin that is told the answer
	SpanDuplicates Span = "duplicates" // from the first of several Begins at once until all of them have the answer
	SpanMismatch   Span = "mismatch"   // a Begin that is refused KEY_REUSED
	SpanQueued     Span = "queued"     // under a rate: how long a turn that was due waited for a worker
)

// Spans are all of them, in the order of reports.
func Spans() []Span {
	return []Span{SpanBegin, SpanComplete, SpanPair, SpanReplay, SpanDuplicates, SpanMismatch, SpanQueued}
}

// Latencies are kept from a microsecond to two minutes, to two significant digits: 1 percent.
const (
	lowestMicros  = 1
	highestMicros = 120_000_000
	digits        = 2
)

// recorder gathers what is measured. It is safe for concurrent use.
type recorder struct {
	mu      sync.Mutex
	spans   map[Span]*hdrhistogram.Histogram
	calls   int64
	turns   int64
	resends map[string]int64
	errors  map[string]int64
}

func newRecorder() *recorder {
	r := &recorder{spans: map[Span]*hdrhistogram.Histogram{}, resends: map[string]int64{}, errors: map[string]int64{}}
	for _, s := range Spans() {
		r.spans[s] = hdrhistogram.New(lowestMicros, highestMicros, digits)
	}
	return r
}

// span records a length; what is longer than can be told apart counts as the longest.
func (r *recorder) span(s Span, d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.spans[s].RecordValue(min(max(d.Microseconds(), lowestMicros), highestMicros))
}

func (r *recorder) call() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
}

func (r *recorder) turn() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turns++
}

func (r *recorder) resend(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resends[why]++
}

func (r *recorder) failed(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errors[why]++
}

// reset forgets what was measured, at the end of the warm-up.
func (r *recorder) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.spans {
		h.Reset()
	}
	r.calls, r.turns = 0, 0
}

// SpanReport is one span of a report. Lengths are in seconds.
type SpanReport struct {
	Span      Span    `json:"span"`
	Count     int64   `json:"count"`
	PerSecond float64 `json:"perSecond"`
	Mean      float64 `json:"meanSeconds"`
	P50       float64 `json:"p50Seconds"`
	P90       float64 `json:"p90Seconds"`
	P99       float64 `json:"p99Seconds"`
	P999      float64 `json:"p999Seconds"`
	Max       float64 `json:"maxSeconds"`
}

// PromiseReport is what was checked of one promise.
type PromiseReport struct {
	Promise Promise `json:"promise"`
	Checked int64   `json:"checked"`
	Broken  int64   `json:"broken"`
}

// Count is how often something happened.
type Count struct {
	What string `json:"what"`
	N    int64  `json:"count"`
}

// Report is what a run came to.
type Report struct {
	// Seconds is how long was measured.
	Seconds float64 `json:"seconds"`
	// Turns and Calls were done in that time.
	Turns          int64   `json:"turns"`
	TurnsPerSecond float64 `json:"turnsPerSecond"`
	Calls          int64   `json:"calls"`
	CallsPerSecond float64 `json:"callsPerSecond"`
	// NotBegun is how many turns were due under the rate, and had found no worker when the time was over.
	NotBegun int64           `json:"notBegun"`
	Spans    []SpanReport    `json:"spans"`
	Promises []PromiseReport `json:"promises"`
	// Broken is the sum over the promises; Examples tell of the first few.
	Broken   int64    `json:"broken"`
	Examples []string `json:"examples"`
	// Resends are calls that were sent again, by why, and Errors turns that came to no end, by why; both over the whole run, warm-up included.
	Resends []Count `json:"resends"`
	Errors  []Count `json:"errors"`
	// Rechecked is how many of the entries that were completed were asked for once more when the load was over.
	Rechecked int64 `json:"rechecked"`
	// Interrupted: the run was called off before its time.
	Interrupted bool `json:"interrupted"`
}

// ErrorCount is how many turns came to no end.
func (r *Report) ErrorCount() (sum int64) {
	for _, c := range r.Errors {
		sum += c.N
	}
	return sum
}

func (r *recorder) report(took time.Duration, v *verdicts) *Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	v.mu.Lock()
	defer v.mu.Unlock()
	seconds := took.Seconds()
	out := &Report{
		Seconds: seconds, Turns: r.turns, Calls: r.calls, TurnsPerSecond: float64(r.turns) / seconds, CallsPerSecond: float64(r.calls) / seconds,
		Resends: counts(r.resends), Errors: counts(r.errors), Examples: append([]string{}, v.examples...), Spans: []SpanReport{},
	}
	for _, s := range Spans() {
		if h := r.spans[s]; h.TotalCount() > 0 {
			out.Spans = append(out.Spans, spanReport(s, h, seconds))
		}
	}
	for _, p := range Promises() {
		out.Promises = append(out.Promises, PromiseReport{Promise: p, Checked: v.checked[p], Broken: v.broken[p]})
		out.Broken += v.broken[p]
	}
	return out
}

func spanReport(s Span, h *hdrhistogram.Histogram, seconds float64) SpanReport {
	at := func(quantile float64) float64 { return float64(h.ValueAtQuantile(quantile)) / 1e6 }
	return SpanReport{
		Span: s, Count: h.TotalCount(), PerSecond: float64(h.TotalCount()) / seconds, Mean: h.Mean() / 1e6,
		P50: at(50), P90: at(90), P99: at(99), P999: at(99.9), Max: float64(h.Max()) / 1e6,
	}
}

// counts lists what there is, the most frequent first.
func counts(of map[string]int64) []Count {
	out := make([]Count, 0, len(of))
	for what, n := range of {
		out = append(out, Count{What: what, N: n})
	}
	slices.SortFunc(out, func(a, b Count) int {
		if a.N != b.N {
			return int(b.N - a.N)
		}
		if a.What < b.What {
			return -1
		}
		return 1
	})
	return out
}

// Snapshot is how a run goes.
type Snapshot struct {
	// Elapsed is since the load began, the warm-up included.
	Elapsed time.Duration
	Warming bool
	// TurnsPerSecond is since the snapshot before; P99Begin, in seconds, since the warm-up.
	TurnsPerSecond float64
	P99Begin       float64
	Errors, Broken int64
}

func (r *recorder) snapshot() (turns, errors int64, p99Begin float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.errors {
		errors += n
	}
	return r.turns, errors, float64(r.spans[SpanBegin].ValueAtQuantile(99)) / 1e6
}
