package pgtest

import (
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// serverUser is who the server runs as when the tests run as root, which PostgreSQL and PgBouncer refuse.
func serverUser() (uid, gid uint32, needed bool) {
	if os.Geteuid() != 0 {
		return 0, 0, false
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		id, err1 := strconv.ParseUint(u.Uid, 10, 32)
		group, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return uint32(id), uint32(group), true
		}
	}
	return 65534, 65534, true
}

func serverAttributes() *syscall.SysProcAttr {
	// SIGQUIT at the parent's death: a test process that is killed leaves no server behind.
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT}
	if uid, gid, needed := serverUser(); needed {
		attr.Credential = &syscall.Credential{Uid: uid, Gid: gid}
	}
	return attr
}

// diesWithTest is for a server that may run as whoever runs the tests.
func diesWithTest() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

func ownByServerUser(path string) error {
	if uid, gid, needed := serverUser(); needed {
		return os.Chown(path, int(uid), int(gid))
	}
	return nil
}
