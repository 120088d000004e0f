package sqlstore

import (
	"context"
	"crypto/rand"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/ledger"
)

// The schema is changed by numbered steps, forward only, one DDL statement each: CockroachDB has no atomic DDL in transactions, so a
// step is either there or not, and every step is written so that running it twice does no harm (IF NOT EXISTS). A step is recorded
// after it ran. That makes a crash at any point resumable.
//
// Who migrates holds a lease, one row with an end by the database's clock. Advisory locks would be shorter, but CockroachDB has none
// and a pooler of transactions loses them.
//
// A new step goes into both folders under the next number. If a daemon that does not know it cannot work on the schema any more,
// stepNeeds says so.

//go:embed migrations
var migrationFiles embed.FS

// stepNeeds are the steps that shut out daemons which know only an earlier schema: by step, the number they must know. Steps that older
// daemons can live with are not in it, which is what lets daemons be replaced one by one.
var stepNeeds = map[int]int{1: 5}

const (
	migrationLease = 30 * time.Second
	leasePoll      = 250 * time.Millisecond
)

// Migration is one step of the schema.
type Migration struct {
	Number int
	Name   string
	sql    string
}

// MigrationProgress is told by [Migrate] as it goes.
type MigrationProgress struct {
	// Step is the step that was just applied; nil while waiting for another migration to end.
	Step *Migration
}

// MigrationState is how far a database's schema is.
type MigrationState struct {
	Engine  string
	Applied int
	// Latest is the schema that this build was written for.
	Latest int
	// Pending are the steps that [Migrate] would apply.
	Pending []Migration
}

// schemaState is what a database's bookkeeping says: the last step applied, and the schema that a daemon must know to work on it.
type schemaState struct{ applied, needs int }

func (s schemaState) check() error {
	switch latest := latestStep(); {
	case s.applied < latest:
		return &Error{Op: "ready", class: unavailable, Reason: fmt.Sprintf(
			"the database's schema is at version %d and this build needs %d: run `idemd migrate up`", s.applied, latest)}
	case s.needs > latest:
		return &Error{Op: "ready", class: unavailable, Reason: fmt.Sprintf(
			"the database was migrated by a later build (schema %d, which needs a build that knows %d) and this one knows %d: run the later build",
			s.applied, s.needs, latest)}
	}
	return nil
}

func latestStep() int {
	steps := stepsFor(postgreSQL)
	return steps[len(steps)-1].Number
}

// stepsFor are the steps for an engine, in order. The files are part of the build, and a test reads them all.
func stepsFor(e engine) []Migration {
	dir := "migrations/postgres"
	if e == cockroachDB {
		dir = "migrations/cockroachdb"
	}
	files, err := fs.ReadDir(migrationFiles, dir)
	if err != nil {
		panic(err)
	}
	var out []Migration
	for _, f := range files {
		number, name, _ := strings.Cut(strings.TrimSuffix(f.Name(), ".sql"), "_")
		n, err := strconv.Atoi(number)
		if err != nil {
			panic(err)
		}
		text, err := fs.ReadFile(migrationFiles, dir+"/"+f.Name())
		if err != nil {
			panic(err)
		}
		out = append(out, Migration{Number: n, Name: name, sql: string(text)})
	}
	return out
}

// MigrationStatus says how far the schema is. It changes nothing.
func MigrationStatus(ctx context.Context, cfg Config) (MigrationState, error) {
	m, err := newMigrator(ctx, cfg)
	if err != nil {
		return MigrationState{}, err
	}
	defer m.close(ctx)
	state, err := m.state(ctx)
	if err != nil {
		return MigrationState{}, err
	}
	out := MigrationState{Engine: m.engine.String(), Applied: state.applied, Latest: latestStep()}
	for _, step := range stepsFor(m.engine) {
		if step.Number > state.applied {
			out.Pending = append(out.Pending, step)
		}
	}
	return out, nil
}

