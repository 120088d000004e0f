package webhook_test

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/idemd/idemd/clientlib/idemtest"
	"github.com/idemd/idemd/clientlib/webhook"
)

// example is one of GitHub's payloads, as Octokit collects them.
type example struct{ event, id, body string }

func githubExamples(t *testing.T) []example {
	t.Helper()
	const folder = "examples/node_modules/@octokit/webhooks-examples"
	files, err := filepath.Glob(folder + "/*/index.json")
	if err != nil || len(files) == 0 {
		t.Skip("SKIPPED, NOT TESTED ON GITHUB'S PAYLOADS: `npm ci --prefix clientlib/webhook/examples` would run it")
	}
	var all []example
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var events []struct {
			Name     string            `json:"name"`
			Examples []json.RawMessage `json:"examples"`
		}
		if err := json.Unmarshal(text, &events); err != nil {
			t.Fatal(err)
		}
		for _, event := range events {
			for _, body := range event.Examples {
				var compact bytes.Buffer // as GitHub sends it
				if err := json.Compact(&compact, body); err != nil {
					t.Fatal(err)
				}
				all = append(all, example{event.Name, uuid.NewString(), compact.String()})
			}
		}
	}
	return all
}

// GitHub's own payloads come in random order, each up to four times, from several connections, while a second process works off too, and
// the first one dies half-way.
func TestGitHubsPayloadsInRandomOrderWithRepeatsAreHandledOnceEach(t *testing.T) {
	examples := githubExamples(t)
	if testing.Short() {
		examples = examples[:100]
	}
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	var deliveries []example
	for _, e := range examples {
		for range 1 + random.IntN(4) {
			deliveries = append(deliveries, e)
		}
	}
	random.Shuffle(len(deliveries), func(i, j int) { deliveries[i], deliveries[j] = deliveries[j], deliveries[i] })

	ledger := idemtest.New(t)
	var mu sync.Mutex
	handled, left := map[string]int{}, len(examples)
	all := make(chan struct{})
	newProcess := func() *endpoint {
		return newEndpoint(t, ledger, func(c *webhook.Config, _ *webhook.LedgerConfig) {
			c.Name, c.Sender, c.Workers = "github", webhook.GitHub{Secrets: []string{"next", githubSecret}}, 8
			c.Rescan = time.Second
			c.Hooks = webhook.Hooks{}
			c.Handler = func(_ context.Context, d webhook.Delivery) error {
				mu.Lock()
				defer mu.Unlock()
				handled[d.ID+" "+d.Type+" "+string(d.Body)]++
				if left--; left == 0 {
					close(all)
				}
				return nil
			}
		})
	}
	first, second := newProcess(), newProcess()
	stopFirst := first.run()
	second.run()
	work := make(chan example)
	var senders sync.WaitGroup
	for range 8 {
		senders.Go(func() {
			for e := range work {
				sendUntilTaken(t, []*endpoint{first, second}[random64(e.id)%2], e)
			}
		})
	}
	for i, e := range deliveries {
		if i == len(deliveries)/2 {
			stopFirst() // it goes on taking deliveries, and works none of them off any more
		}
		work <- e
	}
	close(work)
	senders.Wait()
	select {
	case <-all:
	case <-time.After(60 * time.Second):
	}
	mu.Lock()
	defer mu.Unlock()
	for _, e := range examples {
		if n := handled[e.id+" "+e.event+" "+e.body]; n != 1 {
			t.Errorf("seed %d: %s %s was handled %d times", seed, e.event, e.id, n)
		}
	}
	if len(handled) != len(examples) {
		t.Errorf("seed %d: %d payloads, %d were handled", seed, len(examples), len(handled))
	}
	t.Logf("%d payloads in %d deliveries", len(examples), len(deliveries))
}

func random64(id string) int { return int(id[0]) }

// sendUntilTaken does what a sender does: again, while it is not told 2xx.
func sendUntilTaken(t *testing.T, e *endpoint, delivered example) {
	for range 50 {
		w := e.post(githubHeader(delivered.id, delivered.event, delivered.body), delivered.body)
		if w.Code/100 == 2 {
			return
		}
		if w.Code != http.StatusServiceUnavailable {
			t.Errorf("%s: %d %s", delivered.event, w.Code, w.Body)
			return
		}
	}
	t.Errorf("%s was not taken in fifty tries", delivered.event)
}
