package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// write writes a file in a directory of the test's own.
func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// shown is the line that config check prints for a setting.
func shown(t *testing.T, r result, setting string) string {
	t.Helper()
	if r.code != exitOK {
		t.Fatalf("config check: %+v", r)
	}
	for _, line := range strings.Split(r.stdout, "\n") {
		if words := strings.Fields(line); len(words) > 0 && words[0] == setting {
			return strings.Join(words[1:], " ")
		}
	}
	t.Fatalf("config check does not show %s:\n%s", setting, r.stdout)
	return ""
}

// TestFlagsWinOverTheEnvironmentOverTheFileOverDefaults, setting by setting, and config check says which it was.
func TestFlagsWinOverTheEnvironmentOverTheFileOverDefaults(t *testing.T) {
	t.Parallel()
	file := write(t, "idemd.yaml", "data-dir: /in/file\ndrain-timeout: 11s\nlog-format: json\nmax-waiters: 11\nstore-pooler: true\n")
	environ := []string{"IDEMD_CONFIG=" + file, "IDEMD_DATA_DIR=/in/environment", "IDEMD_DRAIN_TIMEOUT=22s", "IDEMD_LOG_LEVEL="}
	r := runAlone(t, environ, "config", "check", "--data-dir", "/in/flag")
	for setting, want := range map[string]string{
		"data-dir":      "/in/flag --data-dir",
		"drain-timeout": "22s IDEMD_DRAIN_TIMEOUT",
		"max-waiters":   "11 " + file + ":4",
		"store-pooler":  "true " + file + ":5",
		"log-format":    "json " + file + ":3",
		"log-level":     "info default", // a variable that is empty is not set
	} {
		if got := shown(t, r, setting); got != want {
			t.Errorf("%s: %s, want %s", setting, got, want)
		}
	}
	// --config itself is a setting like the others.
	other := write(t, "other.yaml", "max-waiters: 33")
	if got := shown(t, runAlone(t, environ, "config", "check", "--config", other), "max-waiters"); !strings.HasPrefix(got, "33 ") {
		t.Errorf("with --config: %s", got)
	}
}

// TestNoFileIsReadUnlessItIsNamed is TestFlagsWin's other half.
func TestNoFileIsReadUnlessItIsNamed(t *testing.T) {
	t.Parallel()
	if got := shown(t, runAlone(t, nil, "config", "check"), "max-waiters"); got != "20000 default" {
		t.Errorf("max-waiters: %s", got)
	}
}

func TestTheFileIsReadStrictly(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ content, want string }{
		"an unknown setting":          {"data-dir: /x\nmax-wayters: 3\n", ":2: there is no setting \"max-wayters\"; did you mean max-waiters?"},
		"a setting of other people":   {"addr: localhost:1\n", ":1: there is no setting \"addr\""},
		"the name of the variable":    {"IDEMD_DATA_DIR: /x\n", ":1: there is no setting \"IDEMD_DATA_DIR\""},
		"a setting twice":             {"data-dir: /x\nlog-level: info\ndata-dir: /y\n", ":3: data-dir stands there twice, first in line 1"},
		"no value":                    {"data-dir:\n", ":1: data-dir: want one value"},
		"a list":                      {"\n\ndata-dir: [a, b]\n", ":3: data-dir: want one value"},
		"a nested file":               {"store:\n  url: x\n", ":1: store: want one value"},
		"a file that names a file":    {"config: x.yaml\n", ":1: there is no setting \"config\""},
		"a value of another type":     {"max-waiters: many\n", ":1: max-waiters:"},
		"a length without a unit":     {"sweep-interval: 10\n", ":1: sweep-interval: \"10\" is not a duration"},
		"a word that is none":         {"log-level: loud\n", ":1: log-level: \"loud\" is none of debug, info, warn, error"},
		"no YAML":                     {"data-dir: /x\n\tlog-level: info\n", "line 2"},
		"two documents":               {"data-dir: /x\n---\ndata-dir: /y\n", "want one document"},
		"a list of settings":          {"- data-dir: /x\n", ":1: want lines of the form"},
		"every fault is told at once": {"log-level: loud\nmax-waiters: many\n", ":2: max-waiters:"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := write(t, "idemd.yaml", c.content)
			r := runAlone(t, nil, "config", "check", "--config", file)
			if r.code != exitUsage || !strings.Contains(r.stderr, c.want) || !strings.Contains(r.stderr, file) {
				t.Errorf("want exit 2 and %q, got %+v", c.want, r)
			}
		})
	}
	t.Run("an empty file is one", func(t *testing.T) {
		t.Parallel()
		for _, content := range []string{"", "# nothing yet\n", "---\n"} {
			if r := runAlone(t, nil, "config", "check", "--config", write(t, "idemd.yaml", content)); r.code != exitOK {
				t.Errorf("%q: %+v", content, r)
			}
		}
	})
	t.Run("a file that is not there", func(t *testing.T) {
		t.Parallel()
		if r := runAlone(t, []string{"IDEMD_CONFIG=/nowhere/idemd.yaml"}, "config", "check"); r.code != exitUsage || !strings.Contains(r.stderr, "/nowhere/idemd.yaml") {
			t.Errorf("%+v", r)
		}
	})
}

