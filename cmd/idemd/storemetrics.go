package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/sqlitestore"
	"github.com/idemd/idemd/ledger/sqlstore"
)

// watchStoreNumbers shows a store's own numbers among the metrics.
func watchStoreNumbers(registry prometheus.Registerer, store ledger.Store) {
	switch s := store.(type) {
	case *sqlitestore.Store:
		watchEmbedded(numbers[sqlitestore.Stats]{registry, s.Stats})
	case *sqlstore.Store:
		watchSQL(numbers[sqlstore.Stats]{registry, s.Stats})
	}
}

// numbers are a store's numbers on their way to Prometheus, read when it asks.
type numbers[Stats any] struct {
	registry prometheus.Registerer
	stats    func() Stats
}

func (n numbers[Stats]) counter(name, help string, read func(Stats) float64) {
	n.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return read(n.stats()) }))
}

func (n numbers[Stats]) gauge(name, help string, read func(Stats) float64) {
	n.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return read(n.stats()) }))
}

func watchSQL(n numbers[sqlstore.Stats]) {
	n.counter("idemd_sql_commits_total", "Transactions that held gathered writes and were committed.", func(s sqlstore.Stats) float64 { return float64(s.Batches) })
	n.counter("idemd_sql_writes_total", "Writes in those transactions. Divided by the transactions: how many writes share one sync of the database's log.",
		func(s sqlstore.Stats) float64 { return float64(s.Writes) })
	n.counter("idemd_sql_writes_apart_total", "Writes that were sent by themselves because their batch came to nothing, or another write of their entry was under way that way.",
		func(s sqlstore.Stats) float64 { return float64(s.Apart) })
	n.counter("idemd_sql_batches_redone_total", "Batches that came to nothing, so that each of their writes was sent again by itself.",
		func(s sqlstore.Stats) float64 { return float64(s.Redone) })
	n.counter("idemd_sql_read_statements_total", "Statements that read entries, each for one or many reads. PostgreSQL only.",
		func(s sqlstore.Stats) float64 { return float64(s.ReadBatches) })
	n.counter("idemd_sql_reads_total", "Reads in those statements.", func(s sqlstore.Stats) float64 { return float64(s.Reads) })
	n.gauge("idemd_sql_queued_writes", "Writes that wait for their turn now.", func(s sqlstore.Stats) float64 { return float64(s.Queued) })
}

func watchEmbedded(n numbers[sqlitestore.Stats]) {
	n.counter("idemd_embedded_clock_alarms_total", "How often this machine's clock was seen to be stepped. The ledger's clock does not follow until the "+
		"daemon starts again: put the machine's clock right before that.", func(s sqlitestore.Stats) float64 { return float64(s.ClockAlarms) })
	n.counter("idemd_embedded_commits_total", "Transactions that were made durable.", func(s sqlitestore.Stats) float64 { return float64(s.Batches) })
	n.counter("idemd_embedded_writes_total", "Writes in those transactions. Divided by the transactions: how many writes share one sync of the disk.",
		func(s sqlitestore.Stats) float64 { return float64(s.Writes) })
	n.counter("idemd_embedded_commit_seconds_total", "How long those transactions took, from their begin until they were durable. Divided by their number: what the "+
		"disk takes for one sync.", func(s sqlitestore.Stats) float64 { return s.CommitTime.Seconds() })
	n.counter("idemd_embedded_commit_failures_total", "Transactions that failed: the disk is full or broken.",
		func(s sqlitestore.Stats) float64 { return float64(s.CommitFailures) })
	n.gauge("idemd_embedded_queued_writes", "Writes that wait for their turn now.", func(s sqlitestore.Stats) float64 { return float64(s.Queued) })
	n.gauge("idemd_embedded_log_bytes", "The size of the write-ahead log. It grows while a backup runs, or while a shell has a transaction open on the file.",
		func(s sqlitestore.Stats) float64 { return float64(s.LogBytes) })
	n.counter("idemd_embedded_recalled_total", "Replays that were answered from memory.", func(s sqlitestore.Stats) float64 { return float64(s.Recalled) })
	n.gauge("idemd_embedded_remembered_bytes", "Memory that answers for replays take.", func(s sqlitestore.Stats) float64 { return float64(s.RememberedBytes) })
}
