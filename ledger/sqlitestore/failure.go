package sqlitestore

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
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
	return fmt.Errorf("sqlitestore: %s: %w: %w", doing, ledger.ErrUnavailable, withFault(err))
}

// failed marks err as one of something that certainly did not happen, by the fault of its row or of the store.
func failed(doing string, err error) error {
	switch resultCode(err) {
	case sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE:
		return fmt.Errorf("sqlitestore: %s: %w: %w", doing, ledger.ErrBadRow, err)
	}
	if errors.Is(err, ledger.ErrBadRow) {
		return fmt.Errorf("sqlitestore: %s: %w", doing, err)
	}
	return unavailable(doing, err)
}

// uncertain marks err as one after which a write may yet turn out to have happened.
func uncertain(doing string, err error) error {
	return fmt.Errorf("sqlitestore: %s: %w: %w", doing, ledger.ErrUnknown, withFault(err))
}

// withFault names what an error of SQLite's says about the disk.
func withFault(err error) error {
	var named ledger.StoreFault
	var failure *sqliteError
	switch code := resultCode(err); {
	case errors.As(err, &named):
		return err
	case isDamage(err):
		return fmt.Errorf("%w: %w", ledger.FaultDamaged, err)
	case code == sqlite3.SQLITE_FULL, errors.Is(err, unix.ENOSPC), errors.As(err, &failure) && failure.code == sqlite3.SQLITE_IOERR_SHMSIZE:
		return fmt.Errorf("%w: %w", ledger.FaultFull, err)
	case code == sqlite3.SQLITE_IOERR, code == sqlite3.SQLITE_READONLY, code == sqlite3.SQLITE_CANTOPEN:
		return fmt.Errorf("%w: %w", ledger.FaultFailing, err)
	default:
		return err
	}
}

// isDamage reports whether something was read that is not as it was written.
func isDamage(err error) bool {
	var failure *sqliteError
	switch code := resultCode(err); {
	case errors.Is(err, ledger.FaultDamaged), code == sqlite3.SQLITE_CORRUPT, code == sqlite3.SQLITE_NOTADB:
		return true
	default:
		return errors.As(err, &failure) && failure.code == sqlite3.SQLITE_IOERR_DATA
	}
}

// unusable says of part of a row why it cannot be read. Where its checksum does not match, it is not what was written: damage. Where it does, whoever wrote
// the row is the fault.
func unusable(part string, e *ledger.Entry, err error) error {
	var fault error = ledger.FaultDamaged
	if !errors.Is(err, errChecksum) {
		fault = ledger.ErrBadRow
	}
	return fmt.Errorf("%w: the %s of the entry in shard %d of incarnation %d: %w", fault, part, e.Scope.Shard(), e.Incarnation, err)
}

// resultCode is SQLite's primary result code, 0 for an error that is not SQLite's.
func resultCode(err error) int {
	var failure *sqliteError
	if errors.As(err, &failure) {
		return failure.code & 0xff
	}
	return 0
}

// ownFault reports whether a statement may have failed by what was written, and not by the state of the machine: then the other writes of
// the batch may well succeed. A full disk counts as one: a report that fits in freed space is worth more than the grant that does not.
func ownFault(err error) bool {
	var lost *batchLostError
	if errors.As(err, &lost) {
		return false
	}
	switch resultCode(err) {
	case 0, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE, sqlite3.SQLITE_FULL:
		return true
	default:
		return false
	}
}

// commitFailure classes an error of COMMIT. The frames of a transaction are written to the log in order, the one with the commit mark
// last, and a frame counts only with its right checksum. Where the disk was full or the lock not to be had, that frame is not there whole:
// it did not happen. Any other error, above all of the sync, leaves a frame that the next opening may find, unless it is cut off
// first (see writer.ghost).
func commitFailure(path string, err error) error {
	switch resultCode(err) {
	case sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY:
		return unavailable("commit to "+path, err)
	default:
		return uncertain("commit to "+path, err)
	}
}
