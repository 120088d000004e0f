package cockroachsql

import (
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// sqlPackages hold everything that is ever sent to PostgreSQL or CockroachDB.
var sqlPackages = []string{"ledger/sqlstore", "clientlib", "cmd/idemd"}

// TestEveryStatementInTheTreeIsTakenByCockroachDB looks at every text in the source that is SQL. A text that stands under an "if" that asks for PostgreSQL
// is not sent to CockroachDB. Statements that are put together from parts are checked whole by ledger/sqlstore and clientlib/sqlidem.
func TestEveryStatementInTheTreeIsTakenByCockroachDB(t *testing.T) {
	t.Parallel()
	looked := 0
	for _, dir := range sqlPackages {
		eachFile(t, filepath.Join("..", "..", filepath.FromSlash(dir)), func(path string) {
			switch {
			case strings.HasSuffix(path, ".sql") && !strings.Contains(filepath.ToSlash(path), "/migrations/postgres/"):
				looked += check(t, path, read(t, path))
			case strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go"):
				looked += checkFile(t, path)
			}
		})
	}
	if looked < 60 {
		t.Errorf("only %d statements were found: does this still look where they are?", looked)
	}
}

func eachFile(t *testing.T, dir string, do func(path string)) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.Contains(filepath.ToSlash(path), "/pgtest/") && !strings.Contains(filepath.ToSlash(path), "/testdata/") {
			do(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// check returns 1 if the text is SQL, and complains if CockroachDB refuses it.
func check(t *testing.T, where, text string) int {
	t.Helper()
	if !isSQL(text) {
		return 0
	}
	if why := Refuses(text); why != "" {
		t.Errorf("%s: CockroachDB refuses this: %s:\n%s", where, why, text)
	}
	return 1
}

func isSQL(text string) bool {
	text = plain(text)
	return mutation.MatchString(text) || changesSchema.MatchString(text) ||
		strings.Contains(text, "SELECT ") || strings.Contains(text, "FOR UPDATE") || strings.Contains(text, "LOCK TABLE")
}

func checkFile(t *testing.T, path string) (looked int) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var visit func(n ast.Node) bool
	visit = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt:
			if asksForPostgreSQL(n.Cond) {
				if n.Else != nil {
					ast.Inspect(n.Else, visit)
				}
				return false
			}
		case *ast.BinaryExpr:
			if text, ok := joined(files, n); ok {
				looked += check(t, files.Position(n.Pos()).String(), text)
				return false
			}
		case *ast.BasicLit:
			if text, ok := literal(n); ok {
				looked += check(t, files.Position(n.Pos()).String(), text)
			}
		}
		return true
	}
	ast.Inspect(file, visit)
	return looked
}

// asksForPostgreSQL reports whether a condition is "engine == PostgreSQL".
func asksForPostgreSQL(cond ast.Expr) bool {
	equal, ok := cond.(*ast.BinaryExpr)
	if !ok || equal.Op != token.EQL {
		return false
	}
	name := ""
	switch y := equal.Y.(type) {
	case *ast.Ident:
		name = y.Name
	case *ast.SelectorExpr:
		name = y.Sel.Name
	}
	return strings.EqualFold(name, "PostgreSQL")
}

// joined is the text of a sum of texts, in which everything else stands as it does in the source. It is false where no part is a text.
func joined(files *token.FileSet, e ast.Expr) (text string, isText bool) {
	if sum, ok := e.(*ast.BinaryExpr); ok && sum.Op == token.ADD {
		left, a := joined(files, sum.X)
		right, b := joined(files, sum.Y)
		return left + right, a || b
	}
	if lit, ok := e.(*ast.BasicLit); ok {
		return literal(lit)
	}
	var source strings.Builder
	if err := printer.Fprint(&source, files, e); err != nil {
		return "", false
	}
	return strings.Join(strings.Fields(source.String()), ""), false
}

func literal(lit *ast.BasicLit) (string, bool) {
	if lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}
