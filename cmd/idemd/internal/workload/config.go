// Package workload puts load on a daemon and checks, while it does, that the daemon keeps its promises: one grant for each intent, one answer for
// every retry, another request under the same key refused.
//
// A unit of load is a turn: one intent of the mix, from its first call to its last. Keys are unique for each worker and turn, so turns do not
// disturb each other, and what one of them finds wrong is wrong.
package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// Turn is what a worker does with one intent.
type Turn int

// The turns.
const (
	// Fresh begins an intent that is new and completes it.
	Fresh Turn = iota
	// Replay begins an intent again that was completed, as a late retry does, and must get the answer.
	Replay
	// Duplicates begins a new intent several times at once, one of them a resend of another, and completes it twice at once.
	Duplicates
	// Mismatch begins a known intent with another request, which must be refused.
	Mismatch
	turns int = iota
)

var turnNames = [turns]string{"fresh", "replay", "duplicates", "mismatch"}

// String is the turn's name in a mix.
func (t Turn) String() string { return turnNames[t] }

// TurnNames are the names that a mix may have, in order.
func TurnNames() []string { return turnNames[:] }

// Mix says how often each turn comes, by weights: a turn of weight 2 comes twice as often as one of weight 1.
type Mix [turns]int

// DefaultMix is what a service with a few retries looks like.
var DefaultMix = Mix{Fresh: 80, Replay: 10, Duplicates: 5, Mismatch: 5}

func (m Mix) sum() (sum int) {
	for _, weight := range m {
		sum += weight
	}
	return sum
}

// at is the turn under a point of [0, sum).
func (m Mix) at(point int) Turn {
	for t, weight := range m {
		if point < weight {
			return Turn(t)
		}
		point -= weight
	}
	return Fresh
}

// String is the mix as a flag takes it.
func (m Mix) String() string {
	var parts []string
	for t, weight := range m {
		if weight > 0 {
			parts = append(parts, fmt.Sprintf("%s=%d", Turn(t), weight))
		}
	}
	return strings.Join(parts, ",")
}

// Keys is the shape of the keys.
type Keys string

// The shapes of keys.
const (
	// UUIDv4 keys are random: entries lie anywhere in a database's index.
	UUIDv4 Keys = "uuidv4"
	// UUIDv7 keys begin with the time: entries of one time lie side by side.
	UUIDv7 Keys = "uuidv7"
)

// Limits of a run.
const (
	maxWorkers    = 10_000
	maxRate       = 1e6
	maxDuplicates = 64
	maxHotKeys    = 1_000_000
	// MaxBodyBytes is the longest answer, in bytes: what a policy keeps at most.
	MaxBodyBytes = 8 << 20
)

// Client makes the calls of the load. A clientlib.Client is one.
type Client interface {
	Begin(ctx context.Context, request *idemv1.BeginRequest) (*idemv1.BeginResponse, error)
	Complete(ctx context.Context, request *idemv1.CompleteRequest) (*idemv1.CompleteResponse, error)
}

// Unary makes each call by itself, once.
func Unary(conn grpc.ClientConnInterface) Client { return unary{idemv1.NewLedgerServiceClient(conn)} }

type unary struct{ ledger idemv1.LedgerServiceClient }

// Begin implements [Client].
func (u unary) Begin(ctx context.Context, request *idemv1.BeginRequest) (*idemv1.BeginResponse, error) {
	return u.ledger.Begin(ctx, request)
}

// Complete implements [Client].
func (u unary) Complete(ctx context.Context, request *idemv1.CompleteRequest) (*idemv1.CompleteResponse, error) {
	return u.ledger.Complete(ctx, request)
}

