package ledger_test

import (
	"encoding/hex"
	"fmt"
	"sync"
	"testing"

	"github.com/idemd/idemd/ledger"
)

// derived is one hash of each kind under a secret.
func derived(s *ledger.Secret) string {
	ref := ledger.Ref{Tenant: "acme", Operation: "/payments.v1.Payments/Charge", Key: "k1"}
	scope := s.Scope(ref)
	id := s.AttemptID(scope, [16]byte{1, 2, 3})
	principal := s.Principal("spiffe://acme/payments")
	token := s.Token(scope, ledger.Claim{Incarnation: 1_900_000_000_000_000, Attempt: 2, IDHash: id})
	return fmt.Sprintf("%x %x %x %x %s", scope, id, principal, token, s.LogKey(ref))
}

// What is derived finds the rows of every ledger there is: it must never change. And it is the same however many derive at once.
func TestWhatIsDerivedNeverChanges(t *testing.T) {
	t.Parallel()
	key, err := hex.DecodeString("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f")
	if err != nil {
		t.Fatal(err)
	}
	s, err := ledger.NewSecret(key)
	if err != nil {
		t.Fatal(err)
	}
	const want = "d443afb56916db04e702ad8ad9059b2373f0a52b30629573c25fd0ed4e472756 " +
		"d384c4d789a833fb76522358d49b30b7 ea1bd1c531869878e97a9237688bfcae " +
		"010006c00a3912c00000000002d384c4d789a833fb76522358d49b30b71bc09fdae6925b28ddbe6d12f31a137f c1a33b9b538a2df2"
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				if got := derived(s); got != want {
					t.Errorf("derived %s, want %s", got, want)
					return
				}
			}
		})
	}
	wg.Wait()
}
