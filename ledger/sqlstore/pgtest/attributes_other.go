//go:build !linux

package pgtest

import "syscall"

// Elsewhere tests are run by an ordinary user, and a server outlives a test process that is killed.
func serverAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

func diesWithTest() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

func ownByServerUser(string) error { return nil }
