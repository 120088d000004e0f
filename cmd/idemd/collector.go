package main

import (
	"io/fs"
	"math"
	"path"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/idemd/idemd/ledger/sqlitestore"
)

// The garbage collector's settings. Calls leave garbage and little that lives: by Go's defaults a busy daemon, whose heap is some tens of megabytes, collects many times
// a second, which took a tenth of its processor time.

const (
	// heapGrowth is by how many percent the heap grows over what lives before it is collected: five times as large, where Go's default is twice.
	heapGrowth = 400
	// cachePercent is how much of a container's memory SQLite's caches may take, which the collector does not see.
	cachePercent = 40
	// goPercent is how much of what is left Go may use. The rest is for what neither counts: a transaction larger than its cache, the program itself.
	goPercent = 90
)

// collectorSettings are what the garbage collector is told; a zero: nothing.
type collectorSettings struct {
	growth int
	// limit is how much memory Go may use before it collects all the time instead of taking more.
	limit int64
}

// collector says what the garbage collector is told. GOGC and GOMEMLIMIT, which Go itself reads, win. container is how much memory this process may use, 0: all that
// there is.
func collector(getenv func(string) string, container int64) (s collectorSettings) {
	if getenv("GOGC") == "" {
		s.growth = heapGrowth
	}
	if getenv("GOMEMLIMIT") == "" && container > 0 {
		s.limit = (container - cacheBytes(container)) / 100 * goPercent
	}
	return s
}

// cacheBytes is how much SQLite's caches may take in a container of so much memory: as much as without one, but for a small container.
func cacheBytes(container int64) int64 {
	if container == 0 {
		return sqlitestore.DefaultCacheBytes
	}
	return min(sqlitestore.DefaultCacheBytes, container/100*cachePercent)
}

func (s collectorSettings) apply() {
	if s.growth != 0 {
		debug.SetGCPercent(s.growth)
	}
	if s.limit != 0 {
		debug.SetMemoryLimit(s.limit)
	}
}

// containerMemory is how many bytes this process and those beside it may use by their control groups, the tightest of which counts; 0 where there is no limit or none can
// be told. files is the file system's root. Version 1 of control groups is not looked at.
func containerMemory(files fs.FS) int64 {
	groups, err := fs.ReadFile(files, "proc/self/cgroup")
	if err != nil {
		return 0
	}
	least := int64(math.MaxInt64)
	for line := range strings.Lines(string(groups)) {
		group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::/")
		if !ok {
			continue
		}
		// Within a container the path may be one that only its host has: then the root is the container's own.
		for at := path.Clean(group); ; at = path.Dir(at) {
			if limit := memoryMax(files, at); limit > 0 {
				least = min(least, limit)
			}
			if at == "." {
				break
			}
		}
	}
	if least == math.MaxInt64 {
		return 0
	}
	return least
}

func memoryMax(files fs.FS, group string) int64 {
	content, err := fs.ReadFile(files, path.Join("sys/fs/cgroup", group, "memory.max"))
	if err != nil {
		return 0
	}
	limit, err := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64)
	if err != nil {
		return 0 // "max"
	}
	return limit
}
