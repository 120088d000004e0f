package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// resolveFlags are what all three ways of resolving have in common.
type resolveFlags struct {
	tenant  string
	attempt int32
	reason  string
	force   bool
}

func (f *resolveFlags) register(fs *pflag.FlagSet) {
	addTenant(fs, &f.tenant)
	fs.Int32Var(&f.attempt, "attempt", 0, "the latest attempt that you have seen, as lookup shows it. Left out, the entry is shown and you are asked, on a "+
		"terminal")
	fs.StringVar(&f.reason, "reason", "", "why, for those who look later. Required. It is stored and logged: no secrets")
	fs.BoolVar(&f.force, "force", false, "do it although somebody is at work on it: the holder is told that its claim is lost, and what it does goes on until then")
}

func (w *world) resolveCommand() *cobra.Command {
	return group("resolve", "Settle an entry that nobody else settles, or let it run once more",
		"Settle an entry by your word. Find out first whether the effect happened: in the system that would have had it, not here. The same command "+
			"again changes nothing.", groupEntries,
		w.resolveCompleteCommand(), w.resolveFailCommand(), w.resolveReleaseCommand())
}

func (w *world) resolveCompleteCommand() *cobra.Command {
	var r idemv1.Response
	var body, bodyFile string
	cmd := w.resolution("complete", "Say that it is done, and what every retry is to be answered",
		"  idemd resolve complete shop.v1.PaymentService/Charge order-42 --attempt 2 --code 0 --resource charge/ch_42 \\\n"+
			"    --body-file answer.json --content-type application/json --reason 'found in the provider, INC-17'",
		func(request *idemv1.ResolveEntryRequest) error {
			if bodyFile != "" {
				content, err := w.readInput(bodyFile)
				if err != nil {
					return usage("--body-file: %w", err)
				}
				r.Body = content
			} else {
				r.Body = []byte(body)
			}
			request.Resolution = &idemv1.ResolveEntryRequest_Complete{Complete: &r}
			return nil
		})
	fs := cmd.Flags()
	fs.Int32Var(&r.Code, "code", 0, "the application's own code: 0 for gRPC's OK, 200 for HTTP's")
	fs.StringVar(&body, "body", "", "the body of the answer")
	fs.StringVar(&bodyFile, "body-file", "", "`file` with the body of the answer; \"-\": standard input. A guard expects the bytes that the handler would have "+
		"answered: for gRPC the serialised message, not JSON")
	fs.StringVar(&r.ContentType, "content-type", "", "the media type of the body")
	fs.Var(&resourceFlag{&r}, "resource", "what was made, as `type/id`")
	cmd.MarkFlagsMutuallyExclusive("body", "body-file")
	return cmd
}

// resourceFlag reads "charge/ch_42".
type resourceFlag struct{ r *idemv1.Response }

func (f *resourceFlag) String() string {
	if f.r.GetResourceType() == "" {
		return ""
	}
	return f.r.GetResourceType() + "/" + f.r.GetResourceId()
}
func (f *resourceFlag) Type() string { return "type/id" }
func (f *resourceFlag) Set(text string) error {
	kind, id, ok := strings.Cut(text, "/")
	if !ok || kind == "" || id == "" {
		return fmt.Errorf("%q is not of the form type/id", text)
	}
	f.r.ResourceType, f.r.ResourceId = kind, id
	return nil
}

