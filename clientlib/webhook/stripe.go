package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/idemd/idemd/clientlib/fingerprint"
)

// Stripe opens deliveries of Stripe: https://docs.stripe.com/webhooks#verify-manually. Of the schemes in Stripe-Signature only v1
// counts; v0 is what test events have in place of it, and anybody can make one.
type Stripe struct {
	// Secrets are the endpoint's signing secrets that count, each whole, with "whsec_". Stripe keeps the old one valid for up to 24
	// hours after a roll.
	Secrets []string
	// Tolerance is how far the signed timestamp may be from now. Default: DefaultTolerance.
	Tolerance time.Duration
}

const stripeSignature = "Stripe-Signature"

// stripeJSON leaves out the one field of an event that Stripe counts down from delivery to delivery.
var stripeJSON = func() *fingerprint.JSONHasher {
	hasher, err := fingerprint.NewJSONHasher(fingerprint.JSONConfig{Exclude: []string{"/pending_webhooks"}})
	if err != nil {
		panic(err)
	}
	return hasher
}()

// Validate says what is wrong with the configuration, or nil.
func (s Stripe) Validate() error {
	return errors.Join(validateSecrets("Stripe", s.Secrets), validateTolerance("Stripe", s.Tolerance))
}

// Open verifies and reads a delivery.
func (s Stripe) Open(header http.Header, body []byte, now time.Time) (Delivery, error) {
	value, ok := one(header, stripeSignature)
	if !ok {
		return Delivery{}, fmt.Errorf("%w: %s is missing, or there twice", ErrSignature, stripeSignature)
	}
	timestamp, signatures, ok := parseStripeSignature(value)
	if !ok {
		return Delivery{}, fmt.Errorf("%w: %s is malformed", ErrSignature, stripeSignature)
	}
	if !anySigned(bytesOf(s.Secrets), signatures, []byte(timestamp), []byte("."), body) {
		return Delivery{}, ErrSignature
	}
	sent, _ := parseTimestamp(timestamp)
	if err := within(sent, now, s.Tolerance); err != nil {
		return Delivery{}, err
	}
	var event struct {
		ID      string          `json:"id"`
		Type    string          `json:"type"`
		Created json.RawMessage `json:"created"`
	}
	if err := json.Unmarshal(body, &event); err != nil {
		return Delivery{}, malformed(errors.New("the body is not a JSON object with an id and a type"))
	}
	return Delivery{
		ID: event.ID, Type: event.Type, SentAt: sent, CreatedAt: stripeTime(event.Created),
		Fingerprint: fingerprintOf(event.Type, body, stripeJSON),
	}, nil
}

// stripeTime reads seconds since the epoch, as in snapshot events, or RFC 3339, as in thin ones.
func stripeTime(raw json.RawMessage) time.Time {
	if seconds, ok := parseTimestamp(string(raw)); ok {
		return seconds
	}
	var text string
	if json.Unmarshal(raw, &text) != nil {
		return time.Time{}
	}
	return rfc3339(text)
}

func rfc3339(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}
	}
	return t
}

// parseStripeSignature reads "t=1492774577,v1=5257…,v1=…,v0=…": one timestamp, returned as it is written because it is signed so, and
// at least one v1. Schemes that it does not know are passed over, and so is a v1 that is no digest: Stripe may add to both.
func parseStripeSignature(value string) (timestamp string, signatures [][]byte, ok bool) {
	for element := range strings.SplitSeq(value, ",") {
		scheme, content, found := strings.Cut(strings.Trim(element, " "), "=")
		if !found {
			return "", nil, false
		}
		switch scheme {
		case "t":
			if _, valid := parseTimestamp(content); timestamp != "" || !valid {
				return "", nil, false
			}
			timestamp = content
		case "v1":
			if signature, valid := parseHexDigest(content); valid && len(signatures) < maxSignatures {
				signatures = append(signatures, signature)
			}
		}
	}
	return timestamp, signatures, timestamp != "" && len(signatures) > 0
}
