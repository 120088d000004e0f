package load

import (
	"os"
	"testing"

	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
	"github.com/idemd/idemd/proof/daemon"
)

// program is the real one.
var program daemon.Program

func TestMain(m *testing.M) {
	code := m.Run()
	pgtest.Stop()
	program.Remove()
	os.Exit(code)
}
