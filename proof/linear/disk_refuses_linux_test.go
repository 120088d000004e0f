package linear

import (
	"context"
	"errors"
	"math/rand/v2"
	"os/exec"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/idemd/idemd/ledger"
)

// TestTheDiskOfTheDaemonRefuses: a real daemon on the embedded store whose disk becomes read-only under it, has errors, is full, or does not sync, now and
// then and for moments. Sometimes it is killed meanwhile.
func TestTheDiskOfTheDaemonRefuses(t *testing.T) {
	t.Parallel()
	disk := &refusingDisk{t: t}
	p := programs.real.StartBy(t, disk.start, nil, "--data-dir", t.TempDir())
	d := clientOf(p)
	d.hides = true
	seeds(t, 2, func(seed uint64) {
		play{
			daemons: []daemon{d}, keys: 16, clients: 12, steps: 50, limit: int8(ledger.DefaultMaxAttempts), deadlines: true,
			weather: func(ctx context.Context, rng *rand.Rand) {
				for ctx.Err() == nil {
					pass(ctx, time.Duration(rng.IntN(20))*time.Millisecond)
					fault := &diskFaults[rng.IntN(len(diskFaults))]
					disk.fault.Store(fault)
					pass(ctx, time.Duration(rng.IntN(20))*time.Millisecond)
					killed := rng.IntN(6) == 0
					if killed {
						p.Kill()
						count("daemon killed while its disk refuses", 1)
					}
					disk.fault.Store(nil)
					count(fault.name, int(disk.refused.Swap(0)))
					if !killed {
						continue
					}
					if err := p.Restart(); err != nil {
						t.Errorf("seed %d: starting again: %v", seed, err)
						return
					}
				}
			},
		}.run(t, seed)
	})
}

// diskFault is what a disk refuses, and with which error.
type diskFault struct {
	name    string
	refuses []int32
	with    unix.Errno
}

var diskFaults = []diskFault{
	{"call refused by a read-only disk", diskCalls, unix.EROFS},
	{"write that failed on the disk", []int32{unix.SYS_PWRITE64, unix.SYS_FTRUNCATE}, unix.EIO},
	{"write refused by a full disk", []int32{unix.SYS_PWRITE64, unix.SYS_FTRUNCATE}, unix.ENOSPC},
	{"sync that failed", []int32{unix.SYS_FSYNC, unix.SYS_FDATASYNC}, unix.EIO},
}

// diskCalls are those by which SQLite changes its files. The daemon's connections use others.
var diskCalls = []int32{unix.SYS_PWRITE64, unix.SYS_FTRUNCATE, unix.SYS_FSYNC, unix.SYS_FDATASYNC}

// refusingDisk answers a program's calls to its disk: the kernel stops at each, and asks whether it is to be carried out.
type refusingDisk struct {
	t       *testing.T
	fault   atomic.Pointer[diskFault]
	refused atomic.Int64
}

// start starts a program whose calls are asked about. What is asked about is a property of the thread that starts it, which ends with the goroutine.
func (d *refusingDisk) start(cmd *exec.Cmd) error {
	var listener int
	trapped, started := make(chan error), make(chan error)
	go func() {
		runtime.LockOSThread()
		var err error
		listener, err = trapDiskCalls()
		trapped <- err
		if err == nil {
			started <- cmd.Start()
		}
	}()
	if err := <-trapped; err != nil {
		d.t.Skipf("NOT RUN ON A DISK THAT REFUSES: the kernel takes no filter with a listener here: %v", err)
	}
	if err := <-started; err != nil {
		return errors.Join(err, unix.Close(listener))
	}
	go d.answer(listener)
	return nil
}

// trapDiskCalls has the kernel ask before it carries out any of diskCalls for this thread, and for what it starts.
func trapDiskCalls() (listener int, err error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, err
	}
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}} // the number of the call
	for i, call := range diskCalls {
		filter = append(filter, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(call), Jt: uint8(len(diskCalls) - i)})
	}
	filter = append(filter,
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF})
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return 0, errno
	}
	return int(fd), nil
}

// The kernel's struct seccomp_notif and struct seccomp_notif_resp.
type (
	question struct {
		id         uint64
		pid, flags uint32
		call       int32
		arch       uint32
		_          [7]uint64
	}
	answer struct {
		id    uint64
		_     int64
		errno int32
		flags uint32
	}
)

const carryOut = 1 // SECCOMP_USER_NOTIF_FLAG_CONTINUE

// answer answers until the program is gone.
func (d *refusingDisk) answer(listener int) {
	defer func() { _ = unix.Close(listener) }()
	for {
		asked := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(asked, -1); err != nil && !errors.Is(err, unix.EINTR) {
			d.t.Errorf("waiting for a call to the disk: %v", err)
			return
		}
		if asked[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0 {
			return
		}
		var q question
		switch err := control(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&q)); {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINTR): // whoever asked was killed, or interrupted
			continue
		case err != nil:
			d.t.Errorf("a call to the disk: %v", err)
			return
		}
		a := answer{id: q.id, flags: carryOut}
		if fault := d.fault.Load(); fault != nil && slices.Contains(fault.refuses, q.call) {
			a.errno, a.flags = -int32(fault.with), 0
			d.refused.Add(1)
		}
		// It fails where whoever asked is gone. One that was interrupted asks again.
		_ = control(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&a))
	}
}

func control(fd int, request uintptr, argument unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(argument)); errno != 0 {
		return errno
	}
	return nil
}
