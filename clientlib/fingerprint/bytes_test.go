package fingerprint

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"testing"
)

// TestC40_NothingHasNoFingerprint: an adapter that hashes an already-drained body must not get the same
// fingerprint for every request; it gets none.
func TestC40_NothingHasNoFingerprint(t *testing.T) {
	body := bytes.NewReader([]byte(`{"amount":1}`))
	if _, err := io.Copy(io.Discard, body); err != nil { // somebody logged the body
		t.Fatal(err)
	}
	drained, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	var streamed BytesHasher
	if _, err := io.Copy(&streamed, body); err != nil {
		t.Fatal(err)
	}

	_, errBytes := Bytes(drained)
	_, errStreamed := streamed.Sum()
	_, errJSON := JSON(drained)
	for algorithm, err := range map[string]error{"bytes": errBytes, "streamed bytes": errStreamed, "JSON": errJSON} {
		if !errors.Is(err, ReasonEmpty) {
			t.Errorf("%s of a drained body: %v, want %s", algorithm, err, ReasonEmpty)
		}
	}
}

// TestC43_PayloadSizesWholeAndInChunks: where a payload is cut makes no difference, at any size around the
// sizes of buffers.
func TestC43_PayloadSizesWholeAndInChunks(t *testing.T) {
	for _, size := range []int{0, 1, 4095, 4096, 4097, 65536, 4 << 20} {
		t.Run(fmt.Sprintf("%d bytes", size), func(t *testing.T) {
			data := pattern(size)
			whole, err := Bytes(data)
			if size == 0 {
				if !errors.Is(err, ReasonEmpty) {
					t.Fatalf("%v, want %s", err, ReasonEmpty)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			for _, chunk := range []int{1, 7, 4095, 4096, 4097, 65536, size + 1} {
				if chunk == 1 && size > 65536 {
					continue // four million writes tell no more than 65536
				}
				var hasher BytesHasher
				for rest := data; len(rest) > 0; {
					n := min(chunk, len(rest))
					_, _ = hasher.Write(rest[:n])
					_, _ = hasher.Write(nil) // a read of nothing is no end
					rest = rest[n:]
				}
				got, errChunks := hasher.Sum()
				if !got.Equal(whole) || (err == nil) != (errChunks == nil) {
					t.Errorf("in chunks of %d: %v (%v), whole %v (%v)", chunk, got, errChunks, whole, err)
				}
			}
		})
	}
}

// TestBytesSumDoesNotDisturb: a sum in between is that of what was written so far.
func TestBytesSumDoesNotDisturb(t *testing.T) {
	var hasher BytesHasher
	_, _ = hasher.Write([]byte("one"))
	first, err := hasher.Sum()
	if err != nil {
		t.Fatal(err)
	}
	_, _ = hasher.Write([]byte("two"))
	second, err := hasher.Sum()
	if err != nil {
		t.Fatal(err)
	}
	wantFirst, _ := Bytes([]byte("one"))
	wantSecond, _ := Bytes([]byte("onetwo"))
	if !first.Equal(wantFirst) || !second.Equal(wantSecond) {
		t.Errorf("got %v and %v, want %v and %v", first, second, wantFirst, wantSecond)
	}
}

// TestDomainsNeverMeet: the same bytes have another hash under each algorithm, and none has their plain digest.
func TestDomainsNeverMeet(t *testing.T) {
	text := []byte(`{"a":1}`)
	asBytes, err := Bytes(text)
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := JSON(text)
	if err != nil {
		t.Fatal(err)
	}
	plain := sha256.Sum256(text)
	if bytes.Equal(asBytes.Hash, asJSON.Hash) || bytes.Equal(asBytes.Hash, plain[:]) || bytes.Equal(asJSON.Hash, plain[:]) {
		t.Errorf("bytes %v, JSON %v and plain %x meet", asBytes, asJSON, plain)
	}
	if asBytes.Equal(Fingerprint{Algorithm: AlgorithmJSON, Hash: asBytes.Hash}) {
		t.Error("fingerprints of two algorithms are equal")
	}
}
