package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/idemd/idemd/clientlib"
)

const execHelp = `Run a command unless it was run before under the same key. The first one runs it, shows its output as it comes, and has the ledger keep
output and exit code. Every other one, on any machine, now or later, prints what was kept and exits as the first one did.

What makes it the same is --operation, --key and --tenant. The command and its arguments are its fingerprint: the same key with another command
is refused. What the command reads (files, standard input, environment) does not count unless a --fingerprint- flag says so.

The command finds in its environment IDEM_OPERATION, IDEM_KEY, IDEM_ATTEMPT, IDEM_FENCE and, where nobody knows whether an earlier attempt
did it, IDEM_PREVIOUS_ABANDONED=true.

Exit codes: the command's own, or 128+n where signal n ended it; 126, 127 it could not be started. Where idemd did not run it: 120 somebody
else is at it; 121 an earlier attempt is in doubt; 122 the ledger cannot be reached, or a signal came first; 123 the key was used with another
command; 124 refused for another reason; 125 the command line is wrong. docs/exec.md says more.`

// execFlags are the arguments of one exec.
type execFlags struct {
	ref               clientlib.Ref
	lease, wait       durationFlag
	settleTimeout     durationFlag
	onFailure         choice
	onAbandoned       choice
	maxOutput         int64
	quiet             bool
	fingerprintFiles  []string
	fingerprintEnv    []string
	fingerprintStdin  bool
	fingerprintFolder bool
}

// Words of --on-failure and --on-abandoned.
const (
	onFailureUnknown  = "unknown"
	onFailureRetry    = "retry"
	onFailureFinal    = "final"
	onAbandonedRefuse = "refuse"
	onAbandonedRerun  = "rerun"
)

// maxKeptOutput is the most that any policy can keep of an answer, in bytes.
const maxKeptOutput = 8 << 20

func (w *world) execCommand() *cobra.Command {
	f := execFlags{
		settleTimeout: durationFlag(time.Minute),
		onFailure:     choice{value: onFailureUnknown, words: []string{onFailureUnknown, onFailureRetry, onFailureFinal}},
		onAbandoned:   choice{value: onAbandonedRefuse, words: []string{onAbandonedRefuse, onAbandonedRerun}},
	}
	cmd := &cobra.Command{
		Use: "exec --operation NAME --key KEY [flags] -- COMMAND [ARGUMENT…]", Short: "Run a command once per key", Long: execHelp,
		Example: "  idemd exec --operation invoice-run --key 2026-11 --on-failure final -- ./make-invoices --month 2026-11\n" +
			"  idemd exec --operation import --key \"$BATCH\" --fingerprint-file batch.csv --wait 10m -- psql -f import.sql",
		GroupID: groupEntries, DisableFlagsInUseLine: true,
		// The first word that is no flag begins the command, whose own flags are not ours.
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("output") {
				return execUsage("exec prints what its command prints: there is no --output")
			}
			return f.validate(args)
		},
	}
	fs := cmd.Flags()
	fs.SetInterspersed(false)
	fs.StringVar(&f.ref.Operation, "operation", "", "what kind of work it is, as `name`. Required")
	fs.StringVar(&f.ref.Key, "key", "", "which piece of work it is: the same `key` is the same work. Required")
	fs.Var(&f.onAbandoned, "on-abandoned", "what to do where an earlier attempt died or ended unknown: refuse, or rerun, which may do it twice")
	fs.Var(&f.onFailure, "on-failure", "what an exit code other than 0 says: unknown, nobody knows what was done; retry, nothing was done; final, do not try again")
	addDuration(fs, &f.wait, "wait", "how long to wait for another that is at it. Default: not at all")
	addDuration(fs, &f.lease, "lease", "how long the work counts as being done after this process has died. Default: the policy's")
	fs.Int64Var(&f.maxOutput, "max-output", 1<<20, "how many `bytes` of output are kept; more is shown, but not kept. Policies keep 1 MiB by default")
	fs.Var(&f.settleTimeout, "settle-timeout", "how long to go on telling the ledger what came of it, where it went away meanwhile")
	fs.StringArrayVar(&f.fingerprintFiles, "fingerprint-file", nil, "what is in this `file` counts too. Can be repeated")
	fs.StringArrayVar(&f.fingerprintEnv, "fingerprint-env", nil, "the `variable` counts too. Can be repeated")
	fs.BoolVar(&f.fingerprintStdin, "fingerprint-stdin", false, "standard input counts too: it is read first, to its end, and then given to the command")
	fs.BoolVar(&f.fingerprintFolder, "fingerprint-dir", false, "the current directory counts too")
	fs.BoolVar(&f.quiet, "quiet", false, "do not say that an output is a replay, or what a failure means for the next run")
	t := addTarget(fs)
	_ = fs.MarkHidden("output") // what is printed is the command's
	addTenant(fs, &f.ref.Tenant)
	// Scripts tell the command's exit code from ours, so nothing of ours ends with 1, 2 or 3.
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return execUsage("%w\nidemd: see %s --help", err, cmd.CommandPath())
	})
	cmd.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if err := w.applySources(cmd); err != nil {
			return &exitError{code: execFailed, err: err}
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return w.exec(cmd.Context(), t, f, args) }
	return cmd
}

