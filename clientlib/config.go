package clientlib

import (
	"fmt"
	"log/slog"
	"os"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// Defaults of [Config].
const (
	DefaultLedgerTimeout   = 10 * time.Second
	DefaultTryTimeout      = 5 * time.Second
	DefaultSettleTimeout   = 2 * time.Second
	DefaultSettleLimit     = 15 * time.Minute
	DefaultCloseTimeout    = 10 * time.Second
	DefaultMaxMessageBytes = 9 << 20
	DefaultMaxBackground   = 1024
)

// Config says which ledger a [Client] talks to, and how long it tries. Everything but Conn or Target can be left out.
type Config struct {
	// Conn is the connection to use. The client does not close it. Either Conn or Target must be set, not both.
	Conn grpc.ClientConnInterface

	// Target is where to connect, as grpc.NewClient takes it: "dns:///idemd:7433". The client makes the connection and
	// closes it. TransportCredentials is required with it; use insecure.NewCredentials to go without TLS.
	Target               string
	TransportCredentials credentials.TransportCredentials
	// PerRPCCredentials go with every call, for example a bearer token. Only with Target. Default: none.
	PerRPCCredentials credentials.PerRPCCredentials
	// DialOptions are added to those that the client makes itself. Only with Target. Do not add retries: the client's own
	// know which calls can be resent.
	DialOptions []grpc.DialOption

	// Holder says who we are, to people who look at an entry. At most 255 characters. Default: host name and process id.
	Holder string

	// Sessions is over how many streams of LedgerService.Session calls are spread. Set it where dozens of calls are under way at
	// once: each is cheaper then. 1 is enough for most, 0 makes each call by itself, and at most there are 64. It changes nothing
	// else, with these exceptions: of the metadata in a call's context only x-request-id goes with it, so credentials have to be
	// PerRPCCredentials or the connection's, and unary interceptors of the connection do not see it. A call goes by itself all
	// the same while no stream is open, which nobody waits for, where the ledger does not know sessions, and where it is over
	// 64 KiB. Default: 0.
	Sessions int

	// LedgerTimeout is how long Begin is tried, in all, before the ledger counts as out of reach; the time that it waits for
	// another's claim comes on top. The caller's deadline ends it earlier. Default: 10 s.
	LedgerTimeout time.Duration
	// TryTimeout is how long one try of a call may take before it is resent, so that one dead connection does not use up all
	// the time. Default: 5 s.
	TryTimeout time.Duration
	// SettleTimeout is for how long the caller is kept waiting, after the work, until its outcome is recorded. Past it the
	// caller gets its answer, and recording goes on in the background. Default: 2 s.
	SettleTimeout time.Duration
	// SettleLimit bounds that background work, for each outcome. Default: 15 min.
	SettleLimit time.Duration
	// CloseTimeout is how long Close waits for outcomes that are not recorded yet. Default: 10 s.
	CloseTimeout time.Duration

	// MaxMessageBytes is the largest message that the ledger's server takes. A longer answer is reported without its body.
	// Default: 9 MiB, which is over every policy's max_response_bytes.
	MaxMessageBytes int
	// MaxBackground is how many outcomes may wait to be recorded in the background. Past it outcomes are dropped, counted
	// and logged; their entries become abandoned. Default: 1024.
	MaxBackground int

	// Logger gets what nobody else is told: outcomes that could not be recorded, claims that were lost. No keys and no
	// bodies. Default: slog.Default().
	Logger *slog.Logger
	// MeterProvider and TracerProvider take metrics and spans. Default: OpenTelemetry's global ones.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
}

// Validate says what is wrong with the configuration, or nil.
func (c Config) Validate() error {
	switch {
	case c.Conn == nil && c.Target == "":
		return invalidConfig("Config needs a Conn or a Target")
	case c.Conn != nil && (c.Target != "" || c.TransportCredentials != nil || c.PerRPCCredentials != nil || len(c.DialOptions) > 0):
		return invalidConfig("Config.Conn is a connection already: Target, credentials and DialOptions do not go with it")
	case c.Target != "" && c.TransportCredentials == nil:
		return invalidConfig("Config.Target needs TransportCredentials; insecure.NewCredentials() goes without TLS, outright")
	case utf8.RuneCountInString(c.Holder) > 255 || !utf8.ValidString(c.Holder):
		return invalidConfig("Config.Holder has more than 255 characters, or is not UTF-8")
	case c.MaxMessageBytes != 0 && c.MaxMessageBytes < minMessageBytes:
		return invalidConfig("Config.MaxMessageBytes must be %d or more, for what goes with a body", minMessageBytes)
	case c.Sessions < 0 || c.Sessions > MaxSessions:
		return invalidConfig("Config.Sessions must be from 0 to %d", MaxSessions)
	case c.MaxBackground < 0:
		return invalidConfig("Config.MaxBackground must not be negative")
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"LedgerTimeout", c.LedgerTimeout}, {"TryTimeout", c.TryTimeout}, {"SettleTimeout", c.SettleTimeout},
		{"SettleLimit", c.SettleLimit}, {"CloseTimeout", c.CloseTimeout},
	} {
		if d.value < 0 {
			return invalidConfig("Config.%s must not be negative", d.name)
		}
	}
	return nil
}

// minMessageBytes leaves room for what a report holds beside its body or its details: a scope of at most 638 characters, a
// content type, a pointer and metadata within the ledger's limits.
const minMessageBytes = 64 << 10

// withDefaults fills in what was left out.
func (c Config) withDefaults() Config {
	for _, d := range []struct {
		value    *time.Duration
		standard time.Duration
	}{
		{&c.LedgerTimeout, DefaultLedgerTimeout}, {&c.TryTimeout, DefaultTryTimeout}, {&c.SettleTimeout, DefaultSettleTimeout},
		{&c.SettleLimit, DefaultSettleLimit}, {&c.CloseTimeout, DefaultCloseTimeout},
	} {
		if *d.value == 0 {
			*d.value = d.standard
		}
	}
	if c.MaxMessageBytes == 0 {
		c.MaxMessageBytes = DefaultMaxMessageBytes
	}
	if c.MaxBackground == 0 {
		c.MaxBackground = DefaultMaxBackground
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Holder == "" {
		c.Holder = defaultHolder()
	}
	return c
}

func defaultHolder() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	return fmt.Sprintf("%.200s/%d", host, os.Getpid())
}
