package webhook_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/idemd/idemd/clientlib/webhook"
)

// request is what a sender sent, as far as a Sender sees it.
type request struct {
	header http.Header
	body   string
	now    time.Time
}

func header(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

// GitHub's own test values: https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries#testing-the-webhook-payload-validation.
const (
	githubSecret = "It's a Secret to Everybody"
	githubBody   = "Hello, World!"
	githubSigned = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
)

func githubVector() request {
	return request{header: header("X-Hub-Signature-256", githubSigned, "X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958",
		"X-GitHub-Event", "push"), body: githubBody}
}

// Stripe publishes no body with its secret and signature. These were made by another implementation than this one's, in the way that
// stripe-dotnet's EventUtilityTest documents:
//
//	printf '%s' '1614556800.{"id":"evt_1",…}' | openssl sha256 -hmac whsec_test_secret
const (
	stripeSecret      = "whsec_test_secret"
	stripeOlderSecret = "whsec_older_secret"
	stripeBody        = `{"id":"evt_1","object":"event","created":1614556799,"type":"charge.succeeded"}`
	stripeTime        = "1614556800"
	stripeSigned      = "32d93d93c92549a34f68407a4b00e04d4db867f15789f221317ad0c881177387"
	stripeOlderSigned = "e04b598538a168bf401a60cb5e8f9bd2c3f28424d8b0dd0f06a6e08304ce571f"
)

var stripeNow = time.Unix(1614556800, 0)

func stripeVector(signature string) request {
	return request{header: header("Stripe-Signature", signature), body: stripeBody, now: stripeNow}
}

// The example of the Standard Webhooks' reference libraries and of Svix's documentation:
// https://docs.svix.com/receiving/verifying-payloads/how-manual.
const (
	standardSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	standardID     = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	standardTime   = "1614265330"
	standardBody   = `{"test": 2432232314}`
	standardSigned = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
)

var standardNow = time.Unix(1614265330, 0)

func standardVector(signature string) request {
	return request{
		header: header("webhook-id", standardID, "webhook-timestamp", standardTime, "webhook-signature", signature),
		body:   standardBody, now: standardNow,
	}
}

func TestKnownAnswersOfTheSendersAreAccepted(t *testing.T) {
	for _, c := range []struct {
		name    string
		sender  webhook.Sender
		request request
		id      string
		kind    string
		sent    time.Time
		created time.Time
	}{
		{"GitHub", webhook.GitHub{Secrets: []string{githubSecret}}, githubVector(), "72d3162e-cc78-11e3-81ab-4c9367dc0958", "push", time.Time{}, time.Time{}},
		{"Stripe", webhook.Stripe{Secrets: []string{stripeSecret}}, stripeVector("t=1614556800,v1=" + stripeSigned), "evt_1", "charge.succeeded",
			stripeNow, time.Unix(1614556799, 0)},
		{"Standard Webhooks", webhook.StandardWebhooks{Secrets: []string{standardSecret}}, standardVector(standardSigned), standardID, "",
			standardNow, time.Time{}},
		{"Standard Webhooks, a key without its prefix", webhook.StandardWebhooks{Secrets: []string{standardSecret[len("whsec_"):]}},
			standardVector(standardSigned), standardID, "", standardNow, time.Time{}},
		{"Svix", webhook.StandardWebhooks{Secrets: []string{"whsec_plJ3nmyCDGBKInavdOK15jsl"}, HeaderPrefix: "svix-"},
			request{header("svix-id", "msg_loFOjxBNrRLzqYUf", "svix-timestamp", "1731705121", "svix-signature",
				"v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0="), `{"event_type":"ping","data":{"success":true}}`, time.Unix(1731705121, 0)},
			"msg_loFOjxBNrRLzqYUf", "", time.Unix(1731705121, 0), time.Time{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.sender.Validate(); err != nil {
				t.Fatal(err)
			}
			d, err := c.sender.Open(c.request.header, []byte(c.request.body), c.request.now)
			if err != nil {
				t.Fatal(err)
			}
			if d.ID != c.id || d.Type != c.kind || !d.SentAt.Equal(c.sent) || !d.CreatedAt.Equal(c.created) {
				t.Errorf("read %+v", d)
			}
			if len(d.Fingerprint.Hash) == 0 {
				t.Error("it has no fingerprint")
			}
			changed := []byte(c.request.body)
			changed[len(changed)-2] ^= 1
			if _, err := c.sender.Open(c.request.header, changed, c.request.now); !errors.Is(err, webhook.ErrSignature) {
				t.Errorf("a body with one bit changed: %v", err)
			}
		})
	}
}

func TestWhileSecretsAreRotatedBothCount(t *testing.T) {
	other := "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 32))
	for _, c := range []struct {
		name    string
		sender  webhook.Sender
		request request
	}{
		{"GitHub, the second secret", webhook.GitHub{Secrets: []string{"new", githubSecret}}, githubVector()},
		{"Stripe, the second secret", webhook.Stripe{Secrets: []string{"whsec_new", stripeSecret}}, stripeVector("t=1614556800,v1=" + stripeSigned)},
		{"Stripe, signed by both, ours is the second", webhook.Stripe{Secrets: []string{stripeOlderSecret}},
			stripeVector("t=1614556800,v1=" + stripeSigned + ",v1=" + stripeOlderSigned + ",v0=" + stripeSigned)},
		{"Standard Webhooks, the second secret", webhook.StandardWebhooks{Secrets: []string{other, standardSecret}}, standardVector(standardSigned)},
		{"Standard Webhooks, signed by both, ours is the second", webhook.StandardWebhooks{Secrets: []string{standardSecret}},
			standardVector("v1,AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA= v2,future " + standardSigned)},
	} {
		if _, err := c.sender.Open(c.request.header, []byte(c.request.body), c.request.now); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestSignaturesThatAreNoneAreRefused(t *testing.T) {
	github, stripe := webhook.GitHub{Secrets: []string{githubSecret}}, webhook.Stripe{Secrets: []string{stripeSecret}}
	standard := webhook.StandardWebhooks{Secrets: []string{standardSecret}}
	hub := func(values ...string) request {
		r := githubVector()
		r.header["X-Hub-Signature-256"] = values
		return r
	}
	dotted := standardVector(standardSigned)
	dotted.header.Set("webhook-id", standardID+".1")
	late := standardVector(standardSigned)
	late.header.Set("webhook-timestamp", "1614265331")
	for _, c := range []struct {
		name    string
		sender  webhook.Sender
		request request
	}{
		{"GitHub: none", github, hub()},
		{"GitHub: empty", github, hub("")},
		{"GitHub: by SHA-1", github, hub("sha1=757107ea0eb2509fc211221cce984b8a37570b6d")},
		{"GitHub: without its scheme", github, hub(githubSigned[len("sha256="):])},
		{"GitHub: one digit short", github, hub(githubSigned[:len(githubSigned)-1])},
		{"GitHub: only its first half", github, hub(githubSigned[:len("sha256=")+32])},
		{"GitHub: a space after it", github, hub(githubSigned + " ")},
		{"GitHub: twice, and one is ours", github, hub(githubSigned, "sha256="+stripeSigned)},
		{"GitHub: another secret", webhook.GitHub{Secrets: []string{"another"}}, githubVector()},
		{"Stripe: none", stripe, request{header(), stripeBody, stripeNow}},
		{"Stripe: no time", stripe, stripeVector("v1=" + stripeSigned)},
		{"Stripe: two times", stripe, stripeVector("t=1614556800,t=1614556801,v1=" + stripeSigned)},
		{"Stripe: a time that is none", stripe, stripeVector("t=+1614556800,v1=" + stripeSigned)},
		{"Stripe: another time than was signed", stripe, stripeVector("t=1614556801,v1=" + stripeSigned)},
		{"Stripe: only v0, which anybody can make", stripe, stripeVector("t=1614556800,v0=" + stripeSigned)},
		{"Stripe: another secret", webhook.Stripe{Secrets: []string{"whsec_other"}}, stripeVector("t=1614556800,v1=" + stripeSigned)},
		{"Standard Webhooks: none", standard, request{header("webhook-id", standardID, "webhook-timestamp", standardTime), standardBody, standardNow}},
		{"Standard Webhooks: without its scheme", standard, standardVector(standardSigned[len("v1,"):])},
		{"Standard Webhooks: of a scheme that there is not", standard, standardVector("v9" + standardSigned[len("v1"):])},
		{"Standard Webhooks: an id with a full stop", standard, dotted},
		{"Standard Webhooks: another time than was signed", standard, late},
	} {
		if _, err := c.sender.Open(c.request.header, []byte(c.request.body), c.request.now); !errors.Is(err, webhook.ErrSignature) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// Id, time and body are signed as one text with full stops between them. Cut at another place, a genuine signature would do for another
// id, under which what was delivered already is new.
func TestASignatureCannotBeCutToAnotherId(t *testing.T) {
	secret, err := base64.StdEncoding.DecodeString(standardSecret[len("whsec_"):])
	if err != nil {
		t.Fatal(err)
	}
	signature := "v1," + base64.StdEncoding.EncodeToString(hmacOf(secret, []byte("msg_1.1614265330.1614265330.rest")))
	sender := webhook.StandardWebhooks{Secrets: []string{standardSecret}}
	open := func(id, body string) error {
		h := header("webhook-id", id, "webhook-timestamp", standardTime, "webhook-signature", signature)
		_, err := sender.Open(h, []byte(body), standardNow)
		return err
	}
	if err := open("msg_1", "1614265330.rest"); err != nil {
		t.Errorf("the genuine one: %v", err)
	}
	if err := open("msg_1.1614265330", "rest"); !errors.Is(err, webhook.ErrSignature) {
		t.Errorf("the one cut from it: %v", err)
	}
}

func TestARecordingOutsideOfTheToleranceIsRefused(t *testing.T) {
	stripe, standard := webhook.Stripe{Secrets: []string{stripeSecret}}, webhook.StandardWebhooks{Secrets: []string{standardSecret}}
	tight := webhook.Stripe{Secrets: []string{stripeSecret}, Tolerance: 10 * time.Second}
	for _, c := range []struct {
		name    string
		sender  webhook.Sender
		request request
		shift   time.Duration
		refused bool
	}{
		{"Stripe, just within", stripe, stripeVector("t=1614556800,v1=" + stripeSigned), 5 * time.Minute, false},
		{"Stripe, just over", stripe, stripeVector("t=1614556800,v1=" + stripeSigned), 5*time.Minute + time.Second, true},
		{"Stripe, a day later", stripe, stripeVector("t=1614556800,v1=" + stripeSigned), 24 * time.Hour, true},
		{"Stripe, from the future", stripe, stripeVector("t=1614556800,v1=" + stripeSigned), -6 * time.Minute, true},
		{"Stripe, a tolerance of our own", tight, stripeVector("t=1614556800,v1=" + stripeSigned), 11 * time.Second, true},
		{"Standard Webhooks, just within", standard, standardVector(standardSigned), -5 * time.Minute, false},
		{"Standard Webhooks, just over", standard, standardVector(standardSigned), 5*time.Minute + time.Second, true},
	} {
		_, err := c.sender.Open(c.request.header, []byte(c.request.body), c.request.now.Add(c.shift))
		if got := errors.Is(err, webhook.ErrTolerance); got != c.refused || !c.refused && err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestAPublicKeyVerifiesAsymmetricSignaturesOnly(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	key := "whpk_" + base64.StdEncoding.EncodeToString(public)
	sender := webhook.StandardWebhooks{Secrets: []string{key}}
	if err := sender.Validate(); err != nil {
		t.Fatal(err)
	}
	message := []byte(standardID + "." + standardTime + "." + standardBody)
	r := standardVector("v1a," + base64.StdEncoding.EncodeToString(ed25519.Sign(private, message)))
	if _, err := sender.Open(r.header, []byte(r.body), r.now); err != nil {
		t.Error(err)
	}
	// Whoever knows the public key must not be able to sign with it as if it were a secret.
	forged := standardVector("v1," + base64.StdEncoding.EncodeToString(hmacOf(public, message)))
	if _, err := sender.Open(forged.header, []byte(forged.body), forged.now); !errors.Is(err, webhook.ErrSignature) {
		t.Errorf("a signature made with the public key: %v", err)
	}
}

func TestASignedDeliveryWithoutAnIdIsMalformed(t *testing.T) {
	for _, name := range []string{"X-GitHub-Delivery", "X-GitHub-Event"} {
		r := githubVector()
		r.header.Del(name)
		if _, err := (webhook.GitHub{Secrets: []string{githubSecret}}).Open(r.header, []byte(r.body), r.now); !errors.Is(err, webhook.ErrMalformed) {
			t.Errorf("GitHub without %s: %v", name, err)
		}
	}
	body := "no JSON"
	r := request{stripeHeader(stripeNow, body), body, stripeNow}
	if _, err := (webhook.Stripe{Secrets: []string{stripeSecret}}).Open(r.header, []byte(r.body), r.now); !errors.Is(err, webhook.ErrMalformed) {
		t.Errorf("Stripe, a body that is no event: %v", err)
	}
}

func TestARedeliveryWrittenAnewIsTheSameDelivery(t *testing.T) {
	stripe := webhook.Stripe{Secrets: []string{stripeSecret}}
	open := func(body string) webhook.Delivery {
		t.Helper()
		d, err := stripe.Open(stripeHeader(stripeNow, body), []byte(body), stripeNow)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	first := open(`{"id":"evt_1","type":"charge.succeeded","pending_webhooks":2,"data":{"amount":5}}`)
	again := open(`{"type": "charge.succeeded", "id": "evt_1", "data": {"amount": 5}, "pending_webhooks": 0}`)
	other := open(`{"id":"evt_1","type":"charge.succeeded","pending_webhooks":2,"data":{"amount":6}}`)
	if !first.Fingerprint.Equal(again.Fingerprint) {
		t.Error("the count of endpoints that have not answered, and white space, made another delivery of it")
	}
	if first.Fingerprint.Equal(other.Fingerprint) {
		t.Error("another amount is the same delivery")
	}

	// GitHub does not sign the type: with another one the same body is another delivery.
	github, r := webhook.GitHub{Secrets: []string{githubSecret}}, githubVector()
	push, err := github.Open(r.header, []byte(r.body), r.now)
	if err != nil {
		t.Fatal(err)
	}
	r.header.Set("X-GitHub-Event", "release")
	release, err := github.Open(r.header, []byte(r.body), r.now)
	if err != nil || push.Fingerprint.Equal(release.Fingerprint) {
		t.Errorf("another type is the same delivery: %v", err)
	}
}

func TestSendersThatAnybodyCouldSignForAreRefused(t *testing.T) {
	short := "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 15))
	for name, sender := range map[string]webhook.Sender{
		"GitHub without a secret":             webhook.GitHub{},
		"GitHub with an empty one":            webhook.GitHub{Secrets: []string{"a", ""}},
		"Stripe without a secret":             webhook.Stripe{},
		"Stripe with a negative tolerance":    webhook.Stripe{Secrets: []string{"a"}, Tolerance: -1},
		"Stripe with a tolerance of two days": webhook.Stripe{Secrets: []string{"a"}, Tolerance: 48 * time.Hour},
		"Standard Webhooks without a secret":  webhook.StandardWebhooks{},
		"a secret that is not base64":         webhook.StandardWebhooks{Secrets: []string{"whsec_not base64!"}},
		"a secret of 15 bytes":                webhook.StandardWebhooks{Secrets: []string{short}},
		"a public key of another length":      webhook.StandardWebhooks{Secrets: []string{"whpk_" + short[len("whsec_"):]}},
	} {
		if sender.Validate() == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}
