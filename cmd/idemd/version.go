package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/spf13/cobra"
)

// version is set by the linker for a release (-X main.version=v1.2.3). Other builds say what Go knows of them.
var version string

// build is what this program knows of how it was made. The names are those that `idemd version -o json` prints.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Time     string `json:"commitTime"`
	Modified bool   `json:"modified"`
	Go       string `json:"goVersion"`
	Platform string `json:"platform"`
}

var buildVersion = sync.OnceValue(func() build {
	b := build{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if ok && b.Version == "" {
		b.Version = info.Main.Version
	}
	if b.Version == "" {
		b.Version = "(devel)"
	}
	if !ok {
		return b
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
})

// short is the version alone.
func (b build) short() string { return b.Version }

func (b build) String() string {
	text := "idemd " + b.Version
	if b.Commit != "" {
		text += " commit " + b.Commit[:min(12, len(b.Commit))]
		if b.Modified {
			text += " with changes"
		}
	}
	return fmt.Sprintf("%s %s %s", text, b.Go, b.Platform)
}

func (w *world) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "version", Short: "Say which build this is", GroupID: groupDaemon, Args: exactArgs(),
	}
	out := addOutput(cmd.Flags())
	cmd.RunE = func(*cobra.Command, []string) error {
		if out.value == formJSON {
			return printJSON(w.stdout, buildVersion())
		}
		w.stdout.printf("%s\n", buildVersion())
		return nil
	}
	return cmd
}
