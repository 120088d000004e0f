package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

func (w *world) policyCommand() *cobra.Command {
	return group("policy", "Show and set the rules for a tenant's operation",
		"Rules for a tenant's operation; \"*\" as OPERATION or --tenant stands for every one. For each entry one policy counts, the first that there is of "+
			"(tenant, operation), (tenant, *), (*, operation), (*, *), the built-in one. They are not merged.", groupRules,
		w.policyGetCommand(), w.policySetCommand(), w.policyListCommand(), w.policyDeleteCommand(), w.policyApplyCommand())
}

func (w *world) policyGetCommand() *cobra.Command {
	var request idemv1.GetPolicyRequest
	cmd := &cobra.Command{
		Use: "get OPERATION", Short: "Show the policy that is stored for exactly this tenant and operation, or the one that counts",
		Args: exactArgs("OPERATION"),
	}
	t := addTarget(cmd.Flags())
	addTenant(cmd.Flags(), &request.Tenant)
	cmd.Flags().BoolVar(&request.Effective, "effective", false, "show the one that counts, wherever it is stored")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		request.Operation = args[0]
		out, err := ask(cmd.Context(), w, t, func(ctx context.Context, c *client) (*idemv1.GetPolicyResponse, error) {
			return c.GetPolicy(ctx, &request)
		})
		if err != nil {
			return err
		}
		if t.json() {
			return printProto(w.stdout, out)
		}
		w.printPolicy(w.stdout, out.GetPolicy(), sourceWords(out.GetSource()))
		return nil
	}
	return cmd
}

func sourceWords(source idemv1.PolicySource) string {
	if source == idemv1.PolicySource_POLICY_SOURCE_BUILT_IN {
		return "built in: nothing that counts is stored"
	}
	return ""
}

func (w *world) policyListCommand() *cobra.Command {
	var tenant string
	cmd := &cobra.Command{
		Use: "list", Short: "List the stored policies", Args: exactArgs(),
		Long: "List the stored policies, by tenant and operation. With -o json there is one on each line.",
	}
	t := addTarget(cmd.Flags())
	// Not the setting --tenant: a list that leaves out what counts for everybody would mislead.
	cmd.Flags().StringVar(&tenant, "of-tenant", "", "only those stored for this tenant; \"*\": those stored for every tenant")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := w.connect(cmd.Context(), t)
		if err != nil {
			return err
		}
		defer c.close()
		return w.listPolicies(cmd.Context(), c, tenant)
	}
	return cmd
}

func (w *world) listPolicies(ctx context.Context, c *client, tenant string) error {
	request := &idemv1.ListPoliciesRequest{Tenant: tenant, PageSize: 1000}
	var rows [][]string
	for more := true; more; more = request.GetPageToken() != "" {
		page, err := within(ctx, c, func(ctx context.Context, c *client) (*idemv1.ListPoliciesResponse, error) {
			return c.ListPolicies(ctx, request)
		})
		if err != nil {
			return err
		}
		for _, p := range page.GetPolicies() {
			if c.target.json() {
				if err := printProto(w.stdout, p); err != nil {
					return err
				}
				continue
			}
			rows = append(rows, []string{
				oneLine(p.GetTenant()), oneLine(p.GetOperation()), formatDuration(p.GetRetention().AsDuration()), horizonWord(p.GetRetentionHorizon()),
				tombstoneText(p), orDefaultText(p.GetLease(), "60s"), onAbandonedText(p),
			})
		}
		request.PageToken = page.GetNextPageToken()
	}
	switch {
	case c.target.json():
	case len(rows) == 0:
		w.stderr.printf("no policies: the built-in one counts everywhere\n")
	default:
		table(w.stdout, []string{"TENANT", "OPERATION", "RETENTION", "DECIDED BY", "TOMBSTONE", "LEASE", "ABANDONED"}, rows)
	}
	return nil
}

func (w *world) policyDeleteCommand() *cobra.Command {
	var request idemv1.DeletePolicyRequest
	cmd := &cobra.Command{
		Use: "delete OPERATION", Short: "Remove a policy: the next one in the order of lookup counts from then on", Args: exactArgs("OPERATION"),
	}
	t := addTarget(cmd.Flags())
	addTenant(cmd.Flags(), &request.Tenant)
	cmd.Flags().StringVar(&request.Etag, "etag", "", "remove it only if it still has this etag")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		request.Operation = args[0]
		out, err := ask(cmd.Context(), w, t, func(ctx context.Context, c *client) (*idemv1.DeletePolicyResponse, error) {
			return c.DeletePolicy(ctx, &request)
		})
		if err != nil {
			return err
		}
		if t.json() {
			return printProto(w.stdout, out)
		}
		w.stdout.printf("deleted; no daemon follows it from %s\n", out.GetEffectiveTime().AsTime().In(w.zone).Format(timeLayout))
		return nil
	}
	return cmd
}

