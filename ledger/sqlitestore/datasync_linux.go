package sqlitestore

import (
	"os"

	"golang.org/x/sys/unix"
)

// dataSync makes durable what is in the file, and of what the system notes about it only what it needs to be read.
func dataSync(file *os.File) error {
	for {
		if err := unix.Fdatasync(int(file.Fd())); err != unix.EINTR {
			return err
		}
	}
}