func (f *execFlags) validate(args []string) error {
	lease, wait := time.Duration(f.lease), time.Duration(f.wait)
	switch {
	case f.ref.Operation == "":
		return execUsage("--operation is required: what kind of work it is, as invoice-run\nidemd: see idemd exec --help")
	case f.ref.Key == "":
		return execUsage("--key is required: which piece of work it is. Take what is the same on every retry, as an order's number; not the time, and not a fresh UUID for each try")
	case len(args) == 0:
		return execUsage("there is no command to run: idemd exec --operation NAME --key KEY -- COMMAND ARGUMENT…")
	case f.maxOutput < 0 || f.maxOutput > maxKeptOutput:
		return execUsage("--max-output must be from 0 to %d bytes", maxKeptOutput)
	case lease != 0 && (lease < time.Second || lease > day):
		return execUsage("--lease must be from 1s to 1d")
	case wait > day:
		return execUsage("--wait must be at most 1d")
	}
	return nil
}

// exec runs one command line once, or tells what came of it before.
func (w *world) exec(ctx context.Context, t *target, f execFlags, args []string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	signals := receiveSignals(cancel)
	defer signals.stop()
	x := &execution{
		w: w, flags: f, args: args, signals: signals, addr: t.addr,
		stdout: &ownOutput{to: w.stdout}, stderr: &ownOutput{to: w.stderr}, output: &recorder{limit: f.maxOutput},
	}
	asked, err := x.fingerprint()
	if err != nil {
		return err
	}
	c, err := w.connectPatiently(ctx, t)
	if err != nil {
		return x.refusal(ctx, err)
	}
	defer c.close()
	ledger, err := clientlib.New(clientlib.Config{
		Conn: c.conn, LedgerTimeout: time.Duration(t.timeout), CloseTimeout: time.Duration(f.settleTimeout),
		// Close is what gives up, so that it can say so.
		SettleLimit: 2*time.Duration(f.settleTimeout) + time.Minute, Logger: x.complaints.logger(),
	})
	if err != nil {
		return execUsage("%w", err)
	}
	options := clientlib.Options{
		Abandoned: clientlib.Refuse(), Lease: time.Duration(f.lease), Wait: time.Duration(f.wait),
	}
	if f.onAbandoned.value == onAbandonedRerun {
		options.Abandoned = clientlib.Rerun()
	}
	result, err := ledger.Do(ctx, f.ref, asked, x.work, options)
	return x.finish(ctx, ledger, result, err)
}

// connectPatiently goes on trying for as long as --timeout says, so that a job outlives a restart of the daemon.
func (w *world) connectPatiently(ctx context.Context, t *target) (*client, error) {
	end := time.Now().Add(time.Duration(t.timeout))
	for {
		c, err := w.connect(ctx, t)
		var exit *exitError
		if err == nil || !errors.As(err, &exit) || exit.code != exitUnreachable || time.Until(end) < connectPause {
			return c, err
		}
		timer := time.NewTimer(connectPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, err
		}
	}
}

const connectPause = 200 * time.Millisecond
