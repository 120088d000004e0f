package layout

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/idemd/idemd"

// allowed says for each package what it may import beside the standard library: a path, or a path and everything below it where it
// ends in "/...". Packages of this module are named from its root. A package that is not listed fails: decide where it belongs first.
//
// The directions that matter: ledger imports nothing; stores know ledger and their driver, never each other, the server or gRPC; the
// server knows no store; clientlib knows neither server nor stores.
var allowed = map[string][]string{
	"ledger":                 {},
	"ledger/storetest":       {"ledger", "pgregory.net/rapid"},
	"ledger/sqlitestore":     {"ledger", "modernc.org/sqlite/...", "modernc.org/libc", "golang.org/x/sys/..."},
	"ledger/sqlstore":        {"ledger", "github.com/jackc/pgx/v5/...", "github.com/cockroachdb/cockroach-go/v2/crdb/..."},
	"ledger/sqlstore/pgtest": {"github.com/jackc/pgx/v5/...", "github.com/cockroachdb/cockroach-go/v2/testserver"},
	"server": {
		"ledger", "gen/...", "google.golang.org/...", "buf.build/go/protovalidate", "buf.build/gen/go/...",
		"github.com/grpc-ecosystem/go-grpc-middleware/...", "github.com/prometheus/...", "go.opentelemetry.io/...", "github.com/google/uuid",
	},
	"server/servertest": {"server", "ledger", "ledger/storetest", "gen/...", "google.golang.org/...", "github.com/prometheus/...", "go.opentelemetry.io/..."},
	"clientlib": {
		"gen/...", "clientlib/fingerprint", "google.golang.org/...", "go.opentelemetry.io/...",
		"github.com/grpc-ecosystem/go-grpc-middleware/...", "github.com/google/uuid",
	},
	"clientlib/fingerprint": {"gen/...", "google.golang.org/protobuf/..."},
	"clientlib/httpidem":    {"clientlib", "clientlib/fingerprint", "gen/...", "google.golang.org/...", "github.com/google/uuid"},
	"clientlib/sqlidem": {
		"clientlib", "clientlib/fingerprint", "clientlib/internal/sqldb", "gen/...", "ledger", "google.golang.org/...", "github.com/jackc/pgx/v5/...",
		"github.com/cockroachdb/cockroach-go/v2/crdb/...", "github.com/google/uuid",
	},
	"clientlib/idemtest":            {"clientlib", "server/servertest", "gen/...", "google.golang.org/..."},
	"clientlib/sqlidem/inbox":       {"clientlib/fingerprint", "clientlib/internal/sqldb", "github.com/jackc/pgx/v5/..."},
	"clientlib/webhook":             {"clientlib", "clientlib/fingerprint", "gen/...", "google.golang.org/..."},
	"clientlib/webhook/sqlreceipts": {"clientlib", "clientlib/fingerprint", "clientlib/internal/sqldb", "clientlib/sqlidem/inbox", "clientlib/webhook", "github.com/jackc/pgx/v5/..."},
	"clientlib/sqlidem/outbox":      {"clientlib/internal/sqldb", "github.com/jackc/pgx/v5/...", "github.com/google/uuid"},
	"clientlib/internal/sqldb":      {"github.com/jackc/pgx/v5/...", "github.com/cockroachdb/cockroach-go/v2/crdb/..."},
	"clientlib/internal/sqldbtest":  {"ledger/sqlstore/pgtest", "github.com/jackc/pgx/v5/..."},
	"cmd/idemd":                     {"..."},
	"cmd/idemd/internal/workload": {
		"clientlib", "gen/...", "google.golang.org/...", "github.com/google/uuid", "github.com/HdrHistogram/hdrhistogram-go",
	},
	"proof/daemon":       {"google.golang.org/grpc/..."},
	"proof/load":         {},
	"proof/linear":       {},
	"proof/sim":          {},
	"proof/model":        {},
	"proof/compare":      {"..."},
	"proof/mutants":      {},
	"tools/layout":       {},
	"tools/cockroachsql": {},
	// What a user would import, and nothing else of ours.
	"examples/payments":                 {"clientlib", "examples/payments/gen/...", "google.golang.org/..."},
	"examples/payments/gen/payments/v1": {"gen/...", "google.golang.org/..."},
	"examples/payments/paymentsd":       {"clientlib", "examples/payments", "google.golang.org/..."},
	"examples/payments/pay":             {"clientlib", "examples/payments", "examples/payments/gen/...", "google.golang.org/..."},
}

