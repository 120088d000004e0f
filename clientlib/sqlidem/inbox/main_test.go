package inbox_test

import (
	"testing"

	"github.com/idemd/idemd/clientlib/sqlidem/internal/sqldbtest"
)

func TestMain(m *testing.M) { sqldbtest.Main(m) }
