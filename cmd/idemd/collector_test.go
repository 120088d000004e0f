package main

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/idemd/idemd/ledger/sqlitestore"
)

func TestWhatTheCollectorIsTold(t *testing.T) {
	const mb = 1 << 20
	for _, c := range []struct {
		name      string
		environ   map[string]string
		container int64
		want      collectorSettings
	}{
		{"a machine of its own", nil, 0, collectorSettings{growth: heapGrowth}},
		{"a container leaves room for SQLite and the program", nil, 1200 * mb, collectorSettings{heapGrowth, 900 * mb}},
		{"a small container leaves less", nil, 250 * mb, collectorSettings{heapGrowth, 135 * mb}},
		{"GOGC wins", map[string]string{"GOGC": "50"}, 1200 * mb, collectorSettings{limit: 900 * mb}},
		{"GOMEMLIMIT wins", map[string]string{"GOMEMLIMIT": "64MiB"}, 1024 * mb, collectorSettings{growth: heapGrowth}},
	} {
		if got := collector(func(name string) string { return c.environ[name] }, c.container); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// What Go and SQLite may take together stays under what the container may, and SQLite is given no less than before where there is room.
func TestSQLiteIsGivenWhatAContainerHasRoomFor(t *testing.T) {
	for container, want := range map[int64]int64{
		0: sqlitestore.DefaultCacheBytes, 100 << 20: 40 << 20, 250 << 20: 100 << 20, 500 << 20: 200 << 20, 64 << 30: sqlitestore.DefaultCacheBytes,
	} {
		got := cacheBytes(container)
		if got != want {
			t.Errorf("in %d MiB: %d MiB, want %d", container>>20, got>>20, want>>20)
		}
		if all := got + collector(func(string) string { return "" }, container).limit; container > 0 && all >= container {
			t.Errorf("Go and SQLite may take %d MiB together, of %d", all>>20, container>>20)
		}
	}
}

func TestTheTightestControlGroupCounts(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  int64
	}{
		{"no control groups", nil, 0},
		{"version 1 only", map[string]string{"proc/self/cgroup": "4:memory:/docker/1\n", "sys/fs/cgroup/memory.max": "1000\n"}, 0},
		{"no limit", map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 0},
		{"the container's root", map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1000\n"}, 1000},
		{"a path of the host's", map[string]string{"proc/self/cgroup": "0::/kubepods/pod1\n", "sys/fs/cgroup/memory.max": "1000\n"}, 1000},
		{"a service", map[string]string{
			"proc/self/cgroup":                                    "0::/system.slice/idemd.service\n",
			"sys/fs/cgroup/system.slice/memory.max":               "max\n",
			"sys/fs/cgroup/system.slice/idemd.service/memory.max": "2000\n",
		}, 2000},
		{"a slice tighter than its service", map[string]string{
			"proc/self/cgroup":                                    "0::/system.slice/idemd.service\n",
			"sys/fs/cgroup/system.slice/memory.max":               "1500\n",
			"sys/fs/cgroup/system.slice/idemd.service/memory.max": "2000\n",
		}, 1500},
	} {
		files := fstest.MapFS{}
		for name, content := range c.files {
			files[name] = &fstest.MapFile{Data: []byte(content)}
		}
		if got := containerMemory(files); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// The runtime says what it goes by, so that an operator sees it too.
func TestADaemonCollectsAsItIsToldOrByItsEnvironment(t *testing.T) {
	for _, c := range []struct {
		environ []string
		want    int
	}{
		{nil, heapGrowth},
		{[]string{"GOGC=50"}, 50},
	} {
		d := startDaemonIn(t, c.environ, "--data-dir", t.TempDir())
		if line := fmt.Sprintf("\ngo_gc_gogc_percent %d\n", c.want); !strings.Contains(httpGet(t, d.http, "/metrics"), line) {
			t.Errorf("%v: /metrics does not show%s", c.environ, line)
		}
	}
}
