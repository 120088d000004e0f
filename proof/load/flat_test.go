package load

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// shortest is how long a soak must have been for a verdict: before that, what a program takes in to warm up cannot be told from what it never gives back.
const shortest = 10 * time.Minute

// mayRise is what an hour may add. A daemon that is watched for a week, or that is given a memory limit of twice what it starts with, lives with that.
var mayRise = []struct {
	name string
	most float64
	of   func(window) float64
}{
	{"MB of memory", 10, func(w window) float64 { return w.memory / 1e6 }},
	{"goroutines", 20, func(w window) float64 { return w.goroutines }},
	{"file handles", 5, func(w window) float64 { return w.files }},
}

// verdict is what a soak comes to. With neither it is flat.
type verdict struct {
	// wrong is what rose, slowed down or failed.
	wrong []string
	// open is what cannot be said: the windows are too few, or differ too much, for what an hour may add to be ruled out.
	open []string
}

func (v verdict) String() string {
	switch {
	case len(v.wrong) > 0:
		return "NOT FLAT: " + strings.Join(v.wrong, "; ")
	case len(v.open) > 0:
		return "none: " + strings.Join(v.open, "; ")
	default:
		return "flat"
	}
}

// judge looks at the windows after the first quarter, in which the daemon warms up. Latencies of the last quarter are compared with those of the second;
// what could run out is not to rise.
func judge(windows []window) (v verdict) {
	whole := merge(windows)
	if whole.failed > 0 {
		v.wrong = append(v.wrong, fmt.Sprintf("%d pairs failed", whole.failed))
	}
	if whole.length < shortest {
		v.open = append(v.open, fmt.Sprintf("%v is too short for a verdict, which takes %v", whole.length, shortest))
		return v
	}
	quarter := len(windows) / 4
	early, late := merge(windows[quarter:2*quarter]), merge(windows[3*quarter:])
	for _, p := range []struct{ percent, times int }{{50, 2}, {99, 3}} {
		was, is := percentile(early.took, p.percent), percentile(late.took, p.percent)
		if is > time.Duration(p.times)*was {
			v.wrong = append(v.wrong, fmt.Sprintf("p%d was %v, and is %v at the end", p.percent, was, is))
		}
	}
	for _, quantity := range mayRise {
		rise := trendOf(windows[quarter:], quantity.of)
		told := fmt.Sprintf("%v %s an hour, of which %g are no matter", rise, quantity.name, quantity.most)
		switch {
		case rise.byHour > quantity.most && rise.byHour > rise.margin:
			v.wrong = append(v.wrong, told)
		case rise.byHour+rise.margin > quantity.most:
			v.open = append(v.open, told)
		}
	}
	return v
}

// trend is the slope of a straight line through windows. By chance it is off by the margin, three standard errors, once in hundreds of soaks.
type trend struct{ byHour, margin float64 }

func (t trend) String() string { return fmt.Sprintf("%+.1f (± %.1f)", t.byHour, t.margin) }

// trendOf fits the line by least squares. Windows that follow one another are alike, a sawtooth of the garbage collector among them, so they tell less than
// as many that are not: the margin is larger by how much each one's distance from the line tells the next one's.
func trendOf(windows []window, of func(window) float64) trend {
	var at, values []float64
	hours := 0.0
	for _, w := range windows {
		hours += w.length.Hours()
		at, values = append(at, hours), append(values, of(w))
	}
	n := float64(len(windows))
	meanAt, mean := sum(at)/n, sum(values)/n
	spread, together := 0.0, 0.0
	for i := range at {
		spread += (at[i] - meanAt) * (at[i] - meanAt)
		together += (at[i] - meanAt) * (values[i] - mean)
	}
	slope := together / spread
	squares, neighbours, before := 0.0, 0.0, 0.0
	for i := range at {
		off := values[i] - mean - slope*(at[i]-meanAt)
		squares += off * off
		neighbours += off * before
		before = off
	}
	if squares == 0 {
		return trend{byHour: slope}
	}
	alike := min(max(neighbours/squares, 0), 0.9)
	return trend{byHour: slope, margin: 3 * math.Sqrt(squares/(n-2)/spread*(1+alike)/(1-alike))}
}

func sum(values []float64) (total float64) {
	for _, v := range values {
		total += v
	}
	return total
}

