package ledger

import "time"

// Limits that hold for every ledger. Each is declared here once; the .proto states the same numbers for callers and a test compares
// the two.
const (
	// MaxTenantChars, MaxOperationChars and MaxKeyChars bound the parts of a scope, in Unicode characters.
	MaxTenantChars    = 128
	MaxOperationChars = 255
	MaxKeyChars       = 255
	// MaxHolderChars bounds the name a holder gives itself.
	MaxHolderChars = 255
	// MaxReasonChars bounds the reason an operator gives for a resolution.
	MaxReasonChars = 1024
	// MaxAlgorithmChars bounds a fingerprint algorithm's id; MinHashBytes and MaxHashBytes its hash.
	MaxAlgorithmChars = 64
	MinHashBytes      = 16
	MaxHashBytes      = 64
	// MaxFingerprints is how many fingerprints one Begin may carry: the current algorithm's and, in a rollout, the other's.
	MaxFingerprints = 2

	// MaxPolicies is how many policies one ledger holds. Every daemon reads them all once a second, which takes it a few milliseconds where
	// there are so many. Those that were deleted less than an hour ago count.
	MaxPolicies = 1000

	// MaxRunAttempts is the highest cap on RUN grants a policy may set.
	MaxRunAttempts = 32
	// MaxAttempts is the highest number of attempts of one entry, of every kind. Past it only Resolve complete or fail helps.
	MaxAttempts = 64

	// MinLease and MaxLease bound a lease. A store of several clocks adds its margin on top (see [Store.Margin]).
	MinLease = time.Second
	MaxLease = 24 * time.Hour
	// MaxWait is the longest a Begin may wait for another's claim, whatever the policy says.
	MaxWait = 5 * time.Minute
	// MinRetention keeps a settled entry in place long enough that a fence can not go back when the scope is begun again within a
	// step of the store's clock.
	MinRetention = 2 * time.Second
	// MaxRetention bounds retention and tombstone.
	MaxRetention = 10 * 365 * 24 * time.Hour
	// MaxResponseBytes is the highest limit a policy may set for a stored response body, in bytes.
	MaxResponseBytes = 8 << 20
	// MaxDetailsBytes bounds what is stored of a failure's details, in bytes; more is omitted and said so.
	MaxDetailsBytes = 64 << 10
	// MaxMessageBytes bounds what is stored of a failure's message, in bytes.
	MaxMessageBytes = 8 << 10
	// MaxMetadataBytes bounds what is stored of a response's metadata, in bytes of names and values.
	MaxMetadataBytes = 16 << 10
	// MaxResourceChars bounds resource_type and resource_id.
	MaxResourceChars = 1024
	// MaxEvidenceBytes bounds the body kept with evidence: it is for a person or a recovery hook, not for replay.
	MaxEvidenceBytes = 64 << 10
)

// Defaults of the built-in policy (see [BuiltinPolicy]).
const (
	DefaultLease            = 60 * time.Second
	DefaultMaxWait          = 30 * time.Second
	DefaultMaxAttempts      = 10
	DefaultRetention        = 7 * 24 * time.Hour
	DefaultMaxResponseBytes = 1 << 20
)
