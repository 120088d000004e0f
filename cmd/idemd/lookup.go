package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

func (w *world) lookupCommand() *cobra.Command {
	var tenant string
	var bodyOnly bool
	cmd := &cobra.Command{
		Use: "lookup OPERATION KEY", Short: "Show what is known of one entry: did it go through, when, and what was answered",
		Example: "  idemd lookup shop.v1.PaymentService/Charge order-42\n" +
			"  idemd lookup shop.v1.PaymentService/Charge order-42 -o json | jq -r .condition",
		GroupID: groupEntries, Args: exactArgs("OPERATION", "KEY"),
	}
	t := addTarget(cmd.Flags())
	addTenant(cmd.Flags(), &tenant)
	cmd.Flags().BoolVar(&bodyOnly, "body", false, "print the body of the answer and nothing else, as it is")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		entry, err := ask(cmd.Context(), w, t, func(ctx context.Context, c *client) (*idemv1.Entry, error) {
			return c.lookup(ctx, &idemv1.EntryRef{Tenant: tenant, Operation: args[0], Key: args[1]})
		})
		switch {
		case err != nil:
			return err
		case bodyOnly:
			return printBody(w.stdout, entry)
		case t.json():
			return printProto(w.stdout, entry)
		}
		w.printEntry(w.stdout, entry)
		w.printNext(w.stdout, entry)
		return nil
	}
	return cmd
}

func (c *client) lookup(ctx context.Context, ref *idemv1.EntryRef) (*idemv1.Entry, error) {
	out, err := c.Lookup(ctx, &idemv1.LookupRequest{Ref: ref})
	return out.GetEntry(), err
}

func printBody(out *printer, e *idemv1.Entry) error {
	response := e.GetAnswer().GetResponse()
	switch {
	case response == nil:
		return fmt.Errorf("there is no answer: the entry is %s", conditionWord(e.GetCondition()))
	case response.GetBodyOmitted():
		return fmt.Errorf("the body of the answer was not kept")
	}
	_, err := out.Write(response.GetBody())
	return err
}
