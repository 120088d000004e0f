package webhook

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// GitHub opens deliveries of GitHub: https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries. Only
// X-Hub-Signature-256 counts; the older X-Hub-Signature, by SHA-1, is not looked at.
//
// GitHub signs the body, and nothing else: no time, no id, no type. Whoever has seen one signed request can send it again for ever
// under another X-GitHub-Delivery. Against that only TLS and a list of GitHub's addresses help, or a handler that looks at the
// body: see docs/webhooks.md.
type GitHub struct {
	// Secrets are the secrets that count. During a rotation both do.
	Secrets []string
}

// Headers of GitHub.
const (
	githubSignature = "X-Hub-Signature-256"
	githubDelivery  = "X-GitHub-Delivery"
	githubEvent     = "X-GitHub-Event"
)

// Validate says what is wrong with the configuration, or nil.
func (g GitHub) Validate() error { return validateSecrets("GitHub", g.Secrets) }

// Open verifies and reads a delivery.
func (g GitHub) Open(header http.Header, body []byte, _ time.Time) (Delivery, error) {
	value, ok := one(header, githubSignature)
	if !ok {
		return Delivery{}, fmt.Errorf("%w: %s is missing, or there twice", ErrSignature, githubSignature)
	}
	signature, ok := parseHubSignature(value)
	if !ok {
		return Delivery{}, fmt.Errorf("%w: %s is malformed", ErrSignature, githubSignature)
	}
	if !anySigned(bytesOf(g.Secrets), [][]byte{signature}, body) {
		return Delivery{}, ErrSignature
	}
	id, ok := one(header, githubDelivery)
	if !ok {
		return Delivery{}, malformed(fmt.Errorf("%s is missing, or there twice", githubDelivery))
	}
	event, ok := one(header, githubEvent)
	if !ok {
		return Delivery{}, malformed(fmt.Errorf("%s is missing, or there twice", githubEvent))
	}
	return Delivery{ID: id, Type: event, Fingerprint: fingerprintOf(event, body, plainJSON)}, nil
}

// parseHubSignature reads "sha256=" and 64 hexadecimal digits.
func parseHubSignature(value string) ([]byte, bool) {
	digits, ok := strings.CutPrefix(value, "sha256=")
	if !ok {
		return nil, false
	}
	return parseHexDigest(digits)
}

func parseHexDigest(digits string) ([]byte, bool) {
	signature, err := hex.DecodeString(digits)
	return signature, err == nil && len(signature) == 32
}
