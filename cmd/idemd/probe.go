package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

const probeHelp = `Do once what callers do all the time, for monitoring: begin an intent, send the Begin again, complete it, begin it as a retry, begin it with another
request. Each step must come to what is promised.

It uses tenant idemd-probe and a new key each time. The first probe of a ledger gives that tenant a policy under which an entry goes with the first
sweep after a minute, without a tombstone, and waits until every daemon follows it; that needs an operator's rights. Every other probe takes five
calls, and nothing of it stays.

Exit codes: 0 it works; 1 a step failed, was wrong, or all of them took longer than --deadline; 2 the command line is wrong; 3 no daemon answers.`

const (
	probeTenant    = "idemd-probe"
	probeOperation = "probe"
	probeRetention = time.Minute
	probeLease     = time.Minute
)

func (w *world) probeCommand() *cobra.Command {
	deadline := durationFlag(5 * time.Second)
	cmd := &cobra.Command{Use: "probe", Short: "Say by the exit code whether the ledger does what it is for", Long: probeHelp, GroupID: groupDaemon, Args: exactArgs()}
	t := addTarget(cmd.Flags())
	cmd.Flags().Var(&deadline, "deadline", "how long all steps together may take")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := w.connect(cmd.Context(), t)
		if err != nil {
			return err
		}
		defer c.close()
		if err := w.prepareProbe(cmd.Context(), c); err != nil {
			return fmt.Errorf("preparing tenant %s: %w", probeTenant, err)
		}
		p := &probe{client: c, Steps: []probeStep{}}
		err = p.run(cmd.Context(), time.Duration(deadline))
		if err != nil {
			p.Fault = describe(err)
		}
		p.OK = err == nil
		if t.json() {
			if printErr := printJSON(w.stdout, p); printErr != nil {
				return printErr
			}
			return err
		}
		for _, s := range p.Steps {
			w.stdout.printf("%-10s %s\n", s.Name, seconds(s.Seconds))
		}
		if err == nil {
			w.stdout.printf("it works: %s in all\n", seconds(p.Seconds))
		}
		return err
	}
	return cmd
}

// prepareProbe sees to it that entries of the probe do not stay. A policy that somebody else gave its tenant is left as it is.
func (w *world) prepareProbe(ctx context.Context, c *client) error {
	_, err := within(ctx, c, func(ctx context.Context, c *client) (*idemv1.GetPolicyResponse, error) {
		return c.GetPolicy(ctx, &idemv1.GetPolicyRequest{Tenant: probeTenant, Operation: "*"})
	})
	if status.Code(err) != codes.NotFound {
		return err
	}
	return w.putScratchPolicy(ctx, c, scratchPolicy(probeTenant, probeLease, probeRetention))
}

// probe is one run of the canary, and what -o json prints of it.
type probe struct {
	client *client
	begin  *idemv1.BeginRequest

	OK      bool        `json:"ok"`
	Fault   string      `json:"fault"`
	Seconds float64     `json:"seconds"`
	Steps   []probeStep `json:"steps"`
}

// probeStep is a step that was done, and how long it took.
type probeStep struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

func (p *probe) run(ctx context.Context, deadline time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	key := uuid.NewString()
	p.begin = &idemv1.BeginRequest{
		Ref:          &idemv1.EntryRef{Tenant: probeTenant, Operation: probeOperation, Key: key},
		Fingerprints: []*idemv1.Fingerprint{{Algorithm: "probe-1", Hash: []byte(key)}}, Holder: "idemd-probe",
	}
	var claim *idemv1.Claim
	answer := &idemv1.Response{Body: []byte(key), ContentType: "text/plain"}
	begun := time.Now()
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"begin", func() (err error) {
			claim, err = p.granted(ctx, uuid.NewString())
			return err
		}},
		{"resend", func() error {
			again, err := p.granted(ctx, p.begin.GetAttemptId())
			if err == nil && !bytes.Equal(again.GetClaimToken(), claim.GetClaimToken()) {
				return errors.New("a Begin that was sent again was told another claim")
			}
			return err
		}},
		{"complete", func() error {
			_, err := p.client.Complete(ctx, &idemv1.CompleteRequest{Ref: p.begin.GetRef(), ClaimToken: claim.GetClaimToken(), Response: answer})
			return err
		}},
		{"replay", func() error {
			resp, err := p.beginAs(ctx, uuid.NewString())
			if got := resp.GetCompleted(); err == nil && (!got.GetReplayed() || !bytes.Equal(got.GetResponse().GetBody(), answer.GetBody())) {
				return fmt.Errorf("a retry was not told the answer: %v", resp)
			}
			return err
		}},
		{"mismatch", func() error {
			p.begin.Fingerprints[0].Hash = bytes.Repeat([]byte{1}, 32)
			_, err := p.beginAs(ctx, uuid.NewString())
			if s, ok := status.FromError(err); ok && refusalReason(s) == "KEY_REUSED" {
				return nil
			}
			if err == nil {
				err = errors.New("another request under the same key was not refused")
			}
			return err
		}},
	} {
		stepBegun := time.Now()
		if err := step.do(); err != nil {
			// A call can be told that its time is over a moment before its context ends.
			if ctx.Err() != nil || status.Code(err) == codes.DeadlineExceeded {
				return fmt.Errorf("%s: not done within --deadline %s", step.name, formatDuration(deadline))
			}
			err = called(err, p.client.target.addr)
			return &exitError{code: exitCode(err), err: fmt.Errorf("%s: %s", step.name, describe(err))}
		}
		p.Steps = append(p.Steps, probeStep{step.name, time.Since(stepBegun).Seconds()})
		p.Seconds = time.Since(begun).Seconds()
	}
	return nil
}

func (p *probe) beginAs(ctx context.Context, attemptID string) (*idemv1.BeginResponse, error) {
	p.begin.AttemptId = attemptID
	return p.client.Begin(ctx, p.begin)
}

func (p *probe) granted(ctx context.Context, attemptID string) (*idemv1.Claim, error) {
	resp, err := p.beginAs(ctx, attemptID)
	if err == nil && resp.GetGranted().GetAttempt() != 1 {
		return nil, fmt.Errorf("a new key was not granted as attempt 1: %v", resp)
	}
	return resp.GetGranted(), err
}
