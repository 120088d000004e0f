package webhook

import (
	"log/slog"
	"net/textproto"
	"time"
)

// Defaults of [Config].
const (
	// DefaultMaxBodyBytes leaves room for a delivery's other parts in what the ledger's built-in policy keeps of an answer, 1 MiB.
	DefaultMaxBodyBytes = 960 << 10
	DefaultKeepTimeout  = 8 * time.Second
	DefaultWorkers      = 4
	DefaultMaxQueued    = 10_000
	DefaultMaxAttempts  = 8
	DefaultFirstPause   = time.Second
	DefaultLongestPause = 5 * time.Minute
	DefaultRescan       = 5 * time.Minute
	DefaultStopTimeout  = 10 * time.Second
)

// Config says whose deliveries a [Receiver] takes and what becomes of them. Name, Sender, Receipts and Handler are required.
type Config struct {
	// Name names the receiver in its receipts: each has ids of its own. It must not change from deployment to deployment, and two
	// endpoints of one sender are two names. At most 128 characters.
	Name string
	// Sender verifies and reads requests.
	Sender Sender
	// Receipts remember deliveries.
	Receipts Receipts
	// Handler does the work.
	Handler Handler

	// MaxBodyBytes is how long a request's body may be. Default: 960 KiB.
	MaxBodyBytes int64
	// KeepHeaders are the request headers that handlers get. What carries credentials is refused. Default: Content-Type and
	// User-Agent.
	KeepHeaders []string
	// Sequence tells an event's place in an order of the sender's, from its body most often: an object's version, a counter. It runs
	// before the delivery is put down. Default: there is none.
	Sequence func(d Delivery) (sequence int64, ok bool)
	// KeepTimeout is how long putting a delivery down may take. Senders give up after 10 seconds and more. Default: 8 s.
	KeepTimeout time.Duration

	// Workers is for how many deliveries work is done at a time. Default: 4.
	Workers int
	// MaxQueued is how many deliveries are remembered in this process, by their ids; more are left to the next rescan. As many again are
	// remembered of those that it gave up on. Default: 10000.
	MaxQueued int
	// MaxAttempts is how often the handler is run for a delivery before this process gives up on it. The delivery stays unfinished: the
	// next start tries it again. Default: 8.
	MaxAttempts int
	// FirstPause is the pause after a first failure. It doubles with each further one, up to LongestPause, and each is shortened at
	// random by up to half. Defaults: 1 s, 5 min.
	FirstPause, LongestPause time.Duration
	// Rescan is how often the receipts are searched for unfinished deliveries, such as those of a process that died. They are also
	// at each start. Default: 5 min.
	Rescan time.Duration
	// StopTimeout is how long handlers may take to end after Run's context has. Default: 10 s.
	StopTimeout time.Duration

	// Now is the clock that signed timestamps are judged by. Default: time.Now.
	Now func() time.Time
	// Hooks are told what happens, for metrics.
	Hooks Hooks
	// Logger gets what the service's own people should know. No ids and no bodies. Default: slog.Default().
	Logger *slog.Logger
}

// Hooks are functions that a receiver calls, each from many goroutines. Any may be nil. They must not block.
type Hooks struct {
	// Received: a delivery was put down, or was known already.
	Received func(d Delivery, standing Standing)
	// Refused: a request was refused, with the status that its sender was told and why.
	Refused func(status int, err error)
	// Worked: the handler ran. A nil error: the delivery's work is over. Attempt counts this process's.
	Worked func(id string, attempt int, standing Standing, err error)
	// GaveUp: a delivery is left unfinished until the next start, or until an operator has settled it.
	GaveUp func(id string, attempts int, err error)
}

// notKept are headers that are somebody's secret.
var notKept = map[string]bool{
	"Authorization": true, "Proxy-Authorization": true, "Cookie": true, "Set-Cookie": true, "X-Api-Key": true,
	"X-Hub-Signature": true, "X-Hub-Signature-256": true, "Stripe-Signature": true, "Webhook-Signature": true,
}

// Validate says what is wrong with the configuration, or nil.
func (c Config) Validate() error {
	if err := checkName("Name", c.Name, maxNameLength); err != nil {
		return invalid("Config: %w", err)
	}
	switch {
	case c.Sender == nil:
		return invalid("Config needs a Sender: without one anybody could deliver")
	case c.Receipts == nil:
		return invalid("Config needs Receipts")
	case c.Handler == nil:
		return invalid("Config needs a Handler")
	case c.MaxBodyBytes < 0:
		return invalid("Config.MaxBodyBytes must not be negative")
	}
	for _, n := range []struct {
		name  string
		value int
	}{{"Workers", c.Workers}, {"MaxQueued", c.MaxQueued}, {"MaxAttempts", c.MaxAttempts}} {
		if n.value < 0 {
			return invalid("Config.%s must not be negative", n.name)
		}
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"KeepTimeout", c.KeepTimeout}, {"FirstPause", c.FirstPause}, {"LongestPause", c.LongestPause}, {"Rescan", c.Rescan},
		{"StopTimeout", c.StopTimeout},
	} {
		if d.value < 0 {
			return invalid("Config.%s must not be negative", d.name)
		}
	}
	for _, name := range c.KeepHeaders {
		if notKept[textproto.CanonicalMIMEHeaderKey(name)] {
			return invalid("Config.KeepHeaders has %q, which is somebody's secret", name)
		}
	}
	return c.Sender.Validate()
}

func (c Config) withDefaults() Config {
	setDefault(&c.MaxBodyBytes, DefaultMaxBodyBytes)
	setDefault(&c.KeepTimeout, DefaultKeepTimeout)
	setDefault(&c.Workers, DefaultWorkers)
	setDefault(&c.MaxQueued, DefaultMaxQueued)
	setDefault(&c.MaxAttempts, DefaultMaxAttempts)
	setDefault(&c.FirstPause, DefaultFirstPause)
	setDefault(&c.LongestPause, max(DefaultLongestPause, c.FirstPause))
	setDefault(&c.Rescan, DefaultRescan)
	setDefault(&c.StopTimeout, DefaultStopTimeout)
	if c.KeepHeaders == nil {
		c.KeepHeaders = []string{"Content-Type", "User-Agent"}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func setDefault[T comparable](field *T, value T) {
	var unset T
	if *field == unset {
		*field = value
	}
}
