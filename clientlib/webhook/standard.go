package webhook

import (
	"crypto/ed25519"
	"crypto/hmac"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// StandardWebhooks opens deliveries by the Standard Webhooks specification:
// https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md.
type StandardWebhooks struct {
	// Secrets are the keys that count: "whsec_" and a secret in base64, for v1 signatures, or "whpk_" and an ed25519 public key in
	// base64, for v1a. One without a prefix is taken for a whsec_. During a rotation both do.
	Secrets []string
	// Tolerance is how far the signed timestamp may be from now. Default: DefaultTolerance.
	Tolerance time.Duration
	// HeaderPrefix is what the headers' names begin with. Default: "webhook-". Svix sends "svix-".
	HeaderPrefix string
}

// How many bytes a secret may have. The specification has 24 to 64, but not every sender keeps to it: the example in Svix's own
// documentation has 18. Under 128 bits it is no secret.
const (
	minStandardSecret = 16
	maxStandardSecret = 64
)

// standardKeys are secrets as they are used.
type standardKeys struct {
	secrets [][]byte            // of v1
	public  []ed25519.PublicKey // of v1a
}

func parseStandardKeys(secrets []string) (standardKeys, error) {
	var keys standardKeys
	for i, text := range secrets {
		encoded, public := strings.CutPrefix(text, "whpk_")
		encoded = strings.TrimPrefix(encoded, "whsec_")
		raw, err := base64.StdEncoding.DecodeString(encoded)
		switch {
		case err != nil:
			// Not the error itself: it would quote a part of the secret.
			return standardKeys{}, invalid("StandardWebhooks.Secrets[%d] is not base64", i)
		case public && len(raw) == ed25519.PublicKeySize:
			keys.public = append(keys.public, raw)
		case public:
			return standardKeys{}, invalid("StandardWebhooks.Secrets[%d] is not an ed25519 public key", i)
		case len(raw) < minStandardSecret || len(raw) > maxStandardSecret:
			return standardKeys{}, invalid("StandardWebhooks.Secrets[%d] has %d bytes; it must have %d to %d", i, len(raw),
				minStandardSecret, maxStandardSecret)
		default:
			keys.secrets = append(keys.secrets, raw)
		}
	}
	return keys, nil
}

// Validate says what is wrong with the configuration, or nil.
func (s StandardWebhooks) Validate() error {
	if err := errors.Join(validateSecrets("StandardWebhooks", s.Secrets), validateTolerance("StandardWebhooks", s.Tolerance)); err != nil {
		return err
	}
	_, err := parseStandardKeys(s.Secrets)
	return err
}

func (s StandardWebhooks) header(name string) string {
	if s.HeaderPrefix == "" {
		return "webhook-" + name
	}
	return s.HeaderPrefix + name
}

// Open verifies and reads a delivery.
func (s StandardWebhooks) Open(header http.Header, body []byte, now time.Time) (Delivery, error) {
	keys, err := parseStandardKeys(s.Secrets)
	if err != nil {
		return Delivery{}, err
	}
	id, hasID := one(header, s.header("id"))
	timestamp, hasTime := one(header, s.header("timestamp"))
	list, hasList := one(header, s.header("signature"))
	sent, isTime := parseTimestamp(timestamp)
	switch {
	case !hasID || !hasTime || !hasList:
		return Delivery{}, fmt.Errorf("%w: a %s header is missing, or there twice", ErrSignature, s.header("*"))
	case strings.Contains(id, "."):
		// Id, time and body are signed with full stops between them: with one in the id, the same signature would do for another id,
		// another time and another body.
		return Delivery{}, fmt.Errorf("%w: the id has a full stop in it", ErrSignature)
	case !isTime:
		return Delivery{}, fmt.Errorf("%w: the timestamp is malformed", ErrSignature)
	}
	signed := []byte(id + "." + timestamp + ".")
	if !keys.signed(parseStandardSignatures(list), signed, body) {
		return Delivery{}, ErrSignature
	}
	if err := within(sent, now, s.Tolerance); err != nil {
		return Delivery{}, err
	}
	// By the specification's advice a JSON body has these two. Neither is needed.
	var event struct {
		Type      string `json:"type"`
		Timestamp string `json:"timestamp"`
	}
	_ = json.Unmarshal(body, &event)
	return Delivery{
		ID: id, Type: event.Type, SentAt: sent, CreatedAt: rfc3339(event.Timestamp), Fingerprint: fingerprintOf(event.Type, body, plainJSON),
	}, nil
}

// standardSignature is one of the list, with the scheme that it claims.
type standardSignature struct {
	asymmetric bool
	value      []byte
}

// parseStandardSignatures reads "v1,base64 v1a,base64": those of a scheme and a length that it knows.
func parseStandardSignatures(list string) []standardSignature {
	var found []standardSignature
	for element := range strings.SplitSeq(list, " ") {
		version, encoded, _ := strings.Cut(element, ",")
		value, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil || len(found) == maxSignatures {
			continue
		}
		switch {
		case version == "v1" && len(value) == 32:
			found = append(found, standardSignature{value: value})
		case version == "v1a" && len(value) == ed25519.SignatureSize:
			found = append(found, standardSignature{asymmetric: true, value: value})
		}
	}
	return found
}

// signed tries every key of a scheme with every signature of it, and no signature with a key of the other: a public key is no secret.
func (k standardKeys) signed(signatures []standardSignature, head, body []byte) bool {
	found := false
	for _, secret := range k.secrets {
		want := sign(secret, head, body)
		for _, signature := range signatures {
			if !signature.asymmetric && hmac.Equal(signature.value, want) {
				found = true
			}
		}
	}
	if len(k.public) == 0 {
		return found
	}
	message := append(append([]byte(nil), head...), body...)
	for _, key := range k.public {
		for _, signature := range signatures {
			if signature.asymmetric && ed25519.Verify(key, message, signature.value) {
				found = true
			}
		}
	}
	return found
}