// soaked makes windows up: as many as a soak has, of a daemon whose memory is as told at each of them, and everything else always the same.
func soaked(length time.Duration, megabytes func(hours float64) float64) (windows []window) {
	for i := range soakWindows {
		w := window{length: length / soakWindows, pairs: 100, goroutines: 40, files: 36, took: slices.Repeat([]time.Duration{time.Millisecond}, 100)}
		w.memory = 1e6 * megabytes(length.Hours()*float64(i+1)/soakWindows)
		windows = append(windows, w)
	}
	return windows
}

// noisy is memory as it is seen of a daemon that warms up, is collected now and then, and leaks.
func noisy(seed uint64, leak float64) func(hours float64) float64 {
	rng := rand.New(rand.NewPCG(seed, 1))
	return func(hours float64) float64 {
		warm := 200 - 80*math.Exp(-hours*120)
		sawtooth := 6 * math.Mod(hours*60, 1)
		return warm + sawtooth + 3*rng.NormFloat64() + leak*hours
	}
}

func TestASoakFindsALeak(t *testing.T) {
	t.Parallel()
	for seed := range uint64(500) {
		if v := judge(soaked(time.Hour, noisy(seed, 20))); len(v.wrong) != 1 || !strings.Contains(v.wrong[0], "memory") {
			t.Fatalf("seed %d: 20 MB an hour, and the verdict is: %v", seed, v)
		}
	}
}

func TestASoakFindsNoLeakInNoise(t *testing.T) {
	t.Parallel()
	for _, length := range []time.Duration{shortest, time.Hour} {
		flat := 0
		const soaks = 500
		for seed := range uint64(soaks) {
			v := judge(soaked(length, noisy(seed, 0)))
			if len(v.wrong) > 0 {
				t.Errorf("%v, seed %d: nothing leaks, and the verdict is: %v", length, seed, v)
			}
			if v.String() == "flat" {
				flat++
			}
		}
		if length == time.Hour && flat < soaks*9/10 {
			t.Errorf("of %d soaks of an hour in which nothing leaks %d are called flat", soaks, flat)
		}
	}
}

// A leak of what the bound allows is neither called flat nor wrong where the noise hides on which side of it the daemon is.
func TestASoakDoesNotSayWhatItCannotTell(t *testing.T) {
	t.Parallel()
	flat := 0
	for seed := range uint64(500) {
		if judge(soaked(time.Hour, noisy(seed, 12))).String() == "flat" {
			flat++
		}
	}
	if flat > 500/20 {
		t.Errorf("12 MB an hour are called flat in %d of 500 soaks", flat)
	}
}

func TestASoakJudgesTheRest(t *testing.T) {
	t.Parallel()
	still := func(float64) float64 { return 200 }
	for name, c := range map[string]struct {
		length time.Duration
		change func(i int, w *window)
		want   string
	}{
		"nothing happens":          {time.Hour, func(int, *window) {}, "flat"},
		"too short":                {shortest - time.Minute, func(int, *window) {}, "none: 9m0s is too short"},
		"short, and a pair failed": {time.Minute, func(i int, w *window) { w.failed = i / (soakWindows - 1) }, "NOT FLAT: 1 pairs failed"},
		"a pair failed at once":    {time.Hour, func(i int, w *window) { w.failed = max(1-i, 0) }, "NOT FLAT: 1 pairs failed"},
		"a goroutine a minute":     {time.Hour, func(i int, w *window) { w.goroutines += float64(i) }, "NOT FLAT: +60.0 (± 0.0) goroutines"},
		"ten file handles":         {time.Hour, func(i int, w *window) { w.files += float64(10 * i / soakWindows) }, "NOT FLAT: +10"},
		"slower":                   {time.Hour, func(i int, w *window) { slow(w, 0, time.Duration(1+i)) }, "NOT FLAT: p50"},
		"slow now and then":        {time.Hour, func(i int, w *window) { slow(w, 90, time.Duration(1+i*i)) }, "NOT FLAT: p99"},
		"a warm-up is no growth":   {time.Hour, func(i int, w *window) { w.memory = 1e6 * float64(min(i, soakWindows/4)) }, "flat"},
	} {
		windows := soaked(c.length, still)
		for i := range windows {
			c.change(i, &windows[i])
		}
		if got := judge(windows).String(); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// slow makes the pairs of a window from one on so many times slower.
func slow(w *window, from int, times time.Duration) {
	for i := from; i < len(w.took); i++ {
		w.took[i] *= times
	}
}
