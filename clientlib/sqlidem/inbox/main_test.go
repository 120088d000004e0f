package inbox_test

import (
	"testing"

	"github.com/idemd/idemd/clientlib/internal/sqldbtest"
)

func TestMain(m *testing.M) { sqldbtest.Main(m) }
