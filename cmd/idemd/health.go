package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

func (w *world) healthCommand() *cobra.Command {
	var service string
	cmd := &cobra.Command{
		Use: "health", Short: "Say by the exit code whether the daemon serves", GroupID: groupDaemon, Args: exactArgs(),
		Long: "Ask the daemon's health service. Exit codes: 0 it serves; 1 it is there and does not serve (it drains, or its store does not answer); 3 " +
			"nobody is there. For HEALTHCHECK in containers that have no shell.",
	}
	t := addTarget(cmd.Flags())
	cmd.Flags().StringVar(&service, "service", "", "ask for this service, as idem.v1.LedgerService. Default: the daemon as a whole")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		out, err := ask(cmd.Context(), w, t, func(ctx context.Context, c *client) (*healthpb.HealthCheckResponse, error) {
			return healthpb.NewHealthClient(c.conn).Check(ctx, &healthpb.HealthCheckRequest{Service: service})
		})
		if err != nil {
			return err
		}
		if t.json() {
			err = printProto(w.stdout, out)
		} else {
			w.stdout.printf("%s\n", out.GetStatus())
		}
		if err == nil && out.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			return fmt.Errorf("the daemon at %s does not serve", t.addr)
		}
		return err
	}
	return cmd
}