// Migrate brings the schema to what this build needs, and tells progress, if it is not nil, about each step. Any number may run at once,
// from any number of machines: one works, the others wait and find it done.
func Migrate(ctx context.Context, cfg Config, progress func(MigrationProgress)) error {
	if progress == nil {
		progress = func(MigrationProgress) {}
	}
	m, err := newMigrator(ctx, cfg)
	if err != nil {
		return err
	}
	defer m.close(ctx)
	state, err := m.state(ctx)
	if err != nil {
		return err
	}
	if state.applied >= latestStep() {
		return nil
	}
	if err := m.makeBooks(ctx); err != nil {
		return err
	}
	if err := m.takeLease(ctx, func() { progress(MigrationProgress{}) }); err != nil {
		return err
	}
	defer m.giveLease(ctx)
	return m.applyAll(ctx, progress)
}

// migrator is one run of Migrate. It has two connections: a step can take long on the one, and the lease is renewed on the other.
type migrator struct {
	engine engine
	clock  string
	work   *pgx.Conn
	lease  *pgx.Conn
	holder string
}

func newMigrator(ctx context.Context, cfg Config) (*migrator, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	m := &migrator{holder: newHolder()}
	if m.work, err = cfg.connect(ctx); err != nil {
		return nil, err
	}
	if m.lease, err = cfg.connect(ctx); err == nil {
		m.engine, err = engineOn(ctx, m.work)
	}
	if err == nil && m.engine == postgreSQL {
		err = checkEncoding(ctx, m.work)
	}
	if err == nil && !cfg.Pooler {
		// A limit that the role brings along is meant for short statements, not for building an index.
		_, err = m.work.Exec(ctx, "SET statement_timeout = 0")
		err = classify("migrate", reading, err)
	}
	if err != nil {
		m.close(ctx)
		return nil, err
	}
	m.clock = m.engine.clockSQL()
	return m, nil
}

func newHolder() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // crypto/rand.Read never fails
	return hex.EncodeToString(b[:])
}

func (m *migrator) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), DefaultConnectTimeout)
	defer cancel()
	for _, conn := range []*pgx.Conn{m.work, m.lease} {
		if conn != nil {
			_ = conn.Close(ctx)
		}
	}
}

func (m *migrator) state(ctx context.Context) (s schemaState, err error) {
	const query = "SELECT coalesce(max(step), 0)::INT8, coalesce(max(needs), 0)::INT8 FROM idemd_schema"
	err = m.work.QueryRow(ctx, query).Scan(&s.applied, &s.needs)
	if isUndefinedTable(err) {
		return schemaState{}, nil
	}
	return s, classify("migrate", reading, err)
}

