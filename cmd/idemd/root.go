package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const longHelp = `idemd lets any service, in any language, ask: may I do this, has it been done, and what came of it?

"idemd serve" is the daemon; with no flags it keeps its ledger in a directory of its own and listens on this machine only.
The other commands are an operator's: they ask a daemon that runs, at --addr.

Exit codes: 0 done; 1 refused, or it did not work; 2 the command line, the environment or the configuration is wrong; 3 no daemon
answers at the address.`

// usageWidth is where the help breaks its lines.
const usageWidth = 110

// run runs one command line and returns its exit code.
func (w *world) run(ctx context.Context, args []string) int {
	root := w.rootCommand()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil && w.stdout.failed != nil {
		err = fmt.Errorf("printing: %w", w.stdout.failed)
	}
	if err == nil {
		return exitOK
	}
	if saidAlready(err) {
		return exitCode(err)
	}
	w.stderr.printf("idemd: %s\n", describe(err))
	if code := exitCode(err); code != exitFailed || !isCobraError(err) {
		return code
	}
	w.stderr.printf("idemd: see %s --help\n", cmd.CommandPath())
	return exitUsage
}

// isCobraError recognises what cobra itself says of a command line: it has no error type of its own.
func isCobraError(err error) bool {
	for _, start := range []string{"unknown command", "required flag(s)", "if any flags in the group", "at least one of the flags"} {
		if strings.HasPrefix(err.Error(), start) {
			return true
		}
	}
	return false
}

func (w *world) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use: "idemd", Short: "The ledger of what was asked for and what came of it", Long: longHelp,
		SilenceErrors: true, SilenceUsage: true, Version: buildVersion().short(),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Name() == "help" || isCompletion(cmd) {
				return nil
			}
			return w.applySources(cmd)
		},
	}
	root.SetIn(w.stdin)
	root.SetOut(w.stdout)
	root.SetErr(w.stderr)
	root.SetVersionTemplate("idemd {{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("%w\nidemd: see %s --help", err, cmd.CommandPath())
	})
	root.SetUsageTemplate(strings.NewReplacer(
		".LocalFlags.FlagUsages", fmt.Sprintf(".LocalFlags.FlagUsagesWrapped %d", usageWidth),
		".InheritedFlags.FlagUsages", fmt.Sprintf(".InheritedFlags.FlagUsagesWrapped %d", usageWidth),
	).Replace(root.UsageTemplate()))
	root.AddGroup(
		&cobra.Group{ID: groupDaemon, Title: "The daemon:"},
		&cobra.Group{ID: groupEntries, Title: "Entries:"},
		&cobra.Group{ID: groupRules, Title: "Rules and upkeep:"},
	)
	root.AddCommand(w.serveCommand(), w.configCommand(), w.migrateCommand(), w.backupCommand(), w.healthCommand(), w.probeCommand(),
		w.versionCommand())
	root.AddCommand(w.lookupCommand(), w.listCommand(), w.resolveCommand(), w.statsCommand(), w.execCommand())
	root.AddCommand(w.policyCommand(), w.sweepCommand(), w.eraseCommand(), w.benchCommand(), w.ddlCommand())
	inOrder(root)
	return root
}

// inOrder has the help show flags as they were made: what belongs together stands together.
func inOrder(cmd *cobra.Command) {
	cmd.Flags().SortFlags = false
	for _, sub := range cmd.Commands() {
		inOrder(sub)
	}
}

// The groups of commands in the help.
const (
	groupDaemon  = "daemon"
	groupEntries = "entries"
	groupRules   = "rules"
)

func isCompletion(cmd *cobra.Command) bool {
	for c := cmd; c != nil; c = c.Parent() {
		if c.Name() == "completion" || strings.HasPrefix(c.Name(), cobra.ShellCompRequestCmd) {
			return true
		}
	}
	return false
}

// exactArgs names the arguments that a command takes, and refuses others.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		want := "no arguments"
		if len(names) > 0 {
			want = strings.Join(names, " and ")
		}
		return usage("%s wants %s, and got %d\nidemd: see %s --help", commandName(cmd), want, len(args), cmd.CommandPath())
	}
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	message := fmt.Sprintf("there is no command %q", args[0])
	if name := commandName(cmd); name != "" {
		message = name + ": " + message
	}
	var names []string
	for _, sub := range cmd.Commands() {
		names = append(names, sub.Name())
	}
	return usage("%s%s\nidemd: see %s --help", message, didYouMean(args[0], names), cmd.CommandPath())
}

// commandName is what stands after "idemd" in a command line.
func commandName(cmd *cobra.Command) string {
	return strings.TrimPrefix(strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()), " ")
}

// group makes a command that only holds others.
func group(use, short, long, id string, subs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, GroupID: id, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return errors.Join(cmd.Help(), usage("%s wants a command", commandName(cmd)))
		},
	}
	cmd.AddCommand(subs...)
	return cmd
}

// The forms of output.
const (
	formText = "text"
	formJSON = "json"
)

// addOutput adds -o.
func addOutput(fs *pflag.FlagSet) *choice {
	out := &choice{value: formText, words: []string{formText, formJSON}}
	fs.VarP(out, "output", "o", "how to print: for people, or for scripts")
	markSettings(fs, "output")
	return out
}
