package payments

import (
	"errors"
	"fmt"
	"sync"
)

// Book is the account book, here in memory. It stands for whatever has the effect: a database, a bank, a provider. It does not
// look for duplicates when it charges: charging twice charges twice.
type Book struct {
	mu       sync.Mutex
	accounts map[string]Account
	charges  map[string][]Charge // by key; more than one is what must not be
	fences   map[string]int64    // by key, the highest that was seen
	made     int
}

// Account is what was charged to one account.
type Account struct {
	TotalCents int64
	Charges    int64
}

// Charge is one entry in the book.
type Charge struct {
	ID          string
	Account     string
	AmountCents int64
	// TotalCents is what was charged to the account in all, this charge included.
	TotalCents int64
}

// NewBook makes an empty book.
func NewBook() *Book {
	return &Book{accounts: map[string]Account{}, charges: map[string][]Charge{}, fences: map[string]int64{}}
}

// ErrStale refuses an attempt that woke up after a later one had asked what became of it.
var ErrStale = errors.New("a later attempt at this charge is under way")

// Charge takes an amount from an account, under a key by which it can be found again. A fence that is lower than one that was seen
// for the key is refused: it belongs to an earlier attempt.
func (b *Book) Charge(key string, fence int64, account string, amountCents int64) (Charge, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if fence < b.fences[key] {
		return Charge{}, ErrStale
	}
	b.fences[key] = fence
	a := b.accounts[account]
	a.TotalCents += amountCents
	a.Charges++
	b.accounts[account] = a
	b.made++
	charge := Charge{ID: fmt.Sprintf("ch_%d", b.made), Account: account, AmountCents: amountCents, TotalCents: a.TotalCents}
	b.charges[key] = append(b.charges[key], charge)
	return charge, nil
}

// Find says whether there is a charge for a key. From then on attempts with a lower fence are refused, so that "there is none"
// stays true until whoever asked has acted on it.
func (b *Book) Find(key string, fence int64) (charge Charge, found bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fences[key] = max(b.fences[key], fence)
	if made := b.charges[key]; len(made) > 0 {
		return made[0], true
	}
	return Charge{}, false
}

// Account tells what was charged to an account.
func (b *Book) Account(name string) Account {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.accounts[name]
}

// ChargesOf is how many charges were made under a key.
func (b *Book) ChargesOf(key string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.charges[key])
}
