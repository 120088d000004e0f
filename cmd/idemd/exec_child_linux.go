package main

import "syscall"

// childAttributes also has the command told when we are killed: nobody holds its claim from then on. It is no promise: the command may ignore
// the signal, and what it started in turn gets none.
func childAttributes(ownGroup bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: ownGroup, Pdeathsig: syscall.SIGTERM}
}
