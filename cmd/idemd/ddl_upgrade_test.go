package main

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/fingerprint"
	"github.com/idemd/idemd/clientlib/sqlidem"
	"github.com/idemd/idemd/clientlib/sqlidem/inbox"
	"github.com/idemd/idemd/clientlib/sqlidem/outbox"
	"github.com/idemd/idemd/clientlib/webhook"
	"github.com/idemd/idemd/clientlib/webhook/sqlreceipts"
)

// TestTablesOfTheFirstVersionGoOn: they are migrated while their rows stand, and what those rows promise is kept. Its inbox, outbox and
// receipts recorded no steps.
func TestTablesOfTheFirstVersionGoOn(t *testing.T) {
	for _, e := range ddlEngines {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			url := e.url(t)
			first, err := os.ReadFile("testdata/ddl_first_" + e.name + ".sql")
			if err != nil {
				t.Fatal(err)
			}
			pool, err := pgxpool.New(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			// In one message, as a client sends a file.
			if err := pool.AcquireFunc(t.Context(), func(c *pgxpool.Conn) error {
				return c.Conn().PgConn().Exec(t.Context(), string(first)).Close()
			}); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				migrateAll(t, url, sqlidem.DefaultTablePrefix)
			}
			asked, err := fingerprint.Bytes([]byte("asked"))
			if err != nil {
				t.Fatal(err)
			}
			answerOfTheFirstVersion(t, pool, asked)
			messageOfTheFirstVersion(t, pool, asked)
			eventOfTheFirstVersion(t, pool)
			deliveryOfTheFirstVersion(t, pool)
		})
	}
}

func answerOfTheFirstVersion(t *testing.T, pool *pgxpool.Pool, asked fingerprint.Fingerprint) {
	t.Helper()
	db, err := sqlidem.NewPgx(pool, sqlidem.Config{})
	if err != nil {
		t.Fatal(err)
	}
	result, err := sqlidem.Do(t.Context(), db, clientlib.Ref{Operation: "charge", Key: "k"}, asked, func(context.Context, pgx.Tx) (clientlib.Response, error) {
		t.Error("it was done again")
		return clientlib.Response{}, nil
	}, sqlidem.Options{})
	if err != nil || result.Outcome != clientlib.Replayed || string(result.Response.Body) != "charged" {
		t.Errorf("the answer: %+v, %v", result, err)
	}
}

func messageOfTheFirstVersion(t *testing.T, pool *pgxpool.Pool, asked fingerprint.Fingerprint) {
	t.Helper()
	in, err := inbox.NewPgx(pool, inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	outcome, err := in.Handle(t.Context(), inbox.Message{Subscriber: "billing", ID: "m", Fingerprint: asked}, func(context.Context, pgx.Tx) error { return nil })
	if err != nil || outcome != inbox.Duplicate {
		t.Errorf("the message: %v, %v", outcome, err)
	}
}

func eventOfTheFirstVersion(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	out, err := outbox.NewPgx(pool, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := out.Write(t.Context(), tx, outbox.Event{AggregateType: "order", AggregateID: "17", Type: "OrderShipped"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var published []string
	d, err := outbox.NewDispatcher(out, outbox.OneByOne(func(_ context.Context, e outbox.Envelope) error {
		published = append(published, e.Type+" "+string(e.Payload)+e.Headers["a"])
		return nil
	}), outbox.DispatcherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.RunOnce(t.Context()); err != nil || len(published) != 2 || published[0] != "OrderPaid paidb" {
		t.Errorf("the event: %q, %v", published, err)
	}
}

func deliveryOfTheFirstVersion(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	receipts, err := sqlreceipts.NewPgx(pool, sqlreceipts.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var got webhook.Delivery
	standing, err := receipts.Run(t.Context(), "shop", "d", func(_ context.Context, d webhook.Delivery) error {
		got = d
		return nil
	})
	if err != nil || standing != webhook.Done || got.Type != "paid" || string(got.Body) != "{}" || !got.ReceivedAt.Equal(time.Unix(1700000000, 0)) {
		t.Errorf("the delivery: %v, %v, %+v", standing, err, got)
	}
}
