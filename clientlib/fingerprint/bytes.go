package fingerprint

import (
	"crypto/sha256"
	"hash"
)

// Bytes fingerprints data as it is: no two different byte strings agree. Empty data is refused with
// ReasonEmpty.
func Bytes(data []byte) (Fingerprint, error) {
	var hasher BytesHasher
	_, _ = hasher.Write(data) // never fails
	return hasher.Sum()
}

// BytesHasher fingerprints bytes that arrive in pieces; where the pieces were cut makes no difference.
// Its zero value is ready to use, by one goroutine at a time.
type BytesHasher struct {
	digest hash.Hash // nil until the first byte
}

// Write adds data. It never fails.
func (h *BytesHasher) Write(data []byte) (int, error) {
	if len(data) == 0 {
		return 0, nil
	}
	if h.digest == nil {
		h.digest = sha256.New()
		h.digest.Write(domainBytes)
	}
	return h.digest.Write(data)
}

// Sum gives the fingerprint of everything written so far, and does not disturb further writing.
// It refuses with ReasonEmpty when nothing was written.
func (h *BytesHasher) Sum() (Fingerprint, error) {
	if h.digest == nil {
		return Fingerprint{}, emptyInput(AlgorithmBytes)
	}
	return Fingerprint{Algorithm: AlgorithmBytes, Hash: h.digest.Sum(nil)}, nil
}
