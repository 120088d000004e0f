// Package sqlitestore is the embedded store, and the default: SQLite inside the daemon, one process, one directory, nothing to
// install. Operators can open, check and back up the file with the tools they know; the view "entries" is for them.
//
// # What is in the directory
//
// LOCK (held by the process that uses the directory), ledger.db, ledger.db-seals (see Damage), and SQLite's ledger.db-wal and ledger.db-shm. All are 0600.
// Only a copy made by [Backup], or with sqlite3's .backup or VACUUM INTO, is a backup: a plain copy of ledger.db misses what is still in the log.
// Other programs may read the database. What they write to it, be it a checkpoint only, is taken for damage.
//
// LOCK also says what a start should find. Where it, or any other file, shows that a ledger was here and the database or its log is not, Open refuses: an
// empty ledger would run everything again.
//
// The directory must be on a local disk: the log needs shared memory and locks that network file systems do not have.
//
// # Writing
//
// One goroutine owns the one connection that writes. It takes what queued while the previous transaction was being synced as the next
// transaction, up to 256 writes. No timer is involved, so an idle daemon is as fast as its disk and a busy one shares each sync among many. A
// caller gets its outcome only after COMMIT returned without an error.
//
// What a caller is told: its result; or a context error, if it left before its batch began: then nothing was done; or
// [ledger.ErrUnavailable]: then nothing was done; or [ledger.ErrUnknown], if it left while its batch was on the way, or the
// commit's sync failed. A write that the schema refuses fails alone: its batch is run again with a savepoint around each write. After a
// commit of unknown outcome the next batch writes in any case, over the frames of the failed one, which ends the doubt: it did not happen.
//
// # Replays
//
// A settled entry that was read is kept in memory, up to [Config.MemoryBytes] in all, so that an answer that is asked for again and again costs no
// reading of the file ([Store.Recall]). What is kept was committed, is dropped before whatever changes it is committed, and is judged by the store's clock
// each time.
//
// # Durability
//
// journal_mode=WAL, synchronous=FULL: each commit syncs the log. A reader sees a commit only after that sync. This is so by the order
// in SQLite's walFrames (wal.c): all frames are written; the log is synced if this is a commit; only if that succeeded are the frames
// entered in the wal-index, and walIndexWriteHdr publishes the new mxFrame, which is where a reader's snapshot comes from. A test holds a sync
// back and looks.
//
// One gap is left, and closed here: a process that is killed between writing a commit and its sync leaves whole frames in the log, in the
// operating system's memory only. Opening the file again takes them for committed (walIndexRecover looks at checksums, not at what is on the
// disk), so a reader could be answered from what a power failure still erases. Open therefore commits, and so syncs the whole log, before
// anybody is answered.
//
// SQLite syncs the directory when it makes the log; Open does when it makes the database.
//
// # The write-ahead log's size
//
// Once 16 MiB are in the log they are copied to the file, as far as no reader is in the way, while commits go on; what came meanwhile the writer copies
// between two commits, and the log begins at its front again. Where readers are in the way again and
// again, the store holds back new reads at 64 MiB for a moment and empties the log. A reader that it can not hold back, as a [Backup]
// under way or an operator's shell with an open transaction, lets the log grow, with a warning in the log of the daemon; nobody has to wait for it.
//
// Two connections at once, one that copies and one that writes, is what SQLite's versions before 3.51.3 could damage a database by, where the log was begun anew
// in the same moment (https://sqlite.org/wal.html, "the WAL-reset bug"). This one is newer, and the log is never whole when the copying beside it begins.
//
// A sync of the file that failed is never made up for by a later one: the operating system may have dropped the pages that it could not write. From then on the
// log is kept, whatever its length, until the next start copies all of it again.
//
// # Damage
//
// A file that is no database, another application's, or a newer version's is refused unchanged.
//
// SQLite believes what it reads from the disk. A bit that turned in an index hides a row, and a hidden row is granted a second time. So a layer between
// SQLite and the operating system (layer.go, layerlog.go) holds every page that is read from the database against a checksum, its seal, that was kept when the page
// was written, and every page that is read from the log against the log's own. What does not match is an error, never an answer, however it came about: a
// turned bit, a page in another's place, a part that is gone. The seals stand in a file of their own, so that the database is a plain one for every tool. A
// database without them (a backup, another tool's copy) is checked whole, indexes against tables, before it is sealed.
//
// After the first damage nothing is written any more and [Store.Ready] says so; what is whole is still answered. What the log lost in its middle is found at
// the next start (logcheck.go); SQLite would drop the rest of it.
//
// Beside that the structure is checked (quick_check) before the file is opened, up to a size: reading 256 MiB takes a few seconds at most, and more would delay
// every restart after a crash, for a check that crashes do not call for. Answers and histories carry checksums of their own, which go with the rows.
//
// Not found: a write that the disk acknowledged and dropped, where page and seal are both as they were before; the last commit before a crash (or two), where
// damage looks like what a power failure leaves; the whole directory set back; what went wrong in memory, or was made to fit on purpose.
//
// # Time
//
// The store's clock starts at the later of the wall clock and the last time that was written, and then runs by the machine's running time: a
// wall clock that is set meanwhile is not followed, but logged and counted ([Store.ClockAlarms]). It never goes back, also across restarts: every
// transaction writes its time. An idle store writes it once an hour, so that a crash after a quiet month does not look like a jump.
//
// When the wall clock is more than [Config.MaxWallAhead] ahead of the last write, Open refuses with a [ClockJumpError]. Following a wrong clock
// would end retention early for every entry at once, and for good; the built-in policy's retention, seven days, is the bound,
// because a jump within it can turn answers into EXPIRED but not make the ledger forget an entry and run it again. A daemon
// that really was off for longer is started once with [Config.AllowClockJump].
//
// # Size of an entry, and what a write costs
//
// Most of what a write costs is pages: each that a transaction touches goes to the log, and later to the file. So rows are narrow: what statements look
// for and operators read are columns, the rest is one blob (details.go), tenant and operation are one number (table name), and the indexes hold numbers only. A
// row's due time changes with every settlement, so that index is ordered by time and takes a batch's rows on one page or two, and not on one for each shard; a
// page of one shard steps over the other shards' rows in the index.
//
// Answers and histories of more than 512 bytes stand in tables of their own, so that the rows that every statement walks stay small. With names of
// an ordinary length (tenant, operation, key, holder and principal of 100 bytes in all), a settled entry with a 200-byte answer takes about 595 bytes of
// disk in all and a closed one 330. See BenchmarkPair and BenchmarkTombstone.
package sqlitestore
