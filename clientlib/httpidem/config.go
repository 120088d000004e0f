package httpidem

import (
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/fingerprint"
)

// Defaults of [Config].
const (
	DefaultMaxBodyBytes     = 1 << 20
	DefaultMaxResponseBytes = 1 << 20
)

// Config says which requests are carried out once, and how. Ledger, Abandoned and Principal are required.
type Config struct {
	// Ledger is whom to ask.
	Ledger *clientlib.Client
	// Abandoned says what becomes of a request of which an earlier attempt was abandoned. There is no default. A recovery hook
	// answers with [Happened], [FailedFinally] or clientlib.DidNotHappen; its claim.Request is the *http.Request, with its body.
	Abandoned clientlib.Abandoned
	// Principal says who the caller is, so that nobody gets another's answer. The guard stands inside authentication. There is
	// no default; see [PrincipalFrom] and [Anonymous].
	Principal Principal

	// Methods are the methods that are guarded. All others pass untouched; safe ones cannot be guarded. Default: POST, PATCH.
	Methods []string
	// Operation names the route of a request, as "POST /charges/{id}": requests of two routes never meet, whatever their keys.
	// "" lets the request pass without a guard. Default: the pattern by which http.ServeMux found the handler, with the method
	// before it; where there is none the request is refused, because the guard was put outside of the mux. See [PatternOf].
	Operation func(*http.Request) string
	// Routes says more about single routes, by their operations.
	Routes map[string]Route
	// Tenant names the tenant of a request. Empty: that of the ledger client's credentials. An error refuses the request.
	// Default: always empty.
	Tenant func(*http.Request) (string, error)

	// Header is the name of the header in which the key comes. Default: Idempotency-Key.
	Header string
	// QuotedOnly refuses keys that are not in double quotes, as the draft has them. Default: both are taken.
	QuotedOnly bool
	// Keys says whether a request needs a key. Default: Required.
	Keys KeyRule

	// MaxBodyBytes is how long a request's body may be: it is read whole, to be hashed. Default: 1 MiB.
	MaxBodyBytes int64
	// PassTooLarge lets a request with a longer body pass without a guard, marked bypassed. Default: it is refused with 413.
	PassTooLarge bool
	// HashHeaders are the request headers that belong to what is asked. Default: content-type and content-encoding.
	HashHeaders []string
	// HashExclude are JSON pointers to parts of a JSON body that do not belong to what is asked, as "/meta/sent_at".
	HashExclude []string

	// MaxResponseBytes is how much of an answer is held back until it is recorded, and kept. A longer one is passed on as it
	// comes, and a retry is told that it was not kept. Default: 1 MiB.
	MaxResponseBytes int
	// ReplayHeaders are the names of response headers and trailers that replays carry beside Content-Type, Content-Encoding and
	// Location. A policy must allow them as well. What belongs to one exchange only, such as cookies, is refused.
	// Default: DefaultReplayHeaders().
	ReplayHeaders []string
	// Pointer says what an answer made, as ("charge", "ch_42"), for retries whose answer was not kept. The body is what was held
	// back of it. Default: its Location.
	Pointer func(r *http.Request, answer Answer) (resourceType, resourceID string)

	// Classes says what statuses mean. Default: DefaultClasses().
	Classes Classes
	// Lease, Wait and FailOpen are as in [clientlib.Options].
	Lease, Wait time.Duration
	FailOpen    bool

	// ProblemBase is what the type URIs of problems begin with. Default: DefaultProblemBase.
	ProblemBase string
	// Logger gets what the service's own people should know. No keys and no bodies. Default: slog.Default().
	Logger *slog.Logger
	// DryRun records outcomes and marks what would have been, but never refuses or replays.
	DryRun bool
	// Off makes a middleware that does nothing.
	Off bool
}

// Route says more about one route. Its zero value says nothing.
type Route struct {
	// Unguarded leaves the route out.
	Unguarded bool
	// Keys, Abandoned, Classes, Lease and Wait stand in place of the guard's, where they are set.
	Keys        KeyRule
	Abandoned   clientlib.Abandoned
	Classes     Classes
	Lease, Wait time.Duration
	// FailOpen is set beside the guard's.
	FailOpen bool
}

// KeyRule says whether a request needs a key.
type KeyRule int

const (
	// Required refuses requests without a key with 400.
	Required KeyRule = iota + 1
	// Optional lets them pass without a guard, marked bypassed.
	Optional
)

// Principal says who the caller is. Make one with [PrincipalFrom], or take [Anonymous]. The zero value is refused.
type Principal struct {
	name      func(*http.Request) (string, error)
	anonymous bool
}

// PrincipalFrom asks name who the caller is: a stable name, the same on every retry, from what authentication found out. An
// error, or an empty name, refuses the request. A key that was used by one principal is refused to all others, as reused.
func PrincipalFrom(name func(*http.Request) (string, error)) Principal { return Principal{name: name} }

// Anonymous says outright that callers are not told apart: whoever knows a key gets its answer.
var Anonymous = Principal{anonymous: true}

// PatternOf names routes by the patterns of a mux, for a guard that stands around it. Requests that the mux has no handler for
// pass, to be answered by it.
func PatternOf(mux *http.ServeMux) func(*http.Request) string {
	return func(r *http.Request) string {
		_, pattern := mux.Handler(r)
		return withMethod(r.Method, pattern)
	}
}

