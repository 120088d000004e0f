package outbox_test

import (
	"os"
	"testing"

	"github.com/idemd/idemd/clientlib/internal/sqldbtest"
)

func TestMain(m *testing.M) {
	if os.Getenv(victimVariable) != "" {
		victim()
		return
	}
	sqldbtest.Main(m)
}
