package webhook

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Whatever is in the header, parsing ends, and what it takes for a signature is one.
func FuzzStripeSignature(f *testing.F) {
	for _, seed := range []string{
		"t=1492774577,v1=5257a869e7ecebeda32affa62cdca3fa51cad7e77a0e56ff536d0ce8e108d8bd",
		"t=1,v1=" + strings.Repeat("0", 64) + ",v1=" + strings.Repeat("f", 64) + ",v0=x", "t=,v1=", ",", "t=1", "v1==,t=1", "t=1 , v1=zz",
		strings.Repeat("v1="+strings.Repeat("0", 64)+",", 40) + "t=1",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		timestamp, signatures, ok := parseStripeSignature(value)
		if !ok {
			return
		}
		if len(signatures) == 0 || len(signatures) > maxSignatures {
			t.Fatalf("%d signatures", len(signatures))
		}
		for _, signature := range signatures {
			if len(signature) != 32 || !strings.Contains(strings.ToLower(value), hex.EncodeToString(signature)) {
				t.Fatalf("a signature that is not in the header: %x", signature)
			}
		}
		if at, valid := parseTimestamp(timestamp); !valid || at.Unix() < 0 || strings.Count(","+value, ",t=")+strings.Count(value, " t=") < 1 {
			t.Fatalf("a timestamp that is none: %q", timestamp)
		}
	})
}

func FuzzStandardSignatures(f *testing.F) {
	for _, seed := range []string{
		"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE= v1,bm9ldHU=",
		"v1a," + base64.StdEncoding.EncodeToString(make([]byte, 64)), "v1", ",", "  ", "v1,,", strings.Repeat("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE= ", 40),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, list string) {
		found := parseStandardSignatures(list)
		if len(found) > maxSignatures {
			t.Fatalf("%d signatures", len(found))
		}
		for _, signature := range found {
			if want := map[bool]int{false: 32, true: 64}[signature.asymmetric]; len(signature.value) != want {
				t.Fatalf("%d bytes", len(signature.value))
			}
		}
	})
}

func FuzzHubSignature(f *testing.F) {
	for _, seed := range []string{"sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17", "sha256=", "sha1=00", "sha256=sha256=", "SHA256=00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if signature, ok := parseHubSignature(value); ok && (len(signature) != 32 || !strings.EqualFold(value, "sha256="+hex.EncodeToString(signature))) {
			t.Fatalf("%x of %q", signature, value)
		}
	})
}

func FuzzTimestamp(f *testing.F) {
	for _, seed := range []string{"1614265330", "", "-1", "+1", " 1", "1e3", "99999999999", "999999999999", "٣"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if at, ok := parseTimestamp(text); ok && strings.TrimLeft(text, "0") != strings.TrimLeft(strconv.FormatInt(at.Unix(), 10), "0") {
			t.Fatalf("%q is %v", text, at)
		}
	})
}

// Without the secret nothing opens, whatever the headers and the body are.
func FuzzNothingOpensWithoutTheSecret(f *testing.F) {
	f.Add("t=1614556800,v1="+strings.Repeat("0", 64), "id", `{"id":"evt_1"}`)
	f.Add("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", "a.1", `{}`)
	f.Add("sha256="+strings.Repeat("0", 64), "id", ``)
	secret := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("unknown!"), 4))
	f.Fuzz(func(t *testing.T, signature, id, body string) {
		now := time.Unix(1614556800, 0)
		h := http.Header{
			"X-Hub-Signature-256": {signature}, "X-Github-Delivery": {id}, "X-Github-Event": {"push"}, "Stripe-Signature": {signature},
			"Webhook-Id": {id}, "Webhook-Timestamp": {"1614556800"}, "Webhook-Signature": {signature},
		}
		for _, sender := range []Sender{GitHub{Secrets: []string{secret}}, Stripe{Secrets: []string{secret}}, StandardWebhooks{Secrets: []string{secret}}} {
			if d, err := sender.Open(h, []byte(body), now); err == nil {
				t.Fatalf("%T opened %+v", sender, d)
			}
		}
	})
}

// What is put down comes back as it was.
func FuzzReceipt(f *testing.F) {
	f.Add("push", []byte("{}\n{}"), int64(1614556800), int64(7), "text/plain")
	f.Add("", []byte{}, int64(0), int64(-1), "")
	f.Fuzz(func(t *testing.T, kind string, body []byte, seconds, sequence int64, contentType string) {
		at := time.Unix(seconds%(1<<37), 0)
		if year := at.UTC().Year(); year < 1 || year > 9999 {
			t.Skip("JSON has no such year")
		}
		d := Delivery{
			Type: strings.ToValidUTF8(kind, "?"), Body: body, Header: http.Header{"Content-Type": {strings.ToValidUTF8(contentType, "?")}},
			Fingerprint: fingerprintOf(kind, body, plainJSON), ReceivedAt: at, SentAt: at, Sequence: sequence, Sequenced: true,
		}
		stored, err := encode(d)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decode(stored)
		if err != nil {
			t.Fatal(err)
		}
		if got.Type != d.Type || !bytes.Equal(got.Body, d.Body) || !got.Fingerprint.Equal(d.Fingerprint) || !got.SentAt.Equal(d.SentAt) ||
			got.Sequence != sequence || !got.CreatedAt.IsZero() || got.Header.Get("Content-Type") != d.Header.Get("Content-Type") {
			t.Fatalf("%+v came back as %+v", d, got)
		}
	})
}