func TestTheEnvironmentIsReadStrictly(t *testing.T) {
	t.Parallel()
	for _, command := range [][]string{{"serve"}, {"config", "check"}, {"config", "print"}, {"migrate", "status"}, {"backup", "/nowhere/x"}} {
		r := runAlone(t, []string{"IDEMD_STOR=postgresql://db/x"}, command...)
		if r.code != exitUsage || !strings.Contains(r.stderr, "IDEMD_STOR: there is no such setting; did you mean IDEMD_STORE?") {
			t.Errorf("%v: %+v", command, r)
		}
	}
	t.Run("an operator's command only warns", func(t *testing.T) {
		t.Parallel()
		r := runAlone(t, []string{"IDEMD_ADR=db:1"}, "stats")
		if r.code != exitUnreachable || !strings.Contains(r.stderr, "warning: IDEMD_ADR: there is no such setting; did you mean IDEMD_ADDR?") {
			t.Errorf("%+v", r)
		}
	})
	t.Run("settings of the other commands are no faults", func(t *testing.T) {
		t.Parallel()
		environ := []string{"IDEMD_ADDR=localhost:1", "IDEMD_TENANT=acme", "IDEMD_OUTPUT=text", "IDEMD_DATA_DIR=/x"}
		if r := runAlone(t, environ, "config", "check"); r.code != exitOK {
			t.Errorf("%+v", r)
		}
		if r := runAlone(t, environ, "stats"); r.code != exitUnreachable || strings.Contains(r.stderr, "warning") {
			t.Errorf("%+v", r)
		}
	})
	t.Run("a value of another type", func(t *testing.T) {
		t.Parallel()
		r := runAlone(t, []string{"IDEMD_MAX_WAITERS=many"}, "config", "check")
		if r.code != exitUsage || !strings.Contains(r.stderr, "IDEMD_MAX_WAITERS:") {
			t.Errorf("%+v", r)
		}
	})
	t.Run("what Kubernetes puts there for a service called idemd is not ours", func(t *testing.T) {
		t.Parallel()
		environ := []string{
			"IDEMD_SERVICE_HOST=10.0.0.1", "IDEMD_SERVICE_PORT=7433", "IDEMD_SERVICE_PORT_GRPC=7433", "IDEMD_PORT=tcp://10.0.0.1:7433",
			"IDEMD_PORT_7433_TCP=tcp://10.0.0.1:7433", "IDEMD_PORT_7433_TCP_PROTO=tcp", "IDEMD_PORT_7433_TCP_PORT=7433", "IDEMD_PORT_7433_TCP_ADDR=10.0.0.1",
			"IDEMD_HEADLESS_SERVICE_HOST=10.0.0.2",
		}
		if r := runAlone(t, environ, "config", "check"); r.code != exitOK || r.stderr != "" {
			t.Errorf("%+v", r)
		}
		if r := runAlone(t, []string{"IDEMD_PORT=7433"}, "config", "check"); r.code != exitUsage {
			t.Errorf("IDEMD_PORT=7433 is somebody's mistake: %+v", r)
		}
	})
}

