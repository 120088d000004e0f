package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"sort"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// A setting is a flag that can be given in the environment too, and, where a command has --config, in the file. Arguments of one command
// (--reason, --force) are none: what decides about one entry must not come from a shell's profile.
//
// The order is: flag, environment, file, default. One parser reads all of them, the flag's own, so that a value means the same wherever
// it stands.

const (
	envPrefix     = "IDEMD_"
	envAnnotation = "idemd_env"
	// fileAnnotation marks the settings that can stand in the file: the daemon's.
	fileAnnotation = "idemd_file"
)

func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// markSettings makes settings of flags, and has the help say the variable, and the default where pflag does not.
func markSettings(fs *pflag.FlagSet, names ...string) {
	for _, name := range names {
		f := fs.Lookup(name)
		f.Annotations = map[string][]string{envAnnotation: {envName(name)}}
		note := envName(f.Name)
		switch {
		case strings.Contains(f.Usage, "Default: "): // said there
		case f.DefValue == "":
			note += ", default none"
		case f.DefValue == "false":
			note += ", default false"
		}
		f.Usage += " [" + note + "]"
	}
}

// markFileSettings makes settings of all flags in fs that can stand in the file as well.
func markFileSettings(fs *pflag.FlagSet) {
	fs.VisitAll(func(f *pflag.Flag) {
		markSettings(fs, f.Name)
		if f.Name != "config" {
			f.Annotations[fileAnnotation] = []string{f.Name}
		}
	})
}

func isSetting(f *pflag.Flag) bool { return f.Annotations[envAnnotation] != nil }

// applySources fills in the settings of a command that the command line left open.
func (w *world) applySources(cmd *cobra.Command) error {
	w.origins = map[string]string{}
	env, err := w.environment(cmd)
	if err != nil {
		return err
	}
	path := ""
	if f := cmd.Flags().Lookup("config"); f != nil && isSetting(f) {
		if path = f.Value.String(); !f.Changed && env["config"] != "" {
			path = env["config"]
		}
	}
	var file map[string]fileValue
	if path != "" {
		if file, err = readConfigFile(path, cmd.Flags()); err != nil {
			return asUsage(err)
		}
	}
	var errs []error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !isSetting(f) {
			return
		}
		switch value, there := file[f.Name]; {
		case f.Changed:
			w.origins[f.Name] = "--" + f.Name
		case env[f.Name] != "":
			w.origins[f.Name] = envName(f.Name)
			if err := f.Value.Set(env[f.Name]); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", envName(f.Name), hideSecret(f, err)))
			}
		case there:
			w.origins[f.Name] = fmt.Sprintf("%s:%d", path, value.line)
			if err := f.Value.Set(value.text); err != nil {
				errs = append(errs, fmt.Errorf("%s:%d: %s: %w", path, value.line, f.Name, hideSecret(f, err)))
			}
		}
	})
	return asUsage(errors.Join(errs...))
}

// hideSecret keeps what was given for the store's URL out of messages.
func hideSecret(f *pflag.Flag, err error) error {
	if f.Name == "store" {
		return errors.New("not a URL")
	}
	return err
}

// environment returns the settings in the environment by flag name. A variable that is empty counts as not set. One that no command
// knows is refused where a daemon is started, and elsewhere only mentioned: a mistyped IDEMD_STORE would start an empty ledger.
func (w *world) environment(cmd *cobra.Command) (map[string]string, error) {
	known := map[string]string{}
	for _, f := range allSettings(cmd.Root()) {
		known[envName(f.Name)] = f.Name
	}
	found := map[string]string{}
	var unknown []string
	for _, pair := range w.environ {
		name, value, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(name, envPrefix) || notForUs(name, value) {
			continue
		}
		if flag, ok := known[name]; ok {
			found[flag] = value
			continue
		}
		message := name + ": there is no such setting" + didYouMean(name, sortedKeys(known))
		unknown = append(unknown, message)
	}
	if len(unknown) == 0 {
		return found, nil
	}
	sort.Strings(unknown)
	if cmd.Annotations[strictEnvironment] != "" {
		return nil, usage("the environment: %s", strings.Join(unknown, "\n"))
	}
	for _, message := range unknown {
		w.stderr.printf("idemd: warning: %s\n", message)
	}
	return found, nil
}

// strictEnvironment marks a command that refuses unknown variables.
const strictEnvironment = "idemd_strict_environment"

// Kubernetes puts variables for every service of a namespace into each of its pods; those of a service called "idemd" look like ours.
var (
	serviceLink = regexp.MustCompile(`^IDEMD_(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)
	servicePort = regexp.MustCompile(`^IDEMD_(.+_)?PORT=(tcp|udp|sctp)://`)
)

func notForUs(name, value string) bool {
	return serviceLink.MatchString(name) || servicePort.MatchString(name+"="+value) || strings.HasPrefix(name, "IDEMD_TEST_")
}

// allSettings are the settings of every command, each once.
func allSettings(root *cobra.Command) []*pflag.Flag {
	byName := map[string]*pflag.Flag{}
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if isSetting(f) {
				byName[f.Name] = f
			}
		})
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
	out := make([]*pflag.Flag, 0, len(byName))
	for _, name := range sortedKeys(byName) {
		out = append(out, byName[name])
	}
	return out
}

// fileValue is a value in the file, and where it stands.
type fileValue struct {
	text string
	line int
}

// readConfigFile reads a YAML mapping of setting to value. Whatever is not exactly that is refused, by line.
func readConfigFile(path string, fs *pflag.FlagSet) (map[string]fileValue, error) {
	root, err := readYAML(path)
	if err != nil || root == nil {
		return nil, err
	}
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s:%d: want lines of the form \"setting: value\"", path, root.Line)
	}
	var names []string
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Annotations[fileAnnotation] != nil {
			names = append(names, f.Name)
		}
	})
	values := map[string]fileValue{}
	var errs []error
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		name := key.Value
		_, twice := values[name]
		switch {
		case !slices.Contains(names, name):
			errs = append(errs, fmt.Errorf("%s:%d: there is no setting %q%s", path, key.Line, name, didYouMean(name, names)))
		case twice:
			errs = append(errs, fmt.Errorf("%s:%d: %s stands there twice, first in line %d", path, key.Line, name, values[name].line))
		case value.Kind != yaml.ScalarNode || value.Tag == "!!null":
			errs = append(errs, fmt.Errorf("%s:%d: %s: want one value", path, key.Line, name))
		default:
			values[name] = fileValue{text: value.Value, line: key.Line}
		}
	}
	return values, errors.Join(errs...)
}

// readYAML reads a file of one YAML document; nil for an empty one.
func readYAML(path string) (*yaml.Node, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // only read
	return parseYAML(path, file)
}

func parseYAML(path string, r io.Reader) (*yaml.Node, error) {
	decoder := yaml.NewDecoder(r)
	var document, second yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%s: %s", path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s:%d: want one document", path, second.Line)
	}
	root := document.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil
	}
	return root, nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

// didYouMean names the closest of the known words, if one is close.
func didYouMean(word string, known []string) string {
	best, bestDistance := "", max(3, len(word)/3)
	for _, candidate := range known {
		if d := editDistance(strings.ToLower(word), strings.ToLower(candidate)); d < bestDistance {
			best, bestDistance = candidate, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", best)
}

// editDistance counts the letters to insert, delete or replace to make b of a.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
