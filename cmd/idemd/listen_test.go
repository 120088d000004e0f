package main

import (
	"strings"
	"testing"
)

// TestServeListensBeyondThisMachineOnlyWhenToldOutright, and its refusal says why and what to do.
func TestServeListensBeyondThisMachineOnlyWhenToldOutright(t *testing.T) {
	t.Parallel()
	for address, alone := range map[string]bool{
		"127.0.0.1:7433": true, "127.8.9.1:0": true, "[::1]:7433": true, "localhost:7433": true, "[::ffff:127.0.0.1]:7433": true,
		":7433": false, "0.0.0.0:7433": false, "[::]:7433": false, "10.0.0.1:7433": false, "192.0.2.1:7433": false, "no.such.host.invalid:7433": false,
	} {
		err := checkListen("grpc-listen", address, false)
		if (err == nil) != alone {
			t.Errorf("%s: %v", address, err)
		}
		if err != nil {
			for _, part := range []string{"--grpc-listen", address, "neither TLS nor authentication", "--insecure-listen"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%s: the refusal does not say %q: %v", address, part, err)
				}
			}
		}
		if err := checkListen("grpc-listen", address, true); err != nil {
			t.Errorf("%s, told outright: %v", address, err)
		}
	}
	for _, args := range [][]string{{"--grpc-listen", ":7433"}, {"--http-listen", "0.0.0.0:7434"}} {
		if r := runAlone(t, nil, append([]string{"serve"}, args...)...); r.code != exitUsage || !strings.Contains(r.stderr, args[0]) {
			t.Errorf("serve %v: %+v", args, r)
		}
		if r := runAlone(t, []string{"IDEMD_INSECURE_LISTEN=true"}, append([]string{"config", "check"}, args...)...); r.code != exitOK {
			t.Errorf("check %v: %+v", args, r)
		}
	}
	if r := runAlone(t, nil, "config", "check", "--http-listen", "off"); r.code != exitOK {
		t.Errorf("--http-listen off: %+v", r)
	}
}
