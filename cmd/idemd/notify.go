package main

import (
	"context"
	"net"
)

// notifier tells systemd how the daemon is (sd_notify): with Type=notify a unit counts as started only when its READY=1 came, and what depends
// on it starts then. It is one datagram to a socket that systemd names, so it needs no library.
type notifier struct{ socket string }

func newNotifier(env func(string) string) notifier { return notifier{env("NOTIFY_SOCKET")} }

func (n notifier) send(state string) error {
	if n.socket == "" {
		return nil
	}
	name := n.socket
	if name[0] == '@' {
		name = "\x00" + name[1:] // Linux's abstract namespace
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(context.Background(), "unixgram", name)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is buffered in a datagram socket
	_, err = conn.Write([]byte(state))
	return err
}
