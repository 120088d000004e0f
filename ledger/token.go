package ledger

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"sync"
)

// Secret is the key that scope ids, attempt id hashes and claim tokens are derived under. It is kept in the store, so that every
// daemon on it derives the same. Safe for concurrent use.
type Secret struct {
	// derivations are of *derivation. Every call derives two or three hashes, and a keyed hash costs more to make than to use.
	derivations sync.Pool
}

// derivation is a keyed hash that is used again, with its buffers.
type derivation struct {
	mac     hash.Hash
	message []byte
	sum     []byte
}

// SecretBytes is the length of a secret.
const SecretBytes = 32

// NewSecret wraps key, which must have SecretBytes bytes.
func NewSecret(key []byte) (*Secret, error) {
	if len(key) != SecretBytes {
		return nil, errors.New("ledger: a secret has 32 bytes")
	}
	key = append([]byte(nil), key...)
	s := &Secret{}
	s.derivations.New = func() any { return &derivation{mac: hmac.New(sha256.New, key)} }
	return s, nil
}

// derive is a keyed hash for one purpose. Parts are written with their length before them, so that no two lists of parts meet.
func (s *Secret) derive(purpose string, parts ...string) [sha256.Size]byte {
	d := s.derivations.Get().(*derivation)
	defer s.derivations.Put(d)
	d.message = appendPart(d.message[:0], purpose)
	for _, p := range parts {
		d.message = appendPart(d.message, p)
	}
	d.mac.Reset()
	d.mac.Write(d.message)
	d.sum = d.mac.Sum(d.sum[:0])
	return [sha256.Size]byte(d.sum)
}

func appendPart(message []byte, part string) []byte {
	message = binary.BigEndian.AppendUint64(message, uint64(len(part)))
	return append(message, part...)
}

// Scope returns the id of a scope.
func (s *Secret) Scope(ref Ref) ScopeID {
	return s.derive("scope", ref.Tenant, ref.Operation, ref.Key)
}

// AttemptID returns the hash of an attempt id within a scope.
func (s *Secret) AttemptID(scope ScopeID, id [16]byte) IDHash {
	sum := s.derive("attempt id", string(scope[:]), string(id[:]))
	return IDHash(sum[:16])
}

// Principal returns the hash of a principal's stable name; the zero hash for "".
func (s *Secret) Principal(name string) PrincipalHash {
	if name == "" {
		return PrincipalHash{}
	}
	sum := s.derive("principal", name)
	return PrincipalHash(sum[:16])
}

// LogKey returns a short keyed hash of a scope for logs, traces and metrics, where the key itself must never appear.
func (s *Secret) LogKey(ref Ref) string {
	const digits = "0123456789abcdef"
	sum := s.derive("log", ref.Tenant, ref.Operation, ref.Key)
	out := make([]byte, 0, 16)
	for _, b := range sum[:8] {
		out = append(out, digits[b>>4], digits[b&15])
	}
	return string(out)
}

// Claim names a grant: what a claim token proves.
type Claim struct {
	Incarnation Time
	Attempt     int32
	IDHash      IDHash
}

const tokenVersion = 1

// tokenBytes: version 1, incarnation 8, attempt 4, id hash 16, keyed hash 16.
const tokenBytes = 1 + 8 + 4 + 16 + 16

// Token derives the claim token of a grant. The same grant always has the same token, so a resent Begin can be answered with it although
// it is stored nowhere.
func (s *Secret) Token(scope ScopeID, c Claim) []byte {
	t := make([]byte, 0, tokenBytes)
	t = append(t, tokenVersion)
	t = binary.BigEndian.AppendUint64(t, uint64(c.Incarnation))
	t = binary.BigEndian.AppendUint32(t, uint32(c.Attempt))
	t = append(t, c.IDHash[:]...)
	mac := s.tokenMAC(scope, t)
	return append(t, mac[:]...)
}

// Claim returns the grant that a token proves, false for a token that was never issued for this scope.
func (s *Secret) Claim(scope ScopeID, token []byte) (Claim, bool) {
	if len(token) != tokenBytes || token[0] != tokenVersion {
		return Claim{}, false
	}
	public := token[:tokenBytes-16]
	if mac := s.tokenMAC(scope, public); !hmac.Equal(mac[:], token[tokenBytes-16:]) {
		return Claim{}, false
	}
	return Claim{
		Incarnation: Time(binary.BigEndian.Uint64(public[1:])),
		Attempt:     int32(binary.BigEndian.Uint32(public[9:])),
		IDHash:      IDHash(public[13:29]),
	}, true
}

func (s *Secret) tokenMAC(scope ScopeID, public []byte) [16]byte {
	sum := s.derive("claim token", string(scope[:]), string(public))
	return [16]byte(sum[:16])
}
