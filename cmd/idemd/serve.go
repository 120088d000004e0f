package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/server"
)

func (w *world) serveCommand() *cobra.Command {
	s := &settings{env: w.getenv, uid: w.uid}
	cmd := &cobra.Command{
		Use: "serve", Short: "Run the daemon", GroupID: groupDaemon, Args: exactArgs(),
		Long: "Run the daemon. With no flags it keeps its ledger in a directory of its own (see --data-dir) and listens on this machine only.\n\n" +
			"SIGTERM or SIGINT: finish the calls under way, answer everybody who waits, and end; a second one ends at once. SIGHUP does nothing.\n\n" +
			"Exit codes: 0 ended as told; 1 it could not start, or failed, or cut calls off at --drain-timeout; 2 its settings are wrong; 128 and the " +
			"signal's number: a second signal.",
		Example: "  idemd serve\n" +
			"  idemd serve --store postgresql://idemd@db.internal:5432/idemd --store-password-file /run/secrets/idemd-db\n" +
			"  idemd serve --config /etc/idemd/idemd.yaml",
		Annotations: map[string]string{strictEnvironment: "yes"},
	}
	s.register(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := s.validate(); err != nil {
			return asUsage(err)
		}
		collector(w.getenv, containerMemory(os.DirFS("/"))).apply()
		log := newLogger(w.stderr.to, s)
		ctx, stop := untilSignal(cmd.Context(), log)
		defer stop()
		return w.serve(ctx, s, log)
	}
	return cmd
}

// daemon is the parts of a running daemon.
type daemon struct {
	settings *settings
	log      *slog.Logger
	registry *prometheus.Registry
	metrics  *server.Metrics
	choice   storeChoice
	ledger   *ledger.Ledger
	server   *server.Server
	grpc     net.Listener
	http     net.Listener
}

// serve builds the parts from the store up, serves until ctx ends, and takes them down in the opposite order: the store goes last, when nobody
// uses it.
func (w *world) serve(ctx context.Context, s *settings, log *slog.Logger) (err error) {
	d := &daemon{settings: s, log: log, registry: prometheus.NewRegistry()}
	w.warnOfPassword(s.store, log)
	d.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	d.metrics = server.NewMetrics(d.registry)
	if d.choice, err = s.chooseStore(); err != nil {
		return asUsage(err)
	}
	store, err := s.openStore(ctx, d.choice, d.log)
	if err != nil {
		return startError(ctx, err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	watchStoreNumbers(d.registry, store)
	if err := d.build(ctx, store); err != nil {
		return startError(ctx, err)
	}
	if err := d.listen(ctx); err != nil {
		return startError(ctx, err)
	}
	return d.run(ctx)
}

// warnOfPassword warns of a password in a URL that was given as an argument.
func (w *world) warnOfPassword(store string, log *slog.Logger) {
	if w.origins["store"] == "--store" && hasPassword(store) {
		log.Warn("the store's password stands on the command line, where every user of this machine can read it: use --store-password-file")
	}
}

// startError says nothing of a start that was called off.
func startError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("cannot start: %w", err)
}

func (s *settings) ledgerConfig(store ledger.Store) ledger.Config {
	c := ledger.Config{
		Store: store, Clamp: s.clamp(), SweepEvery: time.Duration(s.sweepInterval),
		Waiting: ledger.WaitLimits{Daemon: s.maxWaiters, Tenant: s.maxWaitersTenant, Entry: s.maxWaitersEntry},
	}
	if c.SweepEvery == 0 {
		c.SweepEvery = -1 // here zero means never, there it means the default
	}
	return c
}

func (d *daemon) build(ctx context.Context, store ledger.Store) error {
	cfg := d.settings.ledgerConfig(store)
	cfg.Observer, cfg.Logger = d.metrics, d.log
	var err error
	if d.ledger, err = ledger.New(ctx, cfg); err != nil {
		return err
	}
	if err := d.writePolicies(ctx); err != nil {
		return err
	}
	d.server, err = server.New(server.Config{
		Ledger: d.ledger, Logger: d.log, Metrics: d.metrics, Gatherer: d.registry, Version: buildVersion().short(),
		DrainTimeout: time.Duration(d.settings.drainTimeout),
	})
	return err
}

// writePolicies writes the policies of --policies that are not stored yet.
func (d *daemon) writePolicies(ctx context.Context) error {
	path := d.settings.policies
	if path == "" {
		return nil
	}
	protos, err := readPolicies(path)
	if err != nil {
		return err
	}
	policies := make([]ledger.Policy, 0, len(protos))
	for _, p := range protos {
		policies = append(policies, policyFromProto(p))
	}
	written, err := d.ledger.BootstrapPolicies(ctx, policies)
	if err != nil {
		return fmt.Errorf("--policies: %s: %w", path, err)
	}
	d.log.Info("policies", "file", path, "written", written, "kept", len(policies)-written)
	return nil
}

func (d *daemon) listen(ctx context.Context) (err error) {
	if d.grpc, err = listen(ctx, "grpc-listen", d.settings.grpcListen); err != nil {
		return err
	}
	if d.settings.httpListen == listenOff {
		return nil
	}
	if d.http, err = listen(ctx, "http-listen", d.settings.httpListen); err != nil {
		return errors.Join(err, d.grpc.Close())
	}
	return nil
}

func (d *daemon) run(ctx context.Context) error {
	// The ledger's background work goes on through the drain: it watches the store for the calls that are still under way.
	background, stopBackground := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- d.ledger.Run(background) }()

	d.announce()
	notify := newNotifier(d.settings.env)
	if err := notify.send("READY=1"); err != nil {
		d.log.Warn("systemd was not told that the daemon is ready", "error", err)
	}
	told := make(chan struct{})
	unneeded := context.AfterFunc(ctx, func() {
		defer close(told)
		_ = notify.send("STOPPING=1")
	})

	err := d.server.Serve(ctx, d.grpc, d.http)
	if !unneeded() {
		<-told // an idle daemon drains in no time, and must not be gone before it has said so
	}
	stopBackground()
	err = errors.Join(err, <-ended)
	if d.settings.readyFile != "" {
		_ = os.Remove(d.settings.readyFile)
	}
	if err == nil {
		d.log.Info("stopped")
	}
	return err
}

