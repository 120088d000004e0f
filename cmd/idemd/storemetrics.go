package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/sqlitestore"
)

// watchEmbedded shows the embedded store's own numbers among the metrics. A database has its own.
func watchEmbedded(registry prometheus.Registerer, store ledger.Store) {
	embedded, ok := store.(*sqlitestore.Store)
	if !ok {
		return
	}
	counter := func(name, help string, read func(sqlitestore.Stats) float64) {
		registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return read(embedded.Stats()) }))
	}
	gauge := func(name, help string, read func(sqlitestore.Stats) float64) {
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return read(embedded.Stats()) }))
	}
	counter("idemd_embedded_clock_alarms_total", "How often this machine's clock was seen to be stepped. The ledger's clock does not follow until the "+
		"daemon starts again: put the machine's clock right before that.", func(s sqlitestore.Stats) float64 { return float64(s.ClockAlarms) })
	counter("idemd_embedded_commits_total", "Transactions that were made durable.", func(s sqlitestore.Stats) float64 { return float64(s.Batches) })
	counter("idemd_embedded_writes_total", "Writes in those transactions. Divided by the transactions: how many writes share one sync of the disk.",
		func(s sqlitestore.Stats) float64 { return float64(s.Writes) })
	counter("idemd_embedded_commit_seconds_total", "How long those transactions took, from their begin until they were durable. Divided by their number: what the "+
		"disk takes for one sync.", func(s sqlitestore.Stats) float64 { return s.CommitTime.Seconds() })
	counter("idemd_embedded_commit_failures_total", "Transactions that failed: the disk is full or broken.",
		func(s sqlitestore.Stats) float64 { return float64(s.CommitFailures) })
	gauge("idemd_embedded_queued_writes", "Writes that wait for their turn now.", func(s sqlitestore.Stats) float64 { return float64(s.Queued) })
	gauge("idemd_embedded_log_bytes", "The size of the write-ahead log. It grows while a backup runs, or while a shell has a transaction open on the file.",
		func(s sqlitestore.Stats) float64 { return float64(s.LogBytes) })
}
