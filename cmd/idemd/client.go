package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

const (
	defaultTimeout = 10 * time.Second
	defaultTenant  = "default"
	// maxAnswerBytes is more than a ledger can keep of one entry, so that Lookup is never cut here.
	maxAnswerBytes = 64 << 20
)

// target is which daemon a command asks, and how it prints what it hears.
type target struct {
	addr    string
	timeout durationFlag
	output  *choice
}

// addTarget adds the flags that every command has which asks a daemon. They are settings: an operator sets them once.
func addTarget(fs *pflag.FlagSet) *target {
	t := &target{timeout: durationFlag(defaultTimeout)}
	fs.StringVar(&t.addr, "addr", defaultGRPCAddress, "`address` of the daemon: its --grpc-listen")
	fs.Var(&t.timeout, "timeout", "how long to wait for the daemon, and for its answer. What reports progress may then take as long as it needs")
	t.output = addOutput(fs)
	markSettings(fs, "addr", "timeout")
	return t
}

// addTenant adds --tenant, a setting as well.
func addTenant(fs *pflag.FlagSet, tenant *string) {
	fs.StringVar(tenant, "tenant", defaultTenant, "the `name` of the tenant")
	markSettings(fs, "tenant")
}

// client is a connection to a daemon.
type client struct {
	idemv1.LedgerServiceClient
	idemv1.AdminServiceClient
	conn   *grpc.ClientConn
	target *target
}

// connect opens a connection and waits until it stands, so that "nobody is there" is told from every other failure.
func (w *world) connect(ctx context.Context, t *target) (*client, error) {
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUserAgent("idemd-operator/" + buildVersion().short()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes), grpc.MaxCallSendMsgSize(maxAnswerBytes)),
		grpc.WithNoProxy(),
	}
	address := "dns:///" + t.addr
	if w.dial != nil {
		address = "passthrough:///" + t.addr
		options = append(options, grpc.WithContextDialer(w.dial))
	}
	conn, err := grpc.NewClient(address, options...)
	if err != nil {
		return nil, usage("--addr: %q is not an address: want host:port", t.addr)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(t.timeout))
	defer cancel()
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		if state == connectivity.TransientFailure || !conn.WaitForStateChange(ctx, state) {
			_ = conn.Close()
			return nil, &exitError{code: exitUnreachable, err: fmt.Errorf("no daemon answers at %s. Is it running (idemd serve), and is that its "+
				"--grpc-listen? Name another with --addr or IDEMD_ADDR", t.addr)}
		}
	}
	return &client{
		LedgerServiceClient: idemv1.NewLedgerServiceClient(conn), AdminServiceClient: idemv1.NewAdminServiceClient(conn), conn: conn, target: t,
	}, nil
}

// ask connects, makes one call within the timeout, and closes.
func ask[R any](ctx context.Context, w *world, t *target, call func(context.Context, *client) (R, error)) (R, error) {
	var none R
	c, err := w.connect(ctx, t)
	if err != nil {
		return none, err
	}
	defer c.close()
	return within(ctx, c, call)
}

// within makes one call on an open connection.
func within[R any](ctx context.Context, c *client, call func(context.Context, *client) (R, error)) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(c.target.timeout))
	defer cancel()
	out, err := call(ctx, c)
	return out, called(err, c.target.addr)
}

func (c *client) close() { _ = c.conn.Close() }

func (t *target) json() bool { return t.output.value == formJSON }
