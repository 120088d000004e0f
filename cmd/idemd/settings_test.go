package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// testRoot is the tree of commands in a world of its own.
func testRoot() *cobra.Command { return (&world{}).rootCommand() }

// eachCommand calls f with every command that does something.
func eachCommand(cmd *cobra.Command, f func(*cobra.Command)) {
	f(cmd)
	for _, sub := range cmd.Commands() {
		eachCommand(sub, f)
	}
}

// daemonFlags are the flags of idemd serve.
func daemonFlags(t *testing.T) *pflag.FlagSet {
	t.Helper()
	cmd, _, err := testRoot().Find([]string{"serve"})
	if err != nil {
		t.Fatal(err)
	}
	return cmd.Flags()
}

// TestEverySettingHasAVariableADefaultAndHelp. What is not a setting is an argument of one command, and has help too.
func TestEverySettingHasAVariableADefaultAndHelp(t *testing.T) {
	t.Parallel()
	eachCommand(testRoot(), func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Name == "help" || f.Name == "version" {
				return
			}
			if f.Usage == "" {
				t.Errorf("%s --%s has no help", cmd.CommandPath(), f.Name)
			}
			if !isSetting(f) {
				return
			}
			variable := "IDEMD_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
			if !strings.Contains(f.Usage, "["+variable) {
				t.Errorf("%s --%s: the help does not name %s: %s", cmd.CommandPath(), f.Name, variable, f.Usage)
			}
			says := strings.Contains(f.Usage, "efault")
			if shown := f.DefValue != "" && f.DefValue != "false"; shown == says {
				t.Errorf("%s --%s: the default (%q) is to be said once: %s", cmd.CommandPath(), f.Name, f.DefValue, f.Usage)
			}
		})
	})
	daemonFlags(t).VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" && !isSetting(f) {
			t.Errorf("serve --%s is no setting: it can not be given in the environment", f.Name)
		}
	})
}

// TestASettingMeansTheSameOnEveryCommand: one variable can not have two types or defaults.
func TestASettingMeansTheSameOnEveryCommand(t *testing.T) {
	t.Parallel()
	seen := map[string]*pflag.Flag{}
	eachCommand(testRoot(), func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			before := seen[f.Name]
			if !isSetting(f) || before == nil {
				if isSetting(f) {
					seen[f.Name] = f
				}
				return
			}
			if f.DefValue != before.DefValue || f.Value.Type() != before.Value.Type() {
				t.Errorf("%s --%s: %s %q, elsewhere %s %q", cmd.CommandPath(), f.Name, f.Value.Type(), f.DefValue, before.Value.Type(), before.DefValue)
			}
		})
	})
}

// TestNothingIsReadByNobody: every field of settings is used by something else than the flag that sets it and the check that it is valid.
func TestNothingIsReadByNobody(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, declaration := range file.Decls {
			f, ok := declaration.(*ast.FuncDecl)
			if ok && slices.Contains([]string{"register", "registerStore", "validate"}, f.Name.Name) {
				continue
			}
			ast.Inspect(declaration, func(n ast.Node) bool {
				if selector, ok := n.(*ast.SelectorExpr); ok {
					used[selector.Sel.Name] = true
				}
				return true
			})
		}
	}
	kind := reflect.TypeFor[settings]()
	for i := range kind.NumField() {
		// The sources read --config by its flag, before the settings are filled in.
		if name := kind.Field(i).Name; !used[name] && name != "config" {
			t.Errorf("settings.%s is read by nobody", name)
		}
	}
}