func withMethod(method, pattern string) string {
	if first, _, ok := strings.Cut(pattern, " "); pattern == "" || ok && first == method {
		return pattern
	}
	return method + " " + pattern
}

// Validate says what is wrong with the configuration, or nil.
func (c Config) Validate() error {
	if c.Off {
		return nil
	}
	switch {
	case c.Ledger == nil:
		return invalid("Config needs a Ledger")
	case c.Principal.name == nil && !c.Principal.anonymous:
		return invalid("Config needs a Principal: PrincipalFrom(who is the caller?), or Anonymous outright; there is no default")
	case c.MaxBodyBytes < 0:
		return invalid("Config.MaxBodyBytes must not be negative")
	case c.MaxResponseBytes < 0:
		return invalid("Config.MaxResponseBytes must not be negative")
	case c.Keys < 0 || c.Keys > Optional:
		return invalid("Config.Keys is neither Required nor Optional")
	case c.Header != "" && !isName(c.Header):
		return invalid("Config.Header %q is not the name of a header", c.Header)
	}
	if err := (clientlib.Options{Abandoned: c.Abandoned, Lease: c.Lease, Wait: c.Wait}).Validate(); err != nil {
		return err
	}
	if err := c.Classes.validate(); err != nil {
		return err
	}
	if err := c.validateNames(); err != nil {
		return err
	}
	for _, operation := range slices.Sorted(maps.Keys(c.Routes)) {
		if err := c.Routes[operation].validate(c.Abandoned); err != nil {
			return fmt.Errorf("%w (Config.Routes, %s)", err, operation)
		}
	}
	return nil
}

func (c Config) validateNames() error {
	for _, method := range c.Methods {
		switch method {
		case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodConnect:
			return invalid("Config.Methods has %q; a safe method has no effect to guard", method)
		}
	}
	for _, name := range c.HashHeaders {
		if !isName(name) {
			return invalid("Config.HashHeaders has %q, which is not the name of a header", name)
		}
	}
	for _, name := range c.ReplayHeaders {
		if !isName(name) {
			return invalid("Config.ReplayHeaders has %q, which is not the name of a header", name)
		}
		if isNeverReplayed(strings.ToLower(name)) {
			return invalid("Config.ReplayHeaders has %q, which belongs to one exchange only or has a place of its own", name)
		}
	}
	return nil
}

func (r Route) validate(general clientlib.Abandoned) error {
	if r.Keys < 0 || r.Keys > Optional {
		return invalid("Route.Keys is neither Required nor Optional")
	}
	if err := r.Classes.validate(); err != nil {
		return err
	}
	options := clientlib.Options{Abandoned: r.Abandoned, Lease: r.Lease, Wait: r.Wait}
	if !options.Abandoned.Chosen() {
		options.Abandoned = general
	}
	return options.Validate()
}

// isName says whether a name is one of a header field: a token.
func isName(name string) bool {
	const marks = "!#$%&'*+-.^_`|~"
	for i := range len(name) {
		c := name[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && !strings.ContainsRune(marks, rune(c)) {
			return false
		}
	}
	return name != ""
}

func invalid(format string, args ...any) error { return fmt.Errorf("httpidem: "+format, args...) }

// guard is a Config that was checked and filled in.
type guard struct {
	Config
	json *fingerprint.JSONHasher
}

func newGuard(c Config) (*guard, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	hasher, err := fingerprint.NewJSONHasher(fingerprint.JSONConfig{Exclude: c.HashExclude})
	if err != nil {
		return nil, invalid("Config.HashExclude: %w", err)
	}
	if len(c.Methods) == 0 {
		c.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if c.Header == "" {
		c.Header = DefaultHeader
	}
	if c.Keys == 0 {
		c.Keys = Required
	}
	if c.MaxBodyBytes == 0 {
		c.MaxBodyBytes = DefaultMaxBodyBytes
	}
	if c.MaxResponseBytes == 0 {
		c.MaxResponseBytes = DefaultMaxResponseBytes
	}
	if c.HashHeaders == nil {
		c.HashHeaders = []string{"content-type", "content-encoding"}
	}
	c.HashHeaders = sortedLower(c.HashHeaders)
	if c.ReplayHeaders == nil {
		c.ReplayHeaders = DefaultReplayHeaders()
	}
	if c.Pointer == nil {
		c.Pointer = func(_ *http.Request, answer Answer) (string, string) { return locationOf(answer) }
	}
	if c.Classes == nil {
		c.Classes = DefaultClasses()
	}
	if c.ProblemBase == "" {
		c.ProblemBase = DefaultProblemBase
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return &guard{Config: c, json: hasher}, nil
}

func sortedLower(names []string) []string {
	lower := make([]string, 0, len(names))
	for _, name := range names {
		lower = append(lower, strings.ToLower(name))
	}
	slices.Sort(lower)
	return slices.Compact(lower)
}

// of gives the guard's rules for one route.
func (g *guard) of(operation string) Route {
	own := g.Routes[operation]
	if own.Keys == 0 {
		own.Keys = g.Keys
	}
	if !own.Abandoned.Chosen() {
		own.Abandoned = g.Abandoned
	}
	if own.Classes == nil {
		own.Classes = g.Classes
	}
	if own.Lease == 0 {
		own.Lease = g.Lease
	}
	if own.Wait == 0 {
		own.Wait = g.Wait
	}
	own.FailOpen = own.FailOpen || g.FailOpen
	return own
}
