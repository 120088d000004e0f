package sqlidem

import (
	"context"
	"database/sql"
	"sync"
	"time"

	"github.com/idemd/idemd/clientlib/internal/sqldb"
)

// minStatementTime is what a claiming statement is given on CockroachDB although nobody is waited for: its own work takes time there.
const minStatementTime = 500 * time.Millisecond

// session is one run of a transaction.
type session[T any] struct {
	tx      T
	t       sqldb.Txn
	dialect *dialect
	// control is what the transaction hangs on. It ends with the caller's context until the transaction has begun, and within the commit
	// timeout from when the work is over. What the work has done is committed although nobody may be listening any more.
	control context.Context

	cancel  context.CancelFunc
	unlink  func() bool
	timeout time.Duration
	mu      sync.Mutex
	timer   *time.Timer // set once the work is over

	before string // the limit on waiting that was there before ours
	// limited: a limit of ours may be on the connection, and not only on the transaction.
	limited bool
}

// began says that the transaction has begun. From here on the caller's end only ends the statements that are given its context.
func (s *session[T]) began(tx T, t sqldb.Txn) {
	s.unlink()
	s.tx, s.t = tx, t
}

// over says that the work is done, and what is left must come to an end.
func (s *session[T]) over() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer == nil {
		s.timer = time.AfterFunc(s.timeout, s.cancel)
	}
}

// again takes both back, for another run.
func (s *session[T]) again(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	s.unlink = context.AfterFunc(ctx, s.cancel)
}

func (s *session[T]) close() {
	s.unlink()
	s.mu.Lock()
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	s.cancel()
}

// waitAtMost limits how long the statements that follow wait for a row that another transaction has: lock_timeout on PostgreSQL.
// CockroachDB 21.1 has none, and no SET LOCAL either, so there it is statement_timeout, of the connection.
func (s *session[T]) waitAtMost(ctx context.Context, wait time.Duration) error {
	if s.dialect.engine == PostgreSQL {
		var now string
		return statementFailure(s.t.Scan(ctx, limitPostgreSQL, []any{milliseconds(wait)}, &s.before, &now))
	}
	s.limited = true
	return statementFailure(s.t.Script(ctx, "SET statement_timeout = "+literal(milliseconds(max(wait, minStatementTime)))))
}

// begun puts back the limit that was there, and marks where the work begins.
func (s *session[T]) begun(ctx context.Context) error {
	return statementFailure(s.t.Script(ctx, s.putBack(), savepointWork))
}

func (s *session[T]) putBack() string {
	if s.dialect.engine == PostgreSQL {
		return "SET LOCAL lock_timeout = " + literal(s.before)
	}
	return "SET statement_timeout = " + literal(s.before)
}

// waitedTooLong recognises the end of waitAtMost.
func (d *dialect) waitedTooLong(err error) bool {
	state := sqldb.SQLState(err)
	return state == "55P03" || state == "57014" && d.engine == CockroachDB
}

// transact runs fn in a transaction and commits it, again while others get in the way. An error of fn rolls it back and is returned as it is; all
// others are [*failure] values, or what the database holds against the mutation.
func (d *DB[T]) transact(ctx context.Context, isolation sql.IsolationLevel, fn func(*session[T]) error) error {
	c, err := d.driver.Acquire(ctx)
	if err != nil {
		return &failure{broken, err}
	}
	sound := true
	defer func() { c.Release(sound) }()
	known, err := d.dialectOn(ctx, c)
	if err != nil {
		return &failure{broken, err}
	}
	s := &session[T]{dialect: known, timeout: d.config.CommitTimeout}
	s.control, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.unlink = context.AfterFunc(ctx, s.cancel)
	defer s.close()
	if known.engine == CockroachDB {
		sound = false // until the limit is put back, also where fn panics
		err, sound = restarting(ctx, c, s, isolation, fn)
		return err
	}
	for n := 1; ; n++ {
		err := once(c, s, isolation, fn)
		if kindOf(err) != contended || n == sqldb.MaxTries || !sqldb.BackOff(ctx, n) {
			return err
		}
		s.again(ctx)
	}
}

// once is one run on PostgreSQL. cockroach-go is of no use here: it calls a commit done that failed.
func once[T any](c sqldb.Conn[T], s *session[T], isolation sql.IsolationLevel, fn func(*session[T]) error) error {
	tx, t, err := c.Begin(s.control, isolation)
	if err != nil {
		return statementFailure(err)
	}
	s.began(tx, t)
	ended := false
	defer func() {
		if !ended { // also where fn panics
			sqldb.RollBack(t)
		}
	}()
	if err := fn(s); err != nil {
		return err
	}
	ended = true
	return commitFailure(t.Commit(s.control))
}

// restarting is all runs on CockroachDB, by its own restart protocol.
func restarting[T any](ctx context.Context, c sqldb.Conn[T], s *session[T], isolation sql.IsolationLevel, fn func(*session[T]) error) (err error, sound bool) {
	if err := c.Scan(ctx, currentStatements, nil, &s.before); err != nil {
		return &failure{broken, err}, true
	}
	runs := 0
	var last error
	err = c.Restarting(s.control, isolation, sqldb.MaxTries-1, func(tx T, t sqldb.Txn) error {
		if runs++; runs > 1 {
			s.again(ctx)
			if !sqldb.BackOff(ctx, runs-1) {
				last = &failure{broken, ctx.Err()}
				return last
			}
		}
		s.began(tx, t)
		returned := false
		defer func() {
			if !returned { // a runtime.Goexit in the work would have cockroach-go commit what there is
				sqldb.RollBack(t)
			}
		}()
		last = fn(s)
		returned = true
		return last
	})
	sound = true
	if s.limited {
		clean, cancel := context.WithTimeout(context.Background(), sqldb.CloseTimeout)
		defer cancel()
		_, unset := c.Exec(clean, s.putBack())
		sound = unset == nil
	}
	switch {
	case err == nil:
		return nil, sound
	case runs == 0:
		return statementFailure(err), sound
	case err == last: //nolint:errorlint // whether it is the very one that fn returned
		return err, sound
	default:
		return commitFailure(err), sound
	}
}
