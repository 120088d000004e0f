package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/idemd/idemd/clientlib/fingerprint"
)

// DefaultTolerance is how far a signed timestamp may be from now, as Stripe's and the Standard Webhooks' own libraries have it.
const DefaultTolerance = 5 * time.Minute

// Sender knows how one kind of sender signs and names its deliveries. [GitHub], [Stripe] and [StandardWebhooks] are three.
type Sender interface {
	// Validate says what is wrong with the sender's configuration, or nil.
	Validate() error
	// Open verifies the signature over the body as it came, and then reads ID, Type, SentAt, CreatedAt and Fingerprint; the receiver
	// fills in the rest. Its errors are ErrSignature, ErrTolerance and ErrMalformed, wrapped. It reads nothing of the body before
	// the signature is verified.
	Open(header http.Header, body []byte, now time.Time) (Delivery, error)
}

var (
	// ErrSignature refuses a request whose signature is missing, malformed, or by none of the secrets.
	ErrSignature = errors.New("webhook: the signature is not valid")
	// ErrTolerance refuses a request that was signed too long ago, or too far in the future: it may be a recording.
	ErrTolerance = errors.New("webhook: the signed timestamp is outside of the tolerance")
	// ErrMalformed refuses a request that is signed, and cannot be used: it has no usable id.
	ErrMalformed = errors.New("webhook: the delivery is malformed")
)

// maxSignatures bounds how many signatures of one request are looked at. Senders send one for each secret that is valid.
const maxSignatures = 16

// plainJSON leaves nothing out.
var plainJSON = &fingerprint.JSONHasher{}

func sign(secret []byte, parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, secret)
	for _, part := range parts {
		mac.Write(part)
	}
	return mac.Sum(nil)
}

// anySigned says whether one of the signatures is by one of the secrets. It compares all with all, each in constant time, so that
// how long it takes tells nothing of which was close.
func anySigned(secrets [][]byte, signatures [][]byte, parts ...[]byte) bool {
	found := false
	for _, secret := range secrets {
		want := sign(secret, parts...)
		for _, got := range signatures {
			if hmac.Equal(got, want) {
				found = true
			}
		}
	}
	return found
}

// one reads a header that must be there once. Of two different values one would be somebody's mistake, or an attempt to have the
// signature verified over one and the other used.
func one(header http.Header, name string) (string, bool) {
	values := header.Values(name)
	for _, value := range values {
		if value != values[0] {
			return "", false
		}
	}
	if len(values) == 0 || values[0] == "" {
		return "", false
	}
	return values[0], true
}

// maxTimestampDigits is enough for the year 5138 and cannot overflow.
const maxTimestampDigits = 11

// parseTimestamp reads seconds since the epoch in digits only: no sign, no space, no fraction.
func parseTimestamp(text string) (time.Time, bool) {
	if text == "" || len(text) > maxTimestampDigits {
		return time.Time{}, false
	}
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return time.Time{}, false
		}
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, false
	}
	return time.Unix(seconds, 0), true
}

// within refuses what was signed too long ago, or in the future beyond what clocks differ by.
func within(signed, now time.Time, tolerance time.Duration) error {
	if tolerance == 0 {
		tolerance = DefaultTolerance
	}
	if age := now.Sub(signed).Abs(); age > tolerance {
		return fmt.Errorf("%w: it is %v from now", ErrTolerance, age.Truncate(time.Second))
	}
	return nil
}

func validateSecrets(sender string, secrets []string) error {
	if len(secrets) == 0 {
		return invalid("%s needs a secret", sender)
	}
	for i, secret := range secrets {
		if secret == "" {
			return invalid("%s.Secrets[%d] is empty; anybody could sign with it", sender, i)
		}
	}
	return nil
}

func validateTolerance(sender string, tolerance time.Duration) error {
	if tolerance < 0 || tolerance > 24*time.Hour {
		return invalid("%s.Tolerance must be from 0 (the default) to 24 h", sender)
	}
	return nil
}

func bytesOf(secrets []string) [][]byte {
	all := make([][]byte, len(secrets))
	for i, secret := range secrets {
		all[i] = []byte(secret)
	}
	return all
}

func malformed(err error) error { return fmt.Errorf("%w: %w", ErrMalformed, err) }

func invalid(format string, args ...any) error { return fmt.Errorf("webhook: "+format, args...) }
