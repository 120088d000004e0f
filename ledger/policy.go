package ledger

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// OnAbandoned says what a new RUN does with an abandoned entry.
type OnAbandoned int16

// The choices. The numbers are persisted and must not change.
const (
	Reclaim OnAbandoned = 1 // granted, told that an attempt was abandoned
	Hold    OnAbandoned = 2 // refused ABANDONED until an operator or the service's own recovery settles it
)

// StoreResponse says how much of an answer is kept for replay.
type StoreResponse int16

// The choices. The numbers are persisted and must not change.
const (
	StoreFull    StoreResponse = 1 // everything within the limits
	StorePointer StoreResponse = 2 // code, resource_type and resource_id
	StoreNone    StoreResponse = 3 // the code only
)

// KeyFormat says which keys an operation takes.
type KeyFormat int16

// The key formats. The numbers are persisted and must not change.
const (
	KeyAny     KeyFormat = 1
	KeyUUID    KeyFormat = 2
	KeyPattern KeyFormat = 3
)

// Horizons are how long after settlement a duplicate can still arrive, by where it comes from. Zero: not from there.
type Horizons struct {
	ClientRetry     time.Duration
	QueueRedelivery time.Duration
	WebhookReplay   time.Duration
	OperatorReplay  time.Duration
	Settlement      time.Duration
}

// Policy is the rules for one (tenant, operation); "*" stands for any tenant or any operation.
type Policy struct {
	Tenant    string
	Operation string

	Horizons Horizons
	// Tombstone is how long after retention a late retry is still recognised and refused. Nil: as long as retention. Zero: the key is new
	// again after retention.
	Tombstone *time.Duration

	Lease       time.Duration // 0: DefaultLease
	MaxWait     time.Duration // 0: DefaultMaxWait; negative: nobody waits
	MaxAttempts int32         // 0: DefaultMaxAttempts
	OnAbandoned OnAbandoned   // 0: Reclaim
	// ReclaimWithin turns RECLAIM into HOLD that long after the first grant. 0: never.
	ReclaimWithin time.Duration

	MaxResponseBytes int64         // 0: DefaultMaxResponseBytes
	StoreResponse    StoreResponse // 0: StoreFull
	// MetadataAllow are the response metadata names that are kept, lower case. Credentials and cookies never are.
	MetadataAllow []string

	KeyFormat KeyFormat // 0: KeyAny
	// KeyPattern is an RE2 expression that must match the whole key; with KeyPattern only.
	KeyPattern string
	// RefuseTimestampKeys refuses keys that are nothing but a date or a number of seconds, milli-, micro- or nanoseconds near now.
	RefuseTimestampKeys bool

	BindPrincipal bool

	// Revision counts the writes to this policy; UpdatedAt is the store's clock at the last. Set by the ledger.
	Revision  int64
	UpdatedAt Time
}

// Clamp is the server-wide floor and ceiling of retention.
type Clamp struct {
	MinRetention time.Duration // 0: the built-in lower bound
	MaxRetention time.Duration // 0: the built-in upper bound
}

// BuiltinPolicy is what holds where no stored policy matches: lease 60 s, RECLAIM, retention 7 days, tombstone as long again.
func BuiltinPolicy() *Policy { return &Policy{Tenant: "*", Operation: "*"} }

// Rules are a policy with every default filled in.
type Rules struct {
	Lease            time.Duration
	MaxWait          time.Duration
	MaxAttempts      int32
	OnAbandoned      OnAbandoned
	ReclaimWithin    time.Duration
	Retention        time.Duration
	RetentionHorizon string // the horizon that decides; "default", "floor" or "ceiling" where none does
	Tombstone        time.Duration
	MaxResponseBytes int64
	StoreResponse    StoreResponse
	MetadataAllow    []string
	KeyFormat        KeyFormat
	keyPattern       *regexp.Regexp
	RefuseTimestamps bool
	BindPrincipal    bool
}

