package sqlitestore

import (
	"errors"
	"fmt"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/idemd/idemd/ledger"
)

// errClosed is what every method says after Close.
var errClosed = fmt.Errorf("sqlitestore: closed: %w", ledger.ErrUnavailable)

// unavailable marks err as one of something that certainly did not happen.
func unavailable(doing string, err error) error {
	if errors.Is(err, ledger.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("sqlitestore: %s: %w: %w", doing, ledger.ErrUnavailable, err)
}

// uncertain marks err as one after which a write may yet turn out to have happened.
func uncertain(doing string, err error) error {
	return fmt.Errorf("sqlitestore: %s: %w: %w", doing, ledger.ErrUnknown, err)
}

func damaged(part string, e *ledger.Entry, err error) error {
	return fmt.Errorf("the %s of the entry in shard %d of incarnation %d is damaged, restore a backup: %w", part, e.Scope.Shard(), e.Incarnation, err)
}

// resultCode is SQLite's primary result code, 0 for an error that is not SQLite's.
func resultCode(err error) int {
	var failure *sqlite.Error
	if errors.As(err, &failure) {
		return failure.Code() & 0xff
	}
	return 0
}

// ownFault reports whether a statement may have failed by what was written, and not by the state of the machine: then the other writes of
// the batch may well succeed. A full disk counts as one: a report that fits in freed space is worth more than the grant that does not.
func ownFault(err error) bool {
	switch resultCode(err) {
	case 0, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE, sqlite3.SQLITE_FULL:
		return true
	default:
		return false
	}
}

// commitFailure classes an error of COMMIT. The frames of a transaction are written to the log in order, the one with the commit mark
// last, and a frame counts only with its right checksum. Where the disk was full or the lock not to be had, that frame is not there whole:
// it did not happen. Any other error, above all of the sync, leaves a frame that the next opening may find, unless it is written over
// first (see writer.ghost).
func commitFailure(err error) error {
	switch resultCode(err) {
	case sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY:
		return unavailable("commit", err)
	default:
		return uncertain("commit", err)
	}
}
