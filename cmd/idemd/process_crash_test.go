package main

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// intent is one piece of work, and all that was acknowledged of it.
type intent struct {
	key       string
	attemptID string
	token     []byte // set: a grant was acknowledged
	fence     int64
	completed bool // an answer was acknowledged
}

func (i *intent) beginRequest() *idemv1.BeginRequest {
	return &idemv1.BeginRequest{
		Ref: ref(i.key), AttemptId: i.attemptID, Holder: "worker",
		Fingerprints: []*idemv1.Fingerprint{{Algorithm: "test", Hash: bytes.Repeat([]byte{1}, 32)}},
	}
}

func (i *intent) completeRequest() *idemv1.CompleteRequest {
	return &idemv1.CompleteRequest{Ref: ref(i.key), ClaimToken: i.token, Response: &idemv1.Response{Body: []byte("answer of " + i.key)}}
}

// load begins and completes intents from several clients until the daemon goes away, and leaves every third claim open. After enough
// acknowledgements it calls enough, once.
func load(ctx context.Context, p *process, round, clients, acknowledgements int, enough func()) []*intent {
	var mu sync.Mutex
	var all []*intent
	var acknowledged atomic.Int64
	var once sync.Once
	count := func() {
		if acknowledged.Add(1) >= int64(acknowledgements) {
			once.Do(enough)
		}
	}
	var wg sync.WaitGroup
	for c := range clients {
		client := p.connect()
		wg.Go(func() {
			for n := 0; ; n++ {
				i := &intent{key: fmt.Sprintf("round %d client %d intent %d", round, c, n), attemptID: uuid.NewString()}
				mu.Lock()
				all = append(all, i)
				mu.Unlock()
				out, err := client.Begin(ctx, i.beginRequest())
				if err != nil {
					return
				}
				i.token, i.fence = out.GetGranted().GetClaimToken(), out.GetGranted().GetFence()
				count()
				if n%3 == 2 {
					continue
				}
				if _, err := client.Complete(ctx, i.completeRequest()); err != nil {
					return
				}
				i.completed = true
				count()
			}
		})
	}
	wg.Wait()
	return all
}

// check holds what the daemon knows against what was acknowledged, and brings every open intent to its end.
func (i *intent) check(t *testing.T, client idemv1.LedgerServiceClient) {
	t.Helper()
	out, err := client.Begin(t.Context(), i.beginRequest())
	if err != nil {
		t.Errorf("%s: the same Begin again: %v", i.key, err)
		return
	}
	switch granted := out.GetGranted(); {
	case granted == nil && out.GetCompleted() == nil:
		t.Errorf("%s: the same Begin again is answered %v", i.key, out)
	case granted == nil:
		if body := string(out.GetCompleted().GetResponse().GetBody()); body != "answer of "+i.key {
			t.Errorf("%s: the answer is %q", i.key, body)
		}
		i.completed = true
	case i.completed:
		t.Errorf("%s: its answer was acknowledged and is lost", i.key)
	case i.token != nil && (!granted.GetResumed() || !bytes.Equal(granted.GetClaimToken(), i.token) || granted.GetFence() != i.fence):
		t.Errorf("%s: its grant was acknowledged, and the same Begin gets another: %v", i.key, granted)
	case granted.GetAttempt() != 1:
		t.Errorf("%s: attempt %d: something was half there", i.key, granted.GetAttempt())
	default:
		i.token, i.fence = granted.GetClaimToken(), granted.GetFence()
		if _, err := client.Complete(t.Context(), i.completeRequest()); err != nil {
			t.Errorf("%s: completing after the crash: %v", i.key, err)
		}
		i.completed = true
	}
}

// TestNothingAcknowledgedIsLostWhenTheDaemonIsKilled is G2 on the real program: load from several clients, kill -9 in the middle, start again.
// Every answer that was acknowledged is there, every claim that was acknowledged is resumed by its attempt id with the token it had, and what was
// not acknowledged is there whole or not at all. Several rounds on one directory: nothing of earlier rounds goes either.
func TestNothingAcknowledgedIsLostWhenTheDaemonIsKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var all []*intent
	for round := range 4 {
		p := startDaemon(t, "--data-dir", dir)
		client := p.connect()
		for _, i := range all {
			i.check(t, client)
		}
		if t.Failed() {
			t.Fatalf("round %d", round)
		}
		all = append(all, load(t.Context(), p, round, 8, 200+150*round, func() { _ = p.cmd.Process.Kill() })...)
		p.kill()
	}
	p := startDaemon(t, "--data-dir", dir)
	client := p.connect()
	open := 0
	for _, i := range all {
		if !i.completed {
			open++
		}
		i.check(t, client)
	}
	if open == 0 || open == len(all) {
		t.Errorf("of %d intents %d were open at the last crash: that tests nothing", len(all), open)
	}
}