// TestSettingsThatCannotWorkAreRefusedByName: a row for each rule.
func TestSettingsThatCannotWorkAreRefusedByName(t *testing.T) {
	t.Parallel()
	empty := write(t, "password", "\n")
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"two directories", []string{"--store", "sqlite:///a", "--data-dir", "/b"}, "--store and --data-dir"},
		{"a directory for a database", []string{"--store", "postgresql://u@h/d", "--data-dir", "/b"}, "--data-dir is for the embedded store"},
		{"an unknown store", []string{"--store", "mysql://u@h/d"}, `there is no store "mysql"`},
		{"a store that is no URL", []string{"--store", "/var/lib/idemd"}, "--store: not a URL"},
		{"a relative directory", []string{"--store", "sqlite://data"}, "three slashes"},
		{"a password for a file", []string{"--data-dir", "/x", "--store-password-file", empty}, "--store-password-file: the embedded store has no password"},
		{"two passwords", []string{"--store", "postgresql://u:p@h/d", "--store-password-file", empty}, "--store holds a password already"},
		{"a password without a user", []string{"--store", "postgresql://h/d", "--store-password-file", empty}, "names no user"},
		{"an empty password", []string{"--store", "postgresql://u@h/d", "--store-password-file", empty}, "is empty"},
		{"no password file", []string{"--store", "postgresql://u@h/d", "--store-password-file", "/nowhere/x"}, "--store-password-file"},
		{"no connections", []string{"--store-pool-size", "0"}, "--store-pool-size"},
		{"no time to connect", []string{"--store-connect-timeout", "0"}, "--store-connect-timeout"},
		{"no time for a statement", []string{"--store-statement-timeout", "0"}, "--store-statement-timeout"},
		{"a margin under CockroachDB's", []string{"--store-clock-margin", "100ms"}, "--store-clock-margin: must be at least 500ms"},
		{"no time to drain", []string{"--drain-timeout", "0"}, "--drain-timeout"},
		{"nobody may wait", []string{"--max-waiters", "0"}, "--max-waiters:"},
		{"nobody of a tenant may wait", []string{"--max-waiters-tenant", "0"}, "--max-waiters-tenant:"},
		{"nobody may wait for an entry", []string{"--max-waiters-entry", "-1"}, "--max-waiters-entry:"},
		{"a floor over the ceiling", []string{"--retention-floor", "9d", "--retention-ceiling", "8d"}, "--retention-floor, --retention-ceiling"},
		{"a ceiling over ten years", []string{"--retention-ceiling", "3651d"}, "--retention-ceiling"},
		{"no policies", []string{"--policies", "/nowhere/x.yaml"}, "--policies"},
		{"no address", []string{"--grpc-listen", "7433"}, "--grpc-listen"},
		{"no port", []string{"--http-listen", "127.0.0.1:http"}, "--http-listen"},
		{"gRPC cannot be off", []string{"--grpc-listen", "off"}, "--grpc-listen"},
		{"an argument", []string{"now"}, "wants no arguments"},
		{"an unknown flag", []string{"--port", "1"}, "unknown flag: --port"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, command := range [][]string{{"serve"}, {"config", "check"}} {
				r := runAlone(t, nil, append(command, c.args...)...)
				if r.code != exitUsage || !strings.Contains(r.stderr, c.want) {
					t.Errorf("%v: want exit 2 and %q, got %+v", command, c.want, r)
				}
			}
		})
	}
}

// TestWhatConfigPrintPrintsIsAFileForConfig that says the same.
func TestWhatConfigPrintPrintsIsAFileForConfig(t *testing.T) {
	t.Parallel()
	args := []string{"--data-dir", "/some/where", "--retention-floor", "1d12h", "--log-format", "json", "--sweep-interval", "0", "--store-pooler"}
	first := runAlone(t, nil, append([]string{"config", "print"}, args...)...)
	if first.code != exitOK {
		t.Fatalf("%+v", first)
	}
	// An empty text is how a setting is left at "none".
	second := runAlone(t, nil, "config", "print", "--config", write(t, "idemd.yaml", first.stdout))
	strip := func(text string) string {
		var out []string
		for _, line := range strings.Split(text, "\n") {
			value, _, _ := strings.Cut(line, " #")
			out = append(out, value)
		}
		return strings.Join(out, "\n")
	}
	if strip(first.stdout) != strip(second.stdout) {
		t.Errorf("first\n%s\nthen (%d)\n%s%s", first.stdout, second.code, second.stdout, second.stderr)
	}
}

func TestWithoutADaemonTheExitCodeSaysSo(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"lookup", "a", "b"}, {"list"}, {"stats"}, {"sweep"}, {"health"}, {"policy", "list"}, {"policy", "get", "a"}, {"policy", "set", "a", "--lease", "1m"},
		{"policy", "delete", "a"}, {"policy", "apply", "a"}, {"erase", "acme", "--before", "now", "--yes"},
		{"resolve", "release", "a", "b", "--attempt", "1", "--reason", "x"}, {"resolve", "complete", "a", "b", "--attempt", "1", "--reason", "x"},
		{"resolve", "fail", "a", "b", "--attempt", "1", "--reason", "x", "--code", "9"},
	} {
		r := runAlone(t, nil, append(args, "--addr", "idemd.example:7433")...)
		if r.code != exitUnreachable || !strings.Contains(r.stderr, "no daemon answers at idemd.example:7433") || r.stdout != "" {
			t.Errorf("%v: %+v", args, r)
		}
	}
}