// TestEveryFlagIsNamedInTheDocumentation, with its variable where it has one.
func TestEveryFlagIsNamedInTheDocumentation(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	words := map[string]bool{}
	for _, word := range regexp.MustCompile(`--[a-z0-9-]+|IDEMD_[A-Z_]+`).FindAllString(string(content), -1) {
		words[word] = true
	}
	known := map[string]bool{"--help": true, "--version": true}
	eachCommand(testRoot(), func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			known["--"+f.Name] = true
			if f.Name != "help" && f.Name != "version" && !words["--"+f.Name] {
				t.Errorf("docs/configuration.md does not name %s --%s", cmd.CommandPath(), f.Name)
			}
			if isSetting(f) {
				known[envName(f.Name)] = true
				if !words[envName(f.Name)] {
					t.Errorf("docs/configuration.md does not name %s", envName(f.Name))
				}
			}
		})
	})
	for word := range words {
		if strings.HasPrefix(word, "IDEMD_") && !known[word] && !strings.HasSuffix(word, "_") && !notForUs(word, "tcp://") {
			t.Errorf("docs/configuration.md names %s, which nobody reads", word)
		}
	}
}

func TestTheDefaultDirectoryIsWhereDataBelongs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		uid  int
		env  map[string]string
		want string
	}{
		{"root", 0, map[string]string{"HOME": "/root", "XDG_DATA_HOME": "/x"}, "/var/lib/idemd"},
		{"a user", 1000, map[string]string{"HOME": "/home/ann"}, "/home/ann/.local/share/idemd"},
		{"a user who keeps data elsewhere", 1000, map[string]string{"HOME": "/home/ann", "XDG_DATA_HOME": "/data/ann"}, "/data/ann/idemd"},
		{"a relative XDG_DATA_HOME does not count", 1000, map[string]string{"HOME": "/home/ann", "XDG_DATA_HOME": "data"}, "/home/ann/.local/share/idemd"},
		{"nobody", 65534, map[string]string{"HOME": "/"}, ""},
		{"nothing set", 1000, nil, ""},
	} {
		choice, err := defaultDirectory(c.uid, func(name string) string { return c.env[name] })
		if choice.directory != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%s: %+v, %v", c.name, choice, err)
		}
		if err != nil && !strings.Contains(err.Error(), "--data-dir") {
			t.Errorf("%s: the refusal does not say what to give: %v", c.name, err)
		}
	}
}

func TestSecretsInURLsAreHidden(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                     "",
		"postgresql://idemd@db/x":              "postgresql://idemd@db/x",
		"postgresql://idemd:secret@db/x":       "postgresql://idemd:xxxxx@db/x",
		"postgresql://db/x?password=secret":    "postgresql://db/x?password=xxxxx",
		"postgresql://db/x?sslpassword=secret": "postgresql://db/x?sslpassword=xxxxx",
		"postgresql://idemd:secret@[::1":       "(hidden: not a URL)",
	} {
		if got := redactURL(text); got != want {
			t.Errorf("%s is shown as %s, want %s", text, got, want)
		}
		if got := hasPassword(text); got != strings.Contains(want, "xxxxx") {
			t.Errorf("%s has a password: %t", text, got)
		}
	}
	// Written otherwise than it would be shown, and yet without a secret.
	for _, text := range []string{"postgresql://", "POSTGRESQL://db/x", "postgresql://db/x?", "postgresql://db/ä"} {
		if hasPassword(text) {
			t.Errorf("%s has a password", text)
		}
	}
}

// TestOnlyAPasswordIsWarnedOf: not a URL that is merely written otherwise than it would be shown, nor a password that came from elsewhere.
func TestOnlyAPasswordIsWarnedOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from, store string
		warned      bool
	}{
		{"--store", "postgresql://idemd:secret@127.0.0.1:1/x", true},
		{"--store", "postgresql://idemd@127.0.0.1:1/x?", false},
		{"IDEMD_STORE", "postgresql://idemd:secret@127.0.0.1:1/x", false},
	} {
		var log bytes.Buffer
		w := &world{origins: map[string]string{"store": c.from}}
		w.warnOfPassword(c.store, slog.New(slog.NewTextHandler(&log, nil)))
		if warned := strings.Contains(log.String(), "--store-password-file"); warned != c.warned || strings.Contains(log.String(), "secret") {
			t.Errorf("%s from %s: %s", c.store, c.from, log.String())
		}
	}
}