// announce says in one line that the daemon is there, and where. Calls that come before Serve wait in the listener's queue.
func (d *daemon) announce() {
	http := listenOff
	if d.http != nil {
		http = d.http.Addr().String()
	}
	if err := writeReadyFile(d.settings.readyFile, ready{
		GRPC: d.grpc.Addr().String(), HTTP: http, Store: d.choice.String(), Version: buildVersion().short(), PID: os.Getpid(),
	}); err != nil {
		d.log.Error("the ready file was not written", "error", err)
	}
	attributes := []any{"grpc", d.grpc.Addr().String(), "http", http, "store", d.choice.String(), "version", buildVersion().short(), "pid", os.Getpid()}
	if d.choice.chosen != "" {
		attributes = append(attributes, "store_chosen_by", d.choice.chosen)
	}
	d.log.Info("idemd serves", attributes...)
	if d.settings.insecureListen {
		d.log.Warn("--insecure-listen: whoever can reach the address can read, claim and settle every entry")
	}
}

// untilSignal ends the context at SIGTERM or SIGINT, and the process at a second one: whoever sends it has lost patience, and nothing
// acknowledged depends on an orderly end.
func untilSignal(parent context.Context, log *slog.Logger) (context.Context, func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		asked := false
		for {
			select {
			case <-done:
				return
			case sig := <-signals:
				number, _ := sig.(syscall.Signal)
				switch {
				case number == syscall.SIGHUP:
					log.Info("SIGHUP: nothing is reloaded; settings are read at start, and policies are set with idemd policy set")
				case asked:
					log.Warn("a second signal: ending at once", "signal", sig.String())
					os.Exit(exitSignal + int(number))
				default:
					asked = true
					log.Info("ending: calls under way are finished first; a second signal ends at once", "signal", sig.String())
					cancel()
				}
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel()
	}
}

func newLogger(out io.Writer, s *settings) *slog.Logger {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	options := &slog.HandlerOptions{Level: levels[s.logLevel.value]}
	if s.logFormat.value == formJSON {
		return slog.New(withoutRepeats(slog.NewJSONHandler(out, options)))
	}
	return slog.New(withoutRepeats(slog.NewTextHandler(out, options)))
}