func (w *world) policyApplyCommand() *cobra.Command {
	var request idemv1.ApplyPolicyRequest
	cmd := &cobra.Command{
		Use: "apply OPERATION", Short: "Bring standing entries under a stored policy", Args: exactArgs("OPERATION"),
		Long: "Copy the terms of a stored policy to the standing entries for which it counts. Without it a policy counts for new grants and settlements only. " +
			"It never shortens a promise, and can be run again after a break.",
	}
	t := addTarget(cmd.Flags())
	addTenant(cmd.Flags(), &request.Tenant)
	cmd.Flags().BoolVar(&request.DryRun, "dry-run", false, "only count what would change")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		request.Operation = args[0]
		c, err := w.connect(cmd.Context(), t)
		if err != nil {
			return err
		}
		defer c.close()
		s, err := c.ApplyPolicy(cmd.Context(), &request)
		return follow(w, c, s, err, nil, func(r *idemv1.ApplyPolicyResponse) string {
			text := fmt.Sprintf("examined %d, changed %d", r.GetExaminedCount(), r.GetChangedCount())
			if request.GetDryRun() {
				text = "dry run: " + text
			}
			return text
		})
	}
	return cmd
}

func (w *world) policySetCommand() *cobra.Command {
	var tenant, file, etag string
	var replace bool
	var f policyFlags
	cmd := &cobra.Command{
		Use: "set OPERATION [--tenant T] | set --file FILE", Short: "Write a policy",
		Long: "Write a policy. With flags, what they do not name stays as it is stored; with --replace it goes back to its default. With --file the policy is " +
			"what the file says and nothing else. Standing entries are not changed: see idemd policy apply.",
		Example: "  idemd policy set shop.v1.PaymentService/Charge --client-retry 1d --settlement 90d --on-abandoned hold\n" +
			"  idemd policy set --file charge.yaml",
		Args: cobra.MaximumNArgs(1),
	}
	t := addTarget(cmd.Flags())
	addTenant(cmd.Flags(), &tenant)
	f.register(cmd.Flags())
	cmd.Flags().StringVar(&file, "file", "", "YAML or JSON `file` with the policy, tenant and operation included; \"-\": standard input")
	cmd.Flags().BoolVar(&replace, "replace", false, "start from the defaults and not from what is stored")
	cmd.Flags().StringVar(&etag, "etag", "", "write it only if the stored one still has this etag")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if (file == "") == (len(args) == 0) {
			return usage("policy set wants an OPERATION or a --file, and one of them only")
		}
		var policy *idemv1.Policy
		if file != "" {
			if f.changed(cmd.Flags()) || replace || cmd.Flags().Changed("tenant") {
				return usage("with --file the policy is what the file says: leave the flags that set parts of it out")
			}
			content, err := w.readInput(file)
			if err != nil {
				return usage("--file: %w", err)
			}
			if policy, err = readPolicy(file, content); err != nil {
				return usage("--file: %w", err)
			}
		}
		c, err := w.connect(cmd.Context(), t)
		if err != nil {
			return err
		}
		defer c.close()
		if policy == nil {
			if policy, err = c.policyToChange(cmd.Context(), tenant, args[0], replace); err != nil {
				return err
			}
			f.apply(cmd.Flags(), policy)
		}
		if etag != "" {
			policy.Etag = etag
		}
		return w.putPolicy(cmd.Context(), c, policy)
	}
	return cmd
}

// policyToChange is the stored policy, with its etag, so that nobody's change in between is undone; an empty one where there is none.
func (c *client) policyToChange(ctx context.Context, tenant, operation string, replace bool) (*idemv1.Policy, error) {
	none := &idemv1.Policy{Tenant: tenant, Operation: operation}
	if replace {
		return none, nil
	}
	out, err := within(ctx, c, func(ctx context.Context, c *client) (*idemv1.GetPolicyResponse, error) {
		return c.GetPolicy(ctx, &idemv1.GetPolicyRequest{Tenant: tenant, Operation: operation})
	})
	if s, ok := status.FromError(err); err != nil && ok && s.Code() == codes.NotFound {
		return none, nil
	}
	if err != nil {
		return nil, err
	}
	return stripOutputOnly(out.GetPolicy()), nil
}