// Rules fills in the defaults and computes the retention: the longest horizon, counted from settlement.
func (p *Policy) Rules(c Clamp) *Rules {
	r := &Rules{
		Lease: orDefault(p.Lease, DefaultLease), MaxWait: orDefault(p.MaxWait, DefaultMaxWait),
		MaxAttempts: orDefault(p.MaxAttempts, DefaultMaxAttempts), OnAbandoned: orDefault(p.OnAbandoned, Reclaim),
		ReclaimWithin: p.ReclaimWithin, MaxResponseBytes: orDefault(p.MaxResponseBytes, DefaultMaxResponseBytes),
		StoreResponse: orDefault(p.StoreResponse, StoreFull), MetadataAllow: p.MetadataAllow,
		KeyFormat: orDefault(p.KeyFormat, KeyAny), RefuseTimestamps: p.RefuseTimestampKeys, BindPrincipal: p.BindPrincipal,
	}
	r.MaxWait = max(r.MaxWait, 0)
	if p.KeyPattern != "" {
		if re, err := compileKeyPattern(p.KeyPattern); err == nil {
			r.keyPattern = re
		}
	}
	r.Retention, r.RetentionHorizon = p.Horizons.longest()
	if r.Retention == 0 {
		r.Retention, r.RetentionHorizon = DefaultRetention, "default"
	}
	if floor := c.floor(); r.Retention < floor {
		r.Retention, r.RetentionHorizon = floor, "floor"
	}
	if ceiling := c.ceiling(); r.Retention > ceiling {
		r.Retention, r.RetentionHorizon = ceiling, "ceiling"
	}
	r.Tombstone = r.Retention
	if p.Tombstone != nil {
		r.Tombstone = *p.Tombstone
	}
	return r
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

func (c Clamp) floor() time.Duration   { return max(c.MinRetention, MinRetention) }
func (c Clamp) ceiling() time.Duration { return orDefault(c.MaxRetention, MaxRetention) }

// Validate refuses a clamp that contradicts itself or the built-in bounds.
func (c Clamp) Validate() error {
	// Zero stands for the default; what is under the bound is refused rather than raised in silence.
	if c.MinRetention != 0 && c.MinRetention < MinRetention || c.MaxRetention < 0 || c.ceiling() > MaxRetention || c.floor() > c.ceiling() {
		return fmt.Errorf("retention floor %v and ceiling %v must satisfy %v <= floor <= ceiling <= %v",
			c.MinRetention, c.MaxRetention, MinRetention, MaxRetention)
	}
	return nil
}

func (h Horizons) longest() (time.Duration, string) {
	longest, name := time.Duration(0), ""
	for _, x := range h.named() {
		if x.length > longest {
			longest, name = x.length, x.name
		}
	}
	return longest, name
}

type namedHorizon struct {
	name   string
	length time.Duration
}

func (h Horizons) named() []namedHorizon {
	return []namedHorizon{
		{"client_retry", h.ClientRetry}, {"queue_redelivery", h.QueueRedelivery}, {"webhook_replay", h.WebhookReplay},
		{"operator_replay", h.OperatorReplay}, {"settlement", h.Settlement},
	}
}

// Validate refuses a policy that breaks a limit or contradicts itself (INVALID_POLICY, naming the field).
func (p *Policy) Validate(c Clamp) *Refusal {
	for _, part := range []struct {
		field, value string
		maxChars     int
	}{{"policy.tenant", p.Tenant, MaxTenantChars}, {"policy.operation", p.Operation, MaxOperationChars}} {
		if r := validatePart(ReasonInvalidPolicy, part.field, part.value, part.maxChars); r != nil {
			return r
		}
	}
	for _, h := range p.Horizons.named() {
		field := "policy.horizons." + h.name
		switch {
		case h.length < 0:
			return invalid(ReasonInvalidPolicy, field, "must not be negative")
		case h.length > c.ceiling():
			return invalid(ReasonInvalidPolicy, field, fmt.Sprintf(
				"must be at most the retention ceiling of %v: an answer must be kept at least as long as its longest horizon", c.ceiling()))
		}
	}
	rules := p.Rules(c)
	switch {
	case p.Lease != 0 && (p.Lease < MinLease || p.Lease > MaxLease):
		return invalid(ReasonInvalidPolicy, "policy.lease", fmt.Sprintf("must be between %v and %v", MinLease, MaxLease))
	case p.MaxWait > MaxWait:
		return invalid(ReasonInvalidPolicy, "policy.max_wait", fmt.Sprintf("must be at most %v", MaxWait))
	case p.MaxAttempts < 0 || p.MaxAttempts > MaxRunAttempts:
		return invalid(ReasonInvalidPolicy, "policy.max_attempts", fmt.Sprintf("must be between 1 and %d", MaxRunAttempts))
	case rules.OnAbandoned != Reclaim && rules.OnAbandoned != Hold:
		return invalid(ReasonInvalidPolicy, "policy.on_abandoned", "must be RECLAIM or HOLD")
	case p.ReclaimWithin < 0 || p.ReclaimWithin > MaxRetention:
		return invalid(ReasonInvalidPolicy, "policy.reclaim_within", fmt.Sprintf("must be between 0 and %v", MaxRetention))
	case p.ReclaimWithin > 0 && rules.OnAbandoned == Hold:
		return invalid(ReasonInvalidPolicy, "policy.reclaim_within", "has no meaning with on_abandoned HOLD: nothing is reclaimed")
	case p.Tombstone != nil && (*p.Tombstone < 0 || *p.Tombstone > MaxRetention):
		return invalid(ReasonInvalidPolicy, "policy.tombstone", fmt.Sprintf("must be between 0 and %v", MaxRetention))
	case p.MaxResponseBytes < 0 || p.MaxResponseBytes > MaxResponseBytes:
		return invalid(ReasonInvalidPolicy, "policy.max_response_bytes", fmt.Sprintf("must be between 0 and %d", MaxResponseBytes))
	case rules.StoreResponse < StoreFull || rules.StoreResponse > StoreNone:
		return invalid(ReasonInvalidPolicy, "policy.store_response", "must be FULL, POINTER or NONE")
	}
	if r := p.validateMetadataAllow(); r != nil {
		return r
	}
	return p.validateKeyFormat(rules.KeyFormat)
}

func (p *Policy) validateKeyFormat(format KeyFormat) *Refusal {
	switch {
	case format < KeyAny || format > KeyPattern:
		return invalid(ReasonInvalidPolicy, "policy.key_format", "must be ANY, UUID or PATTERN")
	case format == KeyPattern && p.KeyPattern == "":
		return invalid(ReasonInvalidPolicy, "policy.key_pattern", "must be set with key format PATTERN")
	case format != KeyPattern && p.KeyPattern != "":
		return invalid(ReasonInvalidPolicy, "policy.key_pattern", "may be set with key format PATTERN only")
	case len(p.KeyPattern) > MaxKeyChars:
		return invalid(ReasonInvalidPolicy, "policy.key_pattern", fmt.Sprintf("must have at most %d bytes", MaxKeyChars))
	}
	if _, err := compileKeyPattern(p.KeyPattern); err != nil {
		return invalid(ReasonInvalidPolicy, "policy.key_pattern", "must be an RE2 expression: "+err.Error())
	}
	return nil
}

func compileKeyPattern(pattern string) (*regexp.Regexp, error) {
	return regexp.Compile(`\A(?:` + pattern + `)\z`)
}

func (p *Policy) validateMetadataAllow() *Refusal {
	for _, name := range p.MetadataAllow {
		switch {
		case name == "" || name != strings.ToLower(name) || strings.ContainsAny(name, " :\t\r\n"):
			return invalid(ReasonInvalidPolicy, "policy.response_metadata_allow", fmt.Sprintf("%q must be a lower-case metadata name", name))
		case NeverStored(name):
			return invalid(ReasonInvalidPolicy, "policy.response_metadata_allow",
				fmt.Sprintf("%q is never stored: it carries credentials, or belongs to one request only", name))
		}
	}
	return nil
}

// NeverStored reports whether a metadata name is never kept, whatever the allow list says: credentials, cookies, and what
// belongs to one exchange (request ids, rate limits, connection control).
func NeverStored(name string) bool {
	switch name {
	case "authorization", "proxy-authorization", "proxy-authenticate", "www-authenticate", "cookie", "set-cookie", "set-cookie2",
		"authentication-info", "x-api-key", "x-auth-token", "x-csrf-token", "x-amz-security-token",
		"x-request-id", "request-id", "x-correlation-id", "traceparent", "tracestate", "date", "age", "connection",
		"keep-alive", "transfer-encoding", "trailer", "upgrade", "te", "retry-after", "content-length":
		return true
	}
	return strings.HasPrefix(name, "x-ratelimit-") || strings.HasPrefix(name, "ratelimit") || strings.HasPrefix(name, "grpc-") ||
		strings.HasPrefix(name, "x-b3-") || strings.HasPrefix(name, ":")
}

// Keeps reports whether the response metadata of that name is stored.
func (r *Rules) Keeps(name string) bool {
	return !NeverStored(name) && slices.Contains(r.MetadataAllow, name)
}