// makeBooks makes the migrator's own two tables. Two that do so at once can meet in PostgreSQL's catalogue, where IF NOT EXISTS does not
// help them: over the table (42P07), its row type (42710) or the index behind either (23505); and in any engine's (40001). Then the other one made it, or the next try does.
func (m *migrator) makeBooks(ctx context.Context) error {
	for _, text := range []string{
		`CREATE TABLE IF NOT EXISTS idemd_schema (step INT8 NOT NULL PRIMARY KEY, name TEXT NOT NULL, needs INT8 NOT NULL, applied_at INT8 NOT NULL)`,
		`CREATE TABLE IF NOT EXISTS idemd_migrator (id INT8 NOT NULL PRIMARY KEY CHECK (id = 1), holder TEXT NOT NULL, lease_until INT8 NOT NULL)`,
	} {
		if err := m.ddl(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

// ddl runs one idempotent DDL statement outside any transaction of ours, again where another one got in the way.
func (m *migrator) ddl(ctx context.Context, text string) error {
	var err error
	for range maxTries {
		_, err = m.work.Exec(ctx, text)
		if err == nil || !hasCode(err, "23505", "42P07", "42710", "40001", "40P01", "XX000") {
			break
		}
	}
	return migrateError(ctx, err)
}

// migrateError keeps the database's words: whoever migrates is an operator, and needs them.
func migrateError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return &Error{Op: "migrate", class: unknown, Reason: "interrupted: run it again, it goes on from here", cause: &contextEndedError{ctx.Err()}}
	}
	out := classify("migrate", writing, err)
	var e *Error
	if errors.As(out, &e) && e.Reason == "" {
		e.Reason = causeOf(err).Error()
	}
	return out
}

func (m *migrator) takeLease(ctx context.Context, waiting func()) error {
	tick := time.NewTicker(leasePoll)
	defer tick.Stop()
	for told := false; ; {
		taken, err := m.renewLease(ctx)
		if taken || (err != nil && ctx.Err() == nil) {
			return err
		}
		if !told {
			waiting()
			told = true
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return &Error{Op: "migrate", class: unavailable, cause: &contextEndedError{ctx.Err()},
				Reason: "another migration is under way, or one that died holds its turn for at most " + migrationLease.String()}
		}
	}
}

// renewLease takes the lease, or takes it anew, unless it is another's and not over.
func (m *migrator) renewLease(ctx context.Context) (bool, error) {
	text := fmt.Sprintf(`INSERT INTO idemd_migrator AS m (id, holder, lease_until) VALUES (1, $1::TEXT, %[1]s + $2::INT8)
ON CONFLICT (id) DO UPDATE SET holder = excluded.holder, lease_until = excluded.lease_until
WHERE m.holder = excluded.holder OR m.lease_until <= %[1]s RETURNING 1`, m.clock)
	var one int64
	for n := 1; ; n++ {
		err := m.lease.QueryRow(ctx, text, m.holder, migrationLease.Microseconds()).Scan(&one)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return false, nil
		case hasCode(err, "40001", "40P01") && n < maxTries:
			continue
		}
		return err == nil, migrateError(ctx, err)
	}
}

func (m *migrator) giveLease(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), DefaultConnectTimeout)
	defer cancel()
	// If this fails the lease ends by itself.
	_, _ = m.lease.Exec(ctx, "UPDATE idemd_migrator SET lease_until = 0 WHERE holder = $1::TEXT", m.holder)
}

func (m *migrator) applyAll(ctx context.Context, progress func(MigrationProgress)) error {
	stop := m.keepLease(ctx)
	state, err := m.state(ctx)
	for _, step := range stepsFor(m.engine) {
		if err != nil {
			break
		}
		if step.Number <= state.applied {
			continue
		}
		if err = m.ddl(ctx, step.sql); err != nil {
			err = fmt.Errorf("step %d (%s): %w", step.Number, step.Name, err)
			break
		}
		if err = m.record(ctx, step); err == nil {
			progress(MigrationProgress{Step: &step})
		}
	}
	stop()
	return err
}

// keepLease renews the lease until the returned function is called. A step that outlives its lease all the same does no harm: whoever
// takes over runs the same step, to no effect, and this one is not recorded twice.
func (m *migrator) keepLease(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(migrationLease / 3)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_, _ = m.renewLease(ctx)
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() { cancel(); <-done }
}

// record notes a step as applied, if the lease still is ours.
func (m *migrator) record(ctx context.Context, step Migration) error {
	text := fmt.Sprintf(`INSERT INTO idemd_schema (step, name, needs, applied_at) SELECT $1::INT8, $2::TEXT, $3::INT8, %[1]s
FROM idemd_migrator WHERE holder = $4::TEXT AND lease_until > %[1]s ON CONFLICT (step) DO NOTHING`, m.clock)
	tag, err := m.work.Exec(ctx, text, step.Number, step.Name, stepNeeds[step.Number], m.holder)
	if err != nil {
		return migrateError(ctx, err)
	}
	if tag.RowsAffected() == 0 {
		return &Error{Op: "migrate", class: unavailable, cause: ledger.ErrContended,
			Reason: "another migration took over: run it again to see that it is done"}
	}
	return nil
}