func (w *world) putPolicy(ctx context.Context, c *client, policy *idemv1.Policy) error {
	out, err := within(ctx, c, func(ctx context.Context, c *client) (*idemv1.PutPolicyResponse, error) {
		return c.PutPolicy(ctx, &idemv1.PutPolicyRequest{Policy: policy})
	})
	if err != nil {
		return err
	}
	if c.target.json() {
		return printProto(w.stdout, out)
	}
	w.printPolicy(w.stdout, out.GetPolicy(), "")
	w.stdout.printf("\nEvery daemon follows it from %s. Standing entries keep their terms: see idemd policy apply.\n",
		out.GetEffectiveTime().AsTime().In(w.zone).Format(timeLayout))
	return nil
}

// printPolicy shows a policy with every default said.
func (w *world) printPolicy(out *printer, p *idemv1.Policy, source string) {
	var f facts
	f.add("operation", "%s", oneLine(p.GetOperation()))
	f.add("tenant", "%s", oneLine(p.GetTenant()))
	f.add("source", "%s", source)
	f.add("retention", "%s, decided by %s", formatDuration(p.GetRetention().AsDuration()), horizonWord(p.GetRetentionHorizon()))
	h := p.GetHorizons()
	for _, horizon := range []struct {
		name   string
		length *durationpb.Duration
	}{
		{"client retry", h.GetClientRetry()}, {"queue redelivery", h.GetQueueRedelivery()}, {"webhook replay", h.GetWebhookReplay()},
		{"operator replay", h.GetOperatorReplay()}, {"settlement", h.GetSettlement()},
	} {
		if horizon.length.AsDuration() > 0 {
			f.add("  "+horizon.name, "%s", formatDuration(horizon.length.AsDuration()))
		}
	}
	f.add("tombstone", "%s", tombstoneText(p))
	f.add("lease", "%s", orDefaultText(p.GetLease(), "60s"))
	f.add("max wait", "%s", maxWaitText(p))
	f.add("max attempts", "%s", orDefaultNumber(int64(p.GetMaxAttempts()), "10"))
	f.add("abandoned", "%s", onAbandonedText(p))
	f.add("keeps", "%s, bodies up to %s bytes", storeResponseText(p), orDefaultNumber(p.GetMaxResponseBytes(), "1048576"))
	f.add("metadata kept", "%s", oneLine(strings.Join(p.GetResponseMetadataAllow(), ", ")))
	f.add("keys", "%s", keyFormatText(p.GetKeyFormat()))
	if p.GetBindPrincipal() {
		f.add("bound", "to the principal that first began an entry")
	}
	f.add("etag", "%s", oneLine(p.GetEtag()))
	if p.GetUpdateTime() != nil {
		f.add("written", "%s", p.GetUpdateTime().AsTime().In(w.zone).Format(timeLayout))
	}
	f.print(out)
}

func horizonWord(h idemv1.RetentionHorizon) string { return words(h.String(), "RETENTION_HORIZON_") }

func tombstoneText(p *idemv1.Policy) string {
	switch {
	case p.GetTombstone() == nil:
		return "as long again"
	case p.GetTombstone().AsDuration() == 0:
		return "none"
	}
	return formatDuration(p.GetTombstone().AsDuration())
}

func maxWaitText(p *idemv1.Policy) string {
	switch {
	case p.GetMaxWait() == nil:
		return "30s"
	case p.GetMaxWait().AsDuration() == 0:
		return "nobody waits"
	}
	return formatDuration(p.GetMaxWait().AsDuration())
}

func onAbandonedText(p *idemv1.Policy) string {
	switch {
	case p.GetOnAbandoned() == idemv1.OnAbandoned_ON_ABANDONED_HOLD:
		return "hold"
	case p.GetReclaimWithin() != nil:
		return "reclaim within " + formatDuration(p.GetReclaimWithin().AsDuration()) + ", then hold"
	default:
		return "reclaim"
	}
}

func storeResponseText(p *idemv1.Policy) string {
	switch p.GetStoreResponse() {
	case idemv1.StoreResponse_STORE_RESPONSE_POINTER:
		return "code and pointer"
	case idemv1.StoreResponse_STORE_RESPONSE_NONE:
		return "the code only"
	default:
		return "the whole answer"
	}
}

func keyFormatText(k *idemv1.KeyFormat) string {
	text := "any"
	switch k.GetKind() {
	case idemv1.KeyFormatKind_KEY_FORMAT_KIND_UUID:
		text = "UUIDs"
	case idemv1.KeyFormatKind_KEY_FORMAT_KIND_PATTERN:
		text = "matching " + oneLine(k.GetPattern())
	default: // any
	}
	if k.GetRefuseTimestamps() {
		text += ", no timestamps"
	}
	return text
}

func orDefaultText(d *durationpb.Duration, text string) string {
	if d.AsDuration() == 0 {
		return text
	}
	return formatDuration(d.AsDuration())
}

func orDefaultNumber(n int64, text string) string {
	if n == 0 {
		return text
	}
	return strconv.FormatInt(n, 10)
}