// Config is one run.
type Config struct {
	// Clients are the daemon's, one for each connection; workers take them in turn. At least one.
	Clients []Client
	// Resending: the clients send a call again by themselves, so that an answer may be that to a resend.
	Resending bool
	// Tenant and Operation are whose entries are made: a tenant that has no others. Its policy must have a lease of at least [Lease], or
	// slow calls look like broken promises, and a retention longer than the run.
	Tenant    string
	Operation string
	// Workers is how many turns are under way at once, 1 to 10,000.
	Workers int
	// Rate is how many turns begin in a second, whatever the daemon does, at most a million: latencies then count from when a turn was due. 0:
	// each worker begins the next turn when its last one is done.
	Rate float64
	// Warmup comes first; what it measures is not reported, what it finds wrong is. Duration is what is measured.
	Warmup   time.Duration
	Duration time.Duration
	// Turns ends the run earlier, after so many turns, the warm-up's included; 0: time alone ends it.
	Turns int64
	// Mix says how often which turn comes.
	Mix Mix
	// Keys is the shape of the keys; "" is UUIDv4.
	Keys Keys
	// HotKeys is how many settled entries all workers share: replays and mismatches take these. 0: each takes the ones that its worker
	// completed lately. At most a million.
	HotKeys int
	// BodyBytes is how long the answers are, 0 to MaxBodyBytes.
	BodyBytes int
	// Duplicates is how many calls a Duplicates turn makes at once, 2 to 64; 0: 4.
	Duplicates int
	// Wait is how long duplicates ask the daemon to wait for the answer; 0: not at all, and they ask again when it is there.
	Wait time.Duration
	// CallTimeout is how long one call may take before it is sent again; 0: 10 s.
	CallTimeout time.Duration
	// GiveUp is for how long a call is sent again before its turn counts as an error; 0: 30 s.
	GiveUp time.Duration
}

// Lease is what a claim of a run needs: no turn lasts as long.
const Lease = 10 * time.Minute

// Validate says what is wrong with a config.
func (c Config) Validate() error {
	var errs []error
	wrong := func(is bool, format string, args ...any) {
		if is {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	wrong(len(c.Clients) == 0, "there is no client")
	wrong(c.Tenant == "" || c.Operation == "", "tenant and operation must be named")
	wrong(c.Workers < 1 || c.Workers > maxWorkers, "workers must be from 1 to %d", maxWorkers)
	wrong(!(c.Rate >= 0 && c.Rate <= maxRate), "rate must be from 0 to %d turns a second", int(maxRate))
	wrong(c.Duration <= 0 || c.Warmup < 0, "there must be some time to measure")
	wrong(c.Turns < 0, "turns must not be negative")
	wrong(c.Mix.sum() < 1 || slices.Min(c.Mix[:]) < 0, "the mix must have a weight above 0, and none below")
	wrong(c.Keys != "" && c.Keys != UUIDv4 && c.Keys != UUIDv7, "keys must be %s or %s", UUIDv4, UUIDv7)
	wrong(c.HotKeys < 0 || c.HotKeys > maxHotKeys, "hot keys must be from 0 to %d", maxHotKeys)
	wrong(c.BodyBytes < 0 || c.BodyBytes > MaxBodyBytes, "bodies must be from 0 to %d bytes", MaxBodyBytes)
	wrong(c.Duplicates != 0 && (c.Duplicates < 2 || c.Duplicates > maxDuplicates), "duplicates must be from 2 to %d", maxDuplicates)
	wrong(c.Wait < 0 || c.CallTimeout < 0 || c.GiveUp < 0, "times must not be negative")
	wrong(c.CallTimeout != 0 && c.Wait >= c.CallTimeout, "the wait must be shorter than the timeout of a call")
	wrong(c.GiveUp+c.CallTimeout > Lease/2, "a call must not be sent again for longer than %v", Lease/2)
	return errors.Join(errs...)
}

// withDefaults fills in what is left open.
func (c Config) withDefaults() Config {
	if c.Keys == "" {
		c.Keys = UUIDv4
	}
	if c.Duplicates == 0 {
		c.Duplicates = 4
	}
	if c.CallTimeout == 0 {
		c.CallTimeout = 10 * time.Second
	}
	if c.GiveUp == 0 {
		c.GiveUp = 30 * time.Second
	}
	return c
}
