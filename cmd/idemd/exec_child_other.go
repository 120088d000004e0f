//go:build !linux

package main

import "syscall"

// childAttributes cannot have the command told of our death here: it goes on by itself when we are killed.
func childAttributes(ownGroup bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: ownGroup}
}
