package ledger_test

import (
	"bytes"
	"testing"

	"github.com/idemd/idemd/ledger"
)

func testSecret(t *testing.T, first byte) *ledger.Secret {
	t.Helper()
	key := make([]byte, ledger.SecretBytes)
	key[0] = first
	s, err := ledger.NewSecret(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestTokensProveOneClaim: a token is the same each time it is derived, and proves nothing but its own claim on its own scope.
func TestTokensProveOneClaim(t *testing.T) {
	t.Parallel()
	s := testSecret(t, 1)
	scope := s.Scope(ledger.Ref{Tenant: "a", Operation: "b", Key: "c"})
	c := ledger.Claim{Incarnation: epoch, Attempt: 3, IDHash: ledger.IDHash{1, 2, 3}}
	token := s.Token(scope, c)
	if !bytes.Equal(token, s.Token(scope, c)) {
		t.Error("two tokens for one claim")
	}
	if got, ok := s.Claim(scope, token); !ok || got != c {
		t.Errorf("the token proves %+v, %t", got, ok)
	}
	for i := range token {
		forged := bytes.Clone(token)
		forged[i] ^= 1
		if _, ok := s.Claim(scope, forged); ok {
			t.Errorf("a token with byte %d changed is accepted", i)
		}
		if _, ok := s.Claim(scope, token[:i]); ok {
			t.Errorf("a token cut to %d bytes is accepted", i)
		}
	}
	if _, ok := s.Claim(scope, append(bytes.Clone(token), 0)); ok {
		t.Error("a token with a byte too many is accepted")
	}
	if _, ok := s.Claim(s.Scope(ledger.Ref{Tenant: "a", Operation: "b", Key: "d"}), token); ok {
		t.Error("a token is accepted for another scope")
	}
	if _, ok := testSecret(t, 2).Claim(scope, token); ok {
		t.Error("a token of another store is accepted")
	}
	for _, other := range []ledger.Claim{
		{Incarnation: epoch + 1, Attempt: 3, IDHash: c.IDHash}, {Incarnation: epoch, Attempt: 4, IDHash: c.IDHash}, {Incarnation: epoch, Attempt: 3},
	} {
		if bytes.Equal(s.Token(scope, other), token) {
			t.Errorf("%+v has the token of %+v", other, c)
		}
	}
}

func TestASecretHas32Bytes(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 31, 33} {
		if _, err := ledger.NewSecret(make([]byte, n)); err == nil {
			t.Errorf("a secret of %d bytes is accepted", n)
		}
	}
	key := make([]byte, ledger.SecretBytes)
	s, err := ledger.NewSecret(key)
	if err != nil {
		t.Fatal(err)
	}
	before := s.Scope(ledger.Ref{Tenant: "a"})
	key[0] = 1
	if s.Scope(ledger.Ref{Tenant: "a"}) != before {
		t.Error("a secret changes with the bytes it was made from")
	}
}

// C51: the parts of a scope are hashed with their lengths, never joined.
func TestC51_ScopesNeverMeet(t *testing.T) {
	t.Parallel()
	s := testSecret(t, 1)
	seen := map[ledger.ScopeID]ledger.Ref{}
	logged := map[string]ledger.Ref{}
	parts := []string{"a", "b", "a:b", "b:c", "a/b", "a|b", "a%b", ":", "/", "|", "%", "a\x00b", "aa", "", " ", "a "}
	for _, tenant := range parts {
		for _, operation := range parts {
			for _, key := range parts {
				ref := ledger.Ref{Tenant: tenant, Operation: operation, Key: key}
				if other, ok := seen[s.Scope(ref)]; ok {
					t.Errorf("%q and %q have one scope", ref, other)
				}
				if other, ok := logged[s.LogKey(ref)]; ok {
					t.Errorf("%q and %q have one name in logs", ref, other)
				}
				seen[s.Scope(ref)], logged[s.LogKey(ref)] = ref, ref
			}
		}
	}
}

// TestHashesForDifferentPurposesNeverMeet: what one hash reveals says nothing about another.
func TestHashesForDifferentPurposesNeverMeet(t *testing.T) {
	t.Parallel()
	s := testSecret(t, 1)
	a, b := s.Scope(ledger.Ref{Key: "a"}), s.Scope(ledger.Ref{Key: "b"})
	id := uuidOf("a1")
	if s.AttemptID(a, id) == s.AttemptID(b, id) {
		t.Error("one attempt id has one hash in two scopes: what is in one row would tell about another")
	}
	if s.AttemptID(a, id) == testSecret(t, 2).AttemptID(a, id) {
		t.Error("attempt ids are hashed without the secret")
	}
	if s.Principal("alice") == s.Principal("bob") || s.Principal("") != (ledger.PrincipalHash{}) {
		t.Error("principals: two names, two hashes; none, the zero hash")
	}
}
