package sqlitestore

import (
	"bytes"
	"database/sql/driver"
	"errors"
	"io"
	"log/slog"
	"testing"
)

func textLogger(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

var errEnough = errors.New("enough")

func TestTheLogIsEmptiedOnceItIsTooLarge(t *testing.T) {
	t.Parallel()
	s := openForTest(t, Config{Dir: t.TempDir()})
	setLogLimit(t, s, 64<<10)
	for n := range int64(200) {
		pair(t, s, n, 2000)
	}
	stats := s.Stats()
	if stats.LogEmptied == 0 {
		t.Errorf("the log was never emptied, and has %d bytes", stats.LogBytes)
	}
}

// A reader that stays keeps the log from being emptied. It must keep nothing else: writers go on, and the log is emptied once it leaves.
func TestALongReaderLetsTheLogGrowAndStopsNobody(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := openForTest(t, Config{Dir: t.TempDir(), Logger: textLogger(&log)})
	fill(t, s, 50)
	outside, err := openConnection(t.Context(), s.path, "", "ro")
	if err != nil {
		t.Fatal(err)
	}
	err = outside.query(t.Context(), "SELECT id FROM entry", nil, func([]driver.Value) error {
		setLogLimit(t, s, 64<<10)
		for n := range int64(100) {
			pair(t, s, 1000+n, 2000)
		}
		return errEnough
	})
	if !errors.Is(err, errEnough) {
		t.Fatal(err)
	}
	if stats := s.Stats(); stats.LogEmptied != 0 || stats.LogBytes < 64<<10 {
		t.Errorf("the log was emptied under a reader: %+v", stats)
	}
	if !bytes.Contains(log.Bytes(), []byte("could not be emptied")) {
		t.Error("nobody is told why the log grows")
	}
	if err := outside.close(); err != nil {
		t.Fatal(err)
	}
	setLogLimit(t, s, 64<<10)
	pair(t, s, 5000, 10)
	if stats := s.Stats(); stats.LogEmptied == 0 {
		t.Errorf("the log is not emptied after the reader left: %+v", stats)
	}
}

func setLogLimit(t *testing.T, s *Store, bytes int64) {
	t.Helper()
	if err := onWriter(t, s, func(w *writer) error { w.log.limit = bytes; return nil }); err != nil {
		t.Fatal(err)
	}
}
