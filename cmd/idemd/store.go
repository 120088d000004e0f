package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/sqlitestore"
	"github.com/idemd/idemd/ledger/sqlstore"
)

// openedStore is a store that is to be closed.
type openedStore interface {
	ledger.Store
	Close() error
}

func (s *settings) openStore(ctx context.Context, choice storeChoice, log *slog.Logger) (openedStore, error) {
	if choice.url != "" {
		store, err := sqlstore.Open(ctx, s.sqlConfig(choice, log))
		if err != nil {
			return nil, err
		}
		return store, nil
	}
	store, err := sqlitestore.Open(ctx, sqlitestore.Config{
		Dir: choice.directory, Logger: log, AllowClockJump: s.allowClockJump, CacheBytes: cacheBytes(containerMemory(os.DirFS("/"))),
	})
	if err != nil {
		return nil, err
	}
	return store, nil
}

func (s *settings) sqlConfig(choice storeChoice, log *slog.Logger) sqlstore.Config {
	return sqlstore.Config{
		URL: choice.url, MaxConns: s.storePoolSize, Pooler: s.storePooler, AllowUnsafeDurability: s.allowUnsafeDurability,
		ClockMargin: time.Duration(s.storeClockMargin), StatementTimeout: time.Duration(s.storeStatementTimeout),
		ConnectTimeout: time.Duration(s.storeConnectTimeout), Logger: log,
	}
}
