package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"
)

// listenOff is what turns an address off.
const listenOff = "off"

// checkListen refuses an address that is none, or that others than this machine can reach. The protocol has no credentials: whoever reaches the
// port is every tenant and every operator.
func checkListen(flag, address string, insecure bool) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("--%s: %q is not an address: want host:port, as 127.0.0.1:7433 or [::1]:7433", flag, address)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("--%s: %q has no port from 0 to 65535", flag, address)
	}
	if insecure || isLoopback(host) {
		return nil
	}
	return fmt.Errorf("--%s: %s can be reached from beyond this machine, and idemd has neither TLS nor authentication of its own: whoever "+
		"reaches it can read, claim and settle every entry of every tenant. Listen on 127.0.0.1 behind a proxy that authenticates, or, on a network "+
		"where everybody may do that, start with --insecure-listen (IDEMD_INSECURE_LISTEN=true)", flag, address)
}

// isLoopback reports whether a host is only this machine. A name is looked up: it is what net.Listen does with it too.
func isLoopback(host string) bool {
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Unmap().IsLoopback()
	}
	if host == "" {
		return false // every interface
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil || len(addrs) == 0 {
		return false
	}
	for _, addr := range addrs {
		if !addr.Unmap().IsLoopback() {
			return false
		}
	}
	return true
}

// listen opens a checked address and says plainly who is in the way.
func listen(ctx context.Context, flag, address string) (net.Listener, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	return listener, nil
}
