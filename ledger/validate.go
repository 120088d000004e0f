package ledger

import (
	"bytes"
	"crypto/md5"  //nolint:gosec // not for security: to recognise a digest of nothing
	"crypto/sha1" //nolint:gosec // likewise
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

func (r *BeginRequest) validate() *Refusal {
	if refusal := r.Ref.Validate(); refusal != nil {
		return refusal
	}
	if refusal := validateFingerprints(r.Fingerprints); refusal != nil {
		return refusal
	}
	if refusal := validateText(ReasonInvalidHolder, "holder", r.Holder, MaxHolderChars); refusal != nil {
		return refusal
	}
	if refusal := validateLease(r.Lease); refusal != nil {
		return refusal
	}
	switch {
	case r.Wait < 0:
		return invalid(ReasonInvalidWait, "wait", "must not be negative")
	case r.AttemptID == [16]byte{}:
		return invalid(ReasonInvalidAttemptID, "attempt_id", "must be a fresh UUID, not the nil UUID")
	case strings.EqualFold(r.AttemptIDText, r.Ref.Key) || isUUID(r.Ref.Key, r.AttemptID):
		return invalid(ReasonInvalidAttemptID, "attempt_id", "must not be the key: make a fresh UUID for each attempt")
	case r.Mode != Run && r.Mode != Recover:
		return invalid(ReasonInvalidRequest, "mode", "must be RUN or RECOVER")
	}
	return nil
}

func validateLease(lease time.Duration) *Refusal {
	if lease != 0 && (lease < MinLease || lease > MaxLease) {
		return invalid(ReasonInvalidLease, "lease", fmt.Sprintf("must be between %v and %v, or unset for the policy's", MinLease, MaxLease))
	}
	return nil
}

// isUUID reports whether text is any common spelling of id.
func isUUID(text string, id [16]byte) bool {
	const urn = "urn:uuid:"
	text = strings.Trim(text, "{}")
	if len(text) > len(urn) && strings.EqualFold(text[:len(urn)], urn) {
		text = text[len(urn):]
	}
	var digits [32]byte
	hex.Encode(digits[:], id[:])
	n := 0
	for i := range len(text) {
		c := text[i]
		if c == '-' {
			continue
		}
		if 'A' <= c && c <= 'F' {
			c += 'a' - 'A'
		}
		if n == len(digits) || c != digits[n] {
			return false
		}
		n++
	}
	return n == len(digits)
}

func validateFingerprints(fps []Fingerprint) *Refusal {
	if len(fps) == 0 || len(fps) > MaxFingerprints {
		return invalid(ReasonInvalidFingerprint, "fingerprints", fmt.Sprintf("must be 1 to %d", MaxFingerprints))
	}
	for i, fp := range fps {
		wrong := func(part, message string) *Refusal {
			return invalid(ReasonInvalidFingerprint, "fingerprints["+strconv.Itoa(i)+"]."+part, message)
		}
		switch {
		case fp.Algorithm == "" || len(fp.Algorithm) > MaxAlgorithmChars || strings.Trim(fp.Algorithm, algorithmChars) != "":
			return wrong("algorithm", fmt.Sprintf("must be 1 to %d characters of a-z, 0-9, '-', '.', '_'", MaxAlgorithmChars))
		case len(fp.Hash) < MinHashBytes || len(fp.Hash) > MaxHashBytes:
			return wrong("hash", fmt.Sprintf("must have %d to %d bytes", MinHashBytes, MaxHashBytes))
		case i > 0 && fp.Algorithm == fps[0].Algorithm:
			return wrong("algorithm", "must differ from the other fingerprint's")
		case isDigestOfNothing(fp):
			return wrong("hash", "is the digest of empty input: the request was probably hashed after its body had been read")
		}
	}
	return nil
}

const algorithmChars = "abcdefghijklmnopqrstuvwxyz0123456789-._"

// FingerprintDomain is what the digest of each of idemd's own algorithms begins with, before the algorithm's id and a zero byte; see
// docs/fingerprint.md.
const FingerprintDomain = "idem.fingerprint:"

// isDigestOfNothing recognises a hash over empty input: of idemd's own algorithms, whose input begins with a domain, and of the plain
// digests, under whatever name.
func isDigestOfNothing(fp Fingerprint) bool {
	own := ownDigests.of(fp.Algorithm)
	if bytes.Equal(fp.Hash, own[:]) {
		return true
	}
	for _, nothing := range digestsOfNothing {
		if bytes.Equal(fp.Hash, nothing) {
			return true
		}
	}
	return false
}

// emptyDigests are digests of nothing under idemd's own algorithms, by the names that callers give. Working one out takes as long as all else that is checked about a
// Begin. Callers can make names up, so those met first are kept, and others are worked out each time.
type emptyDigests struct {
	mu    sync.RWMutex
	known map[string][sha256.Size]byte // guarded by mu
}

// maxEmptyDigests is how many are kept: a rollout has two names, and a fleet of many languages a few more.
const maxEmptyDigests = 64

var ownDigests = emptyDigests{known: map[string][sha256.Size]byte{}}

func (d *emptyDigests) of(algorithm string) [sha256.Size]byte {
	d.mu.RLock()
	digest, ok := d.known[algorithm]
	d.mu.RUnlock()
	if ok {
		return digest
	}
	digest = sha256.Sum256([]byte(FingerprintDomain + algorithm + "\x00"))
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.known) < maxEmptyDigests {
		d.known[strings.Clone(algorithm)] = digest
	}
	return digest
}

var digestsOfNothing = func() [][]byte {
	m, s1, s256, s384, s512 := md5.Sum(nil), sha1.Sum(nil), sha256.Sum256(nil), sha512.Sum384(nil), sha512.Sum512(nil) //nolint:gosec // see above
	return [][]byte{m[:], s1[:], s256[:], s384[:], s512[:]}
}()

// checkKey refuses a key that the policy's key format does not take (INVALID_KEY, naming the rule).
func (r *Rules) checkKey(key string) *Refusal {
	switch {
	case r.KeyFormat == KeyUUID && !looksLikeUUID(key):
		return invalid(ReasonInvalidKey, "ref.key", "must be a UUID of 36 characters, by the policy of this operation")
	case r.KeyFormat == KeyPattern && (r.keyPattern == nil || !r.keyPattern.MatchString(key)):
		return invalid(ReasonInvalidKey, "ref.key", "must match the key pattern in the policy of this operation")
	case r.RefuseTimestamps && looksLikeTimestamp(key):
		return invalid(ReasonInvalidKey, "ref.key", "must not be a timestamp, by the policy of this operation: two intents can share one")
	}
	return nil
}

func looksLikeUUID(key string) bool {
	if len(key) != 36 {
		return false
	}
	for i, c := range key {
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if !strings.ContainsRune("0123456789abcdefABCDEF", c) {
				return false
			}
		}
	}
	return true
}

// looksLikeTimestamp recognises keys that are nothing but a point in time: Unix seconds to nanoseconds between 2001 and 2286, and the
// usual spellings of a date with or without a time.
func looksLikeTimestamp(key string) bool {
	if n, err := strconv.ParseInt(key, 10, 64); err == nil {
		for _, unit := range []int64{1, 1e3, 1e6, 1e9} {
			if n >= 1e9*unit && n/unit < 1e10 {
				return true
			}
		}
	}
	for _, layout := range []string{
		time.RFC3339Nano, time.RFC3339, time.DateTime, time.DateOnly, "2006-01-02T15:04:05", "20060102150405", "20060102T150405Z", "20060102",
	} {
		if _, err := time.Parse(layout, key); err == nil {
			return true
		}
	}
	return false
}