func (w *world) resolveFailCommand() *cobra.Command {
	var code codeFlag
	var message string
	cmd := w.resolution("fail", "Say that it failed for good, and with what every retry is to be answered",
		"  idemd resolve fail shop.v1.PaymentService/Charge order-42 --attempt 2 --code aborted --message 'the provider has no such charge' "+
			"--reason INC-17",
		func(request *idemv1.ResolveEntryRequest) error {
			request.Resolution = &idemv1.ResolveEntryRequest_Fail{Fail: &rpcstatus.Status{Code: int32(code), Message: message}}
			return nil
		})
	cmd.Flags().Var(&code, "code", "the gRPC code: its name, as failed_precondition, or its number. Required")
	cmd.Flags().StringVar(&message, "message", "", "what callers are told")
	_ = cmd.MarkFlagRequired("code")
	_ = cmd.RegisterFlagCompletionFunc("code", cobra.FixedCompletions(codeNames(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// codeFlag reads a gRPC code by name or number.
type codeFlag int32

func codeNames() []string {
	var out []string
	for c := codes.Canceled; c <= codes.Unauthenticated; c++ {
		out = append(out, strings.ToLower(screamingCase(c.String())))
	}
	return out
}

func (c *codeFlag) String() string {
	if *c == 0 {
		return ""
	}
	return strconv.Itoa(int(*c))
}
func (c *codeFlag) Type() string { return "code" }
func (c *codeFlag) Set(text string) error {
	if n, err := strconv.ParseInt(text, 10, 32); err == nil {
		if n == 0 {
			return fmt.Errorf("0 is OK, which is no failure: resolve complete settles with an answer")
		}
		*c = codeFlag(n)
		return nil
	}
	word := strings.NewReplacer("_", "", "-", "", "cancelled", "canceled").Replace(strings.ToLower(text))
	for i, name := range codeNames() {
		if strings.ReplaceAll(name, "_", "") == word {
			*c = codeFlag(i + 1)
			return nil
		}
	}
	return fmt.Errorf("%q is no gRPC code: want a number, or one of %s", text, strings.Join(codeNames(), ", "))
}

func (w *world) resolveReleaseCommand() *cobra.Command {
	return w.resolution("release", "Let the next retry run it once more, whatever policy and cap say",
		"  idemd resolve release shop.v1.PaymentService/Charge order-42 --attempt 2 --reason 'the provider never saw it, INC-17'",
		func(request *idemv1.ResolveEntryRequest) error {
			request.Resolution = &idemv1.ResolveEntryRequest_Release{Release: &idemv1.Release{}}
			return nil
		})
}

// resolution makes one of the three commands.
func (w *world) resolution(word, short, example string, fill func(*idemv1.ResolveEntryRequest) error) *cobra.Command {
	var f resolveFlags
	cmd := &cobra.Command{
		Use: word + " OPERATION KEY", Short: short, Example: example, Args: exactArgs("OPERATION", "KEY"),
	}
	t := addTarget(cmd.Flags())
	f.register(cmd.Flags())
	_ = cmd.MarkFlagRequired("reason")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		request := &idemv1.ResolveEntryRequest{
			Ref:     &idemv1.EntryRef{Tenant: f.tenant, Operation: args[0], Key: args[1]},
			Attempt: f.attempt, Reason: f.reason, Force: f.force,
		}
		if err := fill(request); err != nil {
			return err
		}
		switch {
		case f.attempt < 0:
			return usage("--attempt: must be 1 or more")
		case f.attempt == 0 && !w.asks:
			return usage("--attempt is required where nobody can be asked: it is what makes sure that you decide about what you saw. Take it from\n"+
				"  idemd lookup %s %s -o json | jq .latestAttempt", shellQuote(args[0]), shellQuote(args[1]))
		}
		c, err := w.connect(cmd.Context(), t)
		if err != nil {
			return err
		}
		defer c.close()
		return w.resolve(cmd.Context(), c, word, request)
	}
	return cmd
}

func (w *world) resolve(ctx context.Context, c *client, word string, request *idemv1.ResolveEntryRequest) error {
	if request.GetAttempt() == 0 {
		seen, err := within(ctx, c, func(ctx context.Context, c *client) (*idemv1.Entry, error) { return c.lookup(ctx, request.GetRef()) })
		if err != nil {
			return err
		}
		w.printEntry(w.stderr, seen)
		if !w.confirm(fmt.Sprintf("\n%s it, as of attempt %d? Type %q: ", strings.ToUpper(word[:1])+word[1:], seen.GetLatestAttempt(), word), word) {
			return fmt.Errorf("nothing was done")
		}
		request.Attempt = seen.GetLatestAttempt()
	}
	out, err := within(ctx, c, func(ctx context.Context, c *client) (*idemv1.ResolveEntryResponse, error) {
		return c.ResolveEntry(ctx, request)
	})
	if err != nil {
		return err
	}
	if c.target.json() {
		return printProto(w.stdout, out)
	}
	if out.GetResent() {
		w.stderr.printf("idemd: the same was decided before; nothing was changed\n")
	}
	w.printEntry(w.stdout, out.GetEntry())
	return nil
}

// confirm asks a person to type a word.
func (w *world) confirm(question, word string) bool {
	w.stderr.printf("%s", question)
	line, _ := bufio.NewReader(w.stdin).ReadString('\n')
	return strings.TrimSpace(line) == word
}

// maxInputBytes is more than any answer or policy may have.
const maxInputBytes = 64 << 20

// readInput reads a file, or standard input for "-".
func (w *world) readInput(path string) ([]byte, error) {
	if path == "-" {
		return readAtMost(w.stdin, maxInputBytes)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // only read
	return readAtMost(file, maxInputBytes)
}
