package sqlstore_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/sqlstore"
	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

func openError(t *testing.T, cfg sqlstore.Config) error {
	t.Helper()
	s, err := sqlstore.Open(context.Background(), cfg)
	if err == nil {
		_ = s.Close()
		t.Fatal("it was opened")
	}
	return err
}

func TestOpenRefusesUnsafeDurability(t *testing.T) {
	for _, setting := range []string{"fsync", "synchronous_commit"} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			database := pgtest.Start(t, setting+"=off").URL(t)
			if err := sqlstore.Migrate(context.Background(), sqlstore.Config{URL: database}, nil); err != nil {
				t.Fatal(err)
			}
			err := openError(t, sqlstore.Config{URL: database})
			if !strings.Contains(err.Error(), setting+" off") || !strings.Contains(err.Error(), "ALTER SYSTEM SET "+setting) {
				t.Errorf("the refusal does not say what to do: %v", err)
			}
			openStore(t, sqlstore.Config{URL: database, AllowUnsafeDurability: true})
		})
	}
}

func TestOpenRefusesSynchronousCommitSwitchedOffByTheURL(t *testing.T) {
	d := newDatabase(t, pgtest.URL(t))
	err := openError(t, sqlstore.Config{URL: withParameter(t, d.url, "synchronous_commit", "off")})
	if !strings.Contains(err.Error(), "synchronous_commit off") {
		t.Errorf("refused for another reason: %v", err)
	}
}

func TestReadySeesDurabilitySwitchedOffLater(t *testing.T) {
	server := pgtest.Start(t)
	d := newDatabase(t, server.URL(t))
	s := d.open(t)
	server.Exec(t, "ALTER SYSTEM SET fsync = off")
	server.Exec(t, "SELECT pg_reload_conf()")
	waitUntil(t, func() bool {
		_, err := s.Ready(context.Background())
		return errors.Is(err, ledger.ErrUnavailable) && strings.Contains(err.Error(), "fsync off")
	})
}

func TestOpenRefusesTheWrongSchema(t *testing.T) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			database := e.url(t)
			check := func(says string) {
				t.Helper()
				err := openError(t, sqlstore.Config{URL: database})
				if !strings.Contains(err.Error(), says) || !errors.Is(err, ledger.ErrUnavailable) {
					t.Errorf("the refusal does not say %q: %v", says, err)
				}
			}
			check("idemd migrate up")
			if err := sqlstore.Migrate(ctx, sqlstore.Config{URL: database}, nil); err != nil {
				t.Fatal(err)
			}
			s := openStore(t, sqlstore.Config{URL: database})

			// A later build added a step that this one can live with, and then one that it cannot.
			execute(t, database, "INSERT INTO idemd_schema VALUES (1000, 'later', 0, 1)")
			if _, err := s.Ready(ctx); err != nil {
				t.Errorf("a harmless later step: %v", err)
			}
			execute(t, database, "UPDATE idemd_schema SET needs = 1000 WHERE step = 1000")
			check("run the later build")

			execute(t, database, "DELETE FROM idemd_schema WHERE step > 4")
			check("idemd migrate up")
		})
	}
}

func TestOpenRefusesADatabaseThatCannotHoldEveryText(t *testing.T) {
	server := pgtest.Start(t)
	server.Exec(t, "CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE_PROVIDER libc LOCALE 'C'")
	u, err := url.Parse(server.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/latin"
	for _, err := range []error{
		openError(t, sqlstore.Config{URL: u.String()}), sqlstore.Migrate(context.Background(), sqlstore.Config{URL: u.String()}, nil),
	} {
		if err == nil || !strings.Contains(err.Error(), "ENCODING 'UTF8'") {
			t.Errorf("the refusal does not say what to do: %v", err)
		}
	}
}

func TestUnreachable(t *testing.T) {
	err := openError(t, sqlstore.Config{URL: "postgres://u:very-secret@127.0.0.1:1/d?sslmode=disable"})
	checkClass(t, err, ledger.ErrUnavailable)
	if !strings.Contains(err.Error(), "127.0.0.1:1") || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("the error does not say where and why: %v", err)
	}
}

// Every write and read says unavailable once the server is gone, and works again once it is back, on the same store.
func TestServerGoesAndComesBack(t *testing.T) {
	server := pgtest.Start(t)
	d := newDatabase(t, server.URL(t))
	s := d.real(t)
	scope := scopeOf(1)
	mustWrite(t, s, begin(scope))
	server.Kill(t)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	waitUntil(t, func() bool { // what was in flight may be unknown; then it is unavailable
		_, err := s.Write(ctx, begin(scopeOf(2)))
		return errors.Is(err, ledger.ErrUnavailable)
	})
	_, err := s.Get(ctx, scope)
	checkClass(t, err, ledger.ErrUnavailable)
	server.Restart(t)
	waitUntil(t, func() bool {
		_, err := s.Ready(ctx)
		return err == nil
	})
	if e := mustGet(t, s, scope); e == nil {
		t.Error("what was acknowledged is gone")
	}
	mustWrite(t, s, begin(scopeOf(3)))
}

func TestPasswordsAreNeverShown(t *testing.T) {
	const password = "hunter2/:@%41"
	var logged bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	server := pgtest.Start(t)
	database, err := url.Parse(server.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	escaped := url.UserPassword("nobody-here", password).String()
	urls := []string{
		"postgres://nobody-here:" + password + "@[::1/d", // not a URL
		"postgres://" + escaped + "@127.0.0.1:1/d",
		"postgres://" + escaped + "@127.0.0.1:1/d?sslmode=bogus",
		"postgres://" + escaped + "@localhost/d?host=" + database.Query().Get("host"), // no such user
		"host=127.0.0.1 port=1 user=u password='" + password + "' bogus",
	}
	for _, u := range urls {
		cfg := sqlstore.Config{URL: u, Logger: logger, ConnectTimeout: time.Second}
		_, openErr := sqlstore.Open(context.Background(), cfg)
		_, statusErr := sqlstore.MigrationStatus(context.Background(), cfg)
		for _, err := range []error{openErr, cfg.Validate(), sqlstore.Migrate(context.Background(), cfg, nil), statusErr} {
			if err != nil && (strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), escaped)) {
				t.Errorf("the password is in %q", err)
			}
		}
		if openErr == nil {
			t.Errorf("%d was opened", len(u))
		}
	}
	if strings.Contains(logged.String(), "hunter2") {
		t.Errorf("the password was logged: %s", logged.String())
	}
}

func TestValidateNamesTheField(t *testing.T) {
	const good = "postgres://u@h/d"
	for field, cfg := range map[string]sqlstore.Config{
		"URL":              {},
		"MaxConns":         {URL: good, MaxConns: -1},
		"ClockMargin":      {URL: good, ClockMargin: time.Millisecond},
		"StatementTimeout": {URL: good, StatementTimeout: -1},
		"ConnectTimeout":   {URL: good, ConnectTimeout: -1},
	} {
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if err := (sqlstore.Config{URL: good}).Validate(); err != nil {
		t.Error(err)
	}
}
