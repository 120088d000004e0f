package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/cockroachdb/cockroach-go/v2/crdb"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idemd/idemd/ledger"
)

type safeError struct{ error }

func (safeError) SafeToRetry() bool { return true }

func TestClasses(t *testing.T) {
	code := func(c string) error {
		return fmt.Errorf("driver: %w", &pgconn.PgError{Code: c, Message: "UPDATE secret_text"})
	}
	for _, c := range []struct {
		err  error
		want class
	}{
		{code("40001"), contended}, {code("40P01"), contended}, {code("CR000"), contended}, {code("55P03"), contended},
		{&crdb.MaxRetriesExceededError{}, contended},
		{code("40003"), unknown}, {&crdb.AmbiguousCommitError{}, unknown}, {code("57014"), unknown},
		{code("57P01"), unknown}, {code("57P02"), unknown}, {code("08006"), unknown}, {code("08003"), unknown},
		{code("58030"), unknown}, {code("XX000"), unknown}, {code("XXUUU"), unknown}, {code("XAUUU"), unknown},
		{io.ErrUnexpectedEOF, unknown}, {errors.New("anything else"), unknown}, {context.DeadlineExceeded, unknown},
		{code("57P03"), unavailable}, {code("53300"), unavailable}, {code("53100"), unavailable}, {code("53200"), unavailable},
		{code("25006"), unavailable}, {code("42P01"), unavailable},
		{code("23514"), badRow}, {code("23502"), badRow}, {code("22021"), badRow}, {code("22003"), badRow},
		{code("54000"), unavailable}, // PostgreSQL out of transaction ids: every write is refused so
		{code("28P01"), unavailable}, {&pgconn.ConnectError{}, unavailable},
		{safeError{errors.New("conn busy")}, unsent},
	} {
		err := classify("write", writing, c.err)
		if got := classIn(err); got != c.want {
			t.Errorf("%v: class %v, want %v", c.err, got.sentinel(), c.want.sentinel())
		}
		if !errors.Is(err, c.want.sentinel()) || strings.Contains(err.Error(), "secret_text") || strings.Contains(err.Error(), "driver") {
			t.Errorf("%v is told as %q", c.err, err)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a limit of the store's own looks like the caller's: %v", err)
		}
		if read := classify("get", reading, c.err); errors.Is(read, ledger.ErrUnknown) {
			t.Errorf("%v: the outcome of a read cannot be unknown", c.err)
		}
	}
	if classify("write", writing, nil) != nil {
		t.Error("nil is no error")
	}
}

func TestEngineOf(t *testing.T) {
	for version, want := range map[string]engine{
		"PostgreSQL 14.0 on x86_64":                                         postgreSQL,
		"PostgreSQL 15.18 (Debian 15.18-0+deb12u1) on x86_64-pc-linux-gnu":  postgreSQL,
		"PostgreSQL 19devel on x86_64":                                      postgreSQL,
		"CockroachDB CCL v21.1.0 (x86_64-unknown-linux-gnu, built 2021/05)": cockroachDB,
		"CockroachDB OSS v21.1.2-localbuild (linux amd64)":                  cockroachDB,
		"CockroachDB CCL v26.2.2 (x86_64)":                                  cockroachDB,
		"PostgreSQL 13.9 on x86_64":                                         0,
		"CockroachDB CCL v20.2.19 (x86_64)":                                 0,
		"8.0.33-TiDB":                                                       0,
	} {
		got, err := engineOf(version)
		if got != want || (err == nil) != (want != 0) {
			t.Errorf("%s: %v, %v", version, got, err)
		}
	}
}

func TestBothEnginesHaveTheSameSteps(t *testing.T) {
	pg, crdb := stepsFor(postgreSQL), stepsFor(cockroachDB)
	if len(pg) != len(crdb) {
		t.Fatalf("%d steps for PostgreSQL, %d for CockroachDB", len(pg), len(crdb))
	}
	for i := range pg {
		if pg[i].Number != i+1 || pg[i].Number != crdb[i].Number || pg[i].Name != crdb[i].Name {
			t.Errorf("step %d: %d %s, %d %s", i+1, pg[i].Number, pg[i].Name, crdb[i].Number, crdb[i].Name)
		}
		for _, step := range []Migration{pg[i], crdb[i]} {
			if !strings.Contains(step.sql, "IF NOT EXISTS") || strings.Contains(step.sql, ";") {
				t.Errorf("step %d must be one statement that does no harm when it is run again", step.Number)
			}
		}
	}
	for step, needs := range stepNeeds {
		if needs > latestStep() || step > latestStep() {
			t.Errorf("step %d needs %d, and the latest is %d", step, needs, latestStep())
		}
	}
}

func TestColumnsArgumentsAndTargetsAgree(t *testing.T) {
	var r row
	if got, want := len(r.targets()), 1+len(columns)+2; got != want {
		t.Errorf("%d targets for %d columns", got, want)
	}
	if got := len(putArgs(&ledger.Entry{}, 1, &blobs{})); got != len(columns) {
		t.Errorf("%d arguments for %d columns", got, len(columns))
	}
	var s stampsRow
	if len(s.targets()) != len(stampColumns) {
		t.Errorf("%d targets for %d stamps", len(s.targets()), len(stampColumns))
	}
}