func TestEachPackageImportsOnlyWhatItMay(t *testing.T) {
	t.Parallel()
	for dir, imports := range packages(t) {
		rules, listed := allowed[dir]
		if !listed {
			t.Errorf("package %s is not in the table of tools/layout: decide what it may import", dir)
			continue
		}
		for imported, file := range imports {
			if !permitted(rules, imported) {
				t.Errorf("%s imports %s, which package %s may not", file, imported, dir)
			}
		}
	}
}

func TestTheTableNamesOnlyPackagesThatExist(t *testing.T) {
	t.Parallel()
	have := packages(t)
	for dir := range allowed {
		if _, ok := have[dir]; !ok {
			t.Errorf("the table names %s, which has no Go files", dir)
		}
	}
}

func TestNamesSayWhatTheyHold(t *testing.T) {
	t.Parallel()
	empty := []string{"util", "utils", "common", "helper", "helpers", "misc", "manager", "models", "shared"}
	walk(t, func(file string) {
		for part := range strings.SplitSeq(strings.TrimSuffix(file, ".go"), "/") {
			if slices.Contains(empty, strings.TrimSuffix(part, "_test")) {
				t.Errorf("%s: %q does not say what it holds", file, part)
			}
		}
	})
}

func TestTestsDoNotSleep(t *testing.T) {
	t.Parallel()
	banned := "time." + "Sleep("
	walk(t, func(file string) {
		if !strings.HasSuffix(file, "_test.go") {
			return
		}
		if strings.Contains(read(t, file), banned) {
			t.Errorf("%s sleeps: use the store's movable clock, testing/synctest or a signal", file)
		}
	})
}

// packages returns, for each package of the module, what its non-test files import and where.
func packages(t *testing.T) map[string]map[string]string {
	t.Helper()
	out := map[string]map[string]string{}
	walk(t, func(file string) {
		if strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "gen/") {
			return
		}
		// Reading through os, not through the go command, lets "go test" see when its cached verdict is stale.
		parsed, err := parser.ParseFile(token.NewFileSet(), file, read(t, file), parser.ImportsOnly)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			return
		}
		if parsed.Name.Name == "main" && strings.Contains(read(t, file), "//go:build ignore") {
			return
		}
		dir := path.Dir(file)
		if out[dir] == nil {
			out[dir] = map[string]string{}
		}
		for _, spec := range parsed.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Errorf("%s: %v", file, err)
				continue
			}
			out[dir][imported] = file
		}
	})
	return out
}

func permitted(rules []string, imported string) bool {
	if first, _, _ := strings.Cut(imported, "/"); !strings.Contains(first, ".") {
		return true // the standard library
	}
	imported = strings.TrimPrefix(strings.TrimPrefix(imported, module), "/")
	for _, rule := range rules {
		below, tree := strings.CutSuffix(rule, "/...")
		if rule == "..." || imported == rule || tree && (imported == below || strings.HasPrefix(imported, below+"/")) {
			return true
		}
	}
	return false
}

// walk calls visit for each Go file of this module, named from its root, skipping nested modules and folders that are not part of it.
func walk(t *testing.T, visit func(file string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil && rel != "." {
				return filepath.SkipDir
			}
			if base := entry.Name(); rel != "." && (strings.HasPrefix(base, ".") || base == "node_modules" || base == "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		if strings.HasSuffix(rel, ".go") {
			visit(filepath.ToSlash(rel))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

const root = "../.."

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
