package main

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/sqlstore"
)

// The addresses at which a daemon listens, and at which the operators' commands look for it.
const (
	defaultGRPCAddress = "127.0.0.1:7433"
	defaultHTTPAddress = "127.0.0.1:7434"
)

// settings are what a daemon can be told. Each is one flag, one environment variable and one key of the file, all of one name.
type settings struct {
	// env reads the environment for what is not idemd's own, as $HOME; uid is as whom the program runs. Both decide the default directory.
	env func(string) string
	uid int

	config string

	store                 string
	dataDir               string
	storePasswordFile     string
	storePoolSize         int
	storePooler           bool
	storeConnectTimeout   durationFlag
	storeStatementTimeout durationFlag
	storeClockMargin      durationFlag
	allowUnsafeDurability bool
	allowClockJump        bool

	grpcListen     string
	httpListen     string
	insecureListen bool
	drainTimeout   durationFlag

	policies         string
	retentionFloor   durationFlag
	retentionCeiling durationFlag
	sweepInterval    durationFlag
	maxWaiters       int
	maxWaitersTenant int
	maxWaitersEntry  int

	logLevel  choice
	logFormat choice
	readyFile string
}

// Defaults that are this program's own. The others are those of the packages which the settings go to.
const (
	defaultDrainTimeout  = 25 * time.Second
	defaultSweepInterval = time.Minute
	defaultWaiters       = 20_000
	defaultWaitersTenant = 10_000
	defaultWaitersEntry  = 1_000
)

// register makes the flags of the daemon's settings.
func (s *settings) register(fs *pflag.FlagSet) {
	fs.StringVar(&s.config, "config", "", "`file` to read settings from, in YAML: the names are those of the flags, without dashes in front. "+
		"No file is read unless it is named")

	s.registerStore(fs)

	fs.StringVar(&s.grpcListen, "grpc-listen", defaultGRPCAddress, "`address` for gRPC: the ledger, the operators' commands, health and "+
		"reflection. Port 0: any that is free")
	fs.StringVar(&s.httpListen, "http-listen", defaultHTTPAddress, "`address` for HTTP: metrics and health. Port 0: any that is free. "+
		"\"off\": none")
	fs.BoolVar(&s.insecureListen, "insecure-listen", false, "listen beyond this machine although there is neither TLS nor authentication: "+
		"whoever can reach the address can claim and settle every entry")
	s.drainTimeout = durationFlag(defaultDrainTimeout)
	fs.Var(&s.drainTimeout, "drain-timeout", "how long to finish calls after SIGTERM before they are cut. Keep it below the time after which "+
		"your supervisor kills (30 s in Kubernetes, 90 s in systemd)")

	fs.StringVar(&s.policies, "policies", "", "`file` of policies, in YAML, to write at start where there are none yet. What is stored already "+
		"stays as it is")
	s.retentionFloor = durationFlag(ledger.MinRetention)
	fs.Var(&s.retentionFloor, "retention-floor", "keep every answer at least this long, whatever its policy says")
	s.retentionCeiling = durationFlag(ledger.MaxRetention)
	fs.Var(&s.retentionCeiling, "retention-ceiling", "keep no answer longer than this; a policy with a longer horizon cannot be written")
	s.sweepInterval = durationFlag(defaultSweepInterval)
	fs.Var(&s.sweepInterval, "sweep-interval", "how long to pause between sweeps of what is past its retention, on average. 0: this daemon does "+
		"not sweep by itself")
	fs.IntVar(&s.maxWaiters, "max-waiters", defaultWaiters, "how many calls may wait for other claims at once, in this daemon. One more is refused QUOTA")
	fs.IntVar(&s.maxWaitersTenant, "max-waiters-tenant", defaultWaitersTenant, "the same, for each tenant")
	fs.IntVar(&s.maxWaitersEntry, "max-waiters-entry", defaultWaitersEntry, "the same, for each entry")

	s.logLevel = choice{value: "info", words: []string{"debug", "info", "warn", "error"}}
	fs.Var(&s.logLevel, "log-level", "what to log on stderr, and all that is graver")
	s.logFormat = choice{value: "text", words: []string{"text", "json"}}
	fs.Var(&s.logFormat, "log-format", "how to write the log")
	fs.StringVar(&s.readyFile, "ready-file", "", "`file` to write when the daemon serves, with its addresses in JSON, and to remove when it stops")
	markFileSettings(fs)
}

func (s *settings) registerStore(fs *pflag.FlagSet) {
	fs.StringVar(&s.store, "store", "", "`URL` of the store: postgresql://user@host:5432/database (PostgreSQL, CockroachDB), or sqlite:///directory. "+
		"Default: the embedded one, SQLite in --data-dir")
	fs.StringVar(&s.dataDir, "data-dir", "", "`directory` of the embedded store, made if it is missing. Default: /var/lib/idemd as root, else "+
		"$XDG_DATA_HOME/idemd, which is ~/.local/share/idemd unless set")
	fs.StringVar(&s.storePasswordFile, "store-password-file", "", "`file` with the password for --store. A line break at its end does not count")
	fs.IntVar(&s.storePoolSize, "store-pool-size", sqlstore.DefaultMaxConns, "connections to an SQL store. The sum over all daemons should be about four "+
		"for each core of the database")
	fs.BoolVar(&s.storePooler, "store-pooler", false, "--store leads to a pooler that gives a connection for a transaction only, as PgBouncer with "+
		"pool_mode transaction")
	s.storeConnectTimeout = durationFlag(sqlstore.DefaultConnectTimeout)
	fs.Var(&s.storeConnectTimeout, "store-connect-timeout", "how long a connection to an SQL store may take to come up")
	s.storeStatementTimeout = durationFlag(sqlstore.DefaultStatementTimeout)
	fs.Var(&s.storeStatementTimeout, "store-statement-timeout", "how long an SQL store may take over one statement")
	s.storeClockMargin = durationFlag(sqlstore.DefaultClockMargin)
	fs.Var(&s.storeClockMargin, "store-clock-margin", "how far apart the clocks of CockroachDB's nodes can be (--max-offset there). Means nothing elsewhere")
	fs.BoolVar(&s.allowUnsafeDurability, "allow-unsafe-durability", false, "use a PostgreSQL with fsync or synchronous_commit off: a crash can then lose "+
		"what was acknowledged, and a duplicate runs again")
	fs.BoolVar(&s.allowClockJump, "allow-clock-jump", false, "open an embedded store that was last written to more than 7 days ago by this machine's clock. "+
		"Look at the clock first; give it once")
}

// storeFlags are the settings that commands which only open the store listen to.
var storeFlags = []string{
	"config", "store", "data-dir", "store-password-file", "store-pooler", "store-connect-timeout", "store-statement-timeout",
}

// hideAllBut leaves flags out of the help that a command knows only because they may stand in a file it shares with the daemon.
func hideAllBut(fs *pflag.FlagSet, names []string) {
	fs.VisitAll(func(f *pflag.Flag) { f.Hidden = f.Annotations[envAnnotation] != nil })
	for _, name := range names {
		fs.Lookup(name).Hidden = false
	}
}

// validate says everything that is wrong with s, each by the name of its flag.
func (s *settings) validate() error {
	var errs []error
	say := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if _, err := s.chooseStore(); err != nil {
		errs = append(errs, err)
	}
	for _, l := range []struct{ flag, address string }{{"grpc-listen", s.grpcListen}, {"http-listen", s.httpListen}} {
		if l.flag == "http-listen" && l.address == listenOff {
			continue
		}
		if err := checkListen(l.flag, l.address, s.insecureListen); err != nil {
			errs = append(errs, err)
		}
	}
	for _, n := range []struct {
		flag  string
		value int
	}{{"max-waiters", s.maxWaiters}, {"max-waiters-tenant", s.maxWaitersTenant}, {"max-waiters-entry", s.maxWaitersEntry}} {
		if n.value < 1 {
			say("--%s: must be at least 1, is %d. A policy with max_wait 0 makes nobody wait", n.flag, n.value)
		}
	}
	if s.storePoolSize < 1 || s.storePoolSize > 10_000 {
		say("--store-pool-size: must be 1 to 10000, is %d", s.storePoolSize)
	}
	if time.Duration(s.drainTimeout) <= 0 {
		say("--drain-timeout: must be longer than zero")
	}
	for _, d := range []struct {
		flag  string
		value durationFlag
		least time.Duration
	}{
		{"store-connect-timeout", s.storeConnectTimeout, time.Millisecond},
		{"store-statement-timeout", s.storeStatementTimeout, time.Millisecond},
		{"store-clock-margin", s.storeClockMargin, sqlstore.DefaultClockMargin},
	} {
		if time.Duration(d.value) < d.least {
			say("--%s: must be at least %s, is %s", d.flag, formatDuration(d.least), d.value.String())
		}
	}
	clamp := s.clamp()
	if err := clamp.Validate(); err != nil {
		say("--retention-floor, --retention-ceiling: %w", err)
	}
	if s.policies != "" {
		if _, err := readPolicies(s.policies); err != nil {
			say("--policies: %w", err)
		}
	}
	return errors.Join(errs...)
}

func (s *settings) clamp() ledger.Clamp {
	return ledger.Clamp{MinRetention: time.Duration(s.retentionFloor), MaxRetention: time.Duration(s.retentionCeiling)}
}

// storeChoice is where the ledger is kept: in a directory, or in a database.
type storeChoice struct {
	directory string
	url       string // with the password, if there is one: never to be shown
	// chosen says by which rule it is this directory.
	chosen string
}

// String names the store without its password.
func (c storeChoice) String() string {
	if c.url == "" {
		return "sqlite://" + c.directory
	}
	return redactURL(c.url)
}

// chooseStore says where the ledger is kept.
func (s *settings) chooseStore() (storeChoice, error) {
	if s.store == "" {
		return s.chooseDirectory()
	}
	// What cannot be parsed may hold a password that stands in the wrong place: it is not quoted.
	u, err := url.Parse(s.store)
	if err != nil || u.Scheme == "" {
		return storeChoice{}, errors.New("--store: not a URL: want postgresql://user@host:5432/database or sqlite:///directory, with what is special " +
			"in a URL percent-encoded")
	}
	switch u.Scheme {
	case "sqlite":
		switch {
		case s.dataDir != "":
			return storeChoice{}, errors.New("--store and --data-dir both name a directory: give one of them")
		case u.Host != "" || !filepath.IsAbs(u.Path) || u.RawQuery != "":
			return storeChoice{}, errors.New("--store: want sqlite:///directory, three slashes and an absolute path")
		case s.storePasswordFile != "":
			return storeChoice{}, errors.New("--store-password-file: the embedded store has no password")
		}
		return storeChoice{directory: filepath.Clean(u.Path), chosen: "--store"}, nil
	case "postgresql", "postgres", "cockroachdb", "cockroach":
		if s.dataDir != "" {
			return storeChoice{}, errors.New("--data-dir is for the embedded store, and --store names a database: give one of them")
		}
		u.Scheme = "postgresql"
		if err := s.addPassword(u); err != nil {
			return storeChoice{}, err
		}
		return storeChoice{url: u.String()}, nil
	default:
		return storeChoice{}, fmt.Errorf("--store: there is no store %q: want postgresql://, cockroachdb:// or sqlite://", u.Scheme)
	}
}

func (s *settings) addPassword(u *url.URL) error {
	if s.storePasswordFile == "" {
		return nil
	}
	if _, there := u.User.Password(); there {
		return errors.New("--store-password-file: --store holds a password already")
	}
	if u.User.Username() == "" {
		return errors.New("--store-password-file: --store names no user: postgresql://user@host/database")
	}
	content, err := os.ReadFile(s.storePasswordFile)
	if err != nil {
		return fmt.Errorf("--store-password-file: %w", err)
	}
	password := strings.TrimRight(string(content), "\r\n")
	if password == "" {
		return fmt.Errorf("--store-password-file: %s is empty", s.storePasswordFile)
	}
	u.User = url.UserPassword(u.User.Username(), password)
	return nil
}

func (s *settings) chooseDirectory() (storeChoice, error) {
	if s.storePasswordFile != "" {
		return storeChoice{}, errors.New("--store-password-file: the embedded store has no password. Was --store left out?")
	}
	if s.dataDir != "" {
		dir, err := filepath.Abs(s.dataDir)
		if err != nil {
			return storeChoice{}, fmt.Errorf("--data-dir: %w", err)
		}
		return storeChoice{directory: dir, chosen: "--data-dir"}, nil
	}
	return defaultDirectory(s.uid, s.env)
}

// defaultDirectory is where a daemon keeps its ledger that was told nothing. Data, not state or cache: it is to be backed up.
func defaultDirectory(uid int, env func(string) string) (storeChoice, error) {
	if uid == 0 {
		return storeChoice{directory: "/var/lib/idemd", chosen: "the default for root"}, nil
	}
	if dir := env("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return storeChoice{directory: filepath.Join(dir, "idemd"), chosen: "the default, $XDG_DATA_HOME"}, nil
	}
	if home := env("HOME"); filepath.IsAbs(home) && home != "/" {
		return storeChoice{directory: filepath.Join(home, ".local", "share", "idemd"), chosen: "the default for users"}, nil
	}
	return storeChoice{}, errors.New("--data-dir: there is no home directory to put the ledger in: name a directory")
}

// secretParameters are what a database URL can hold in its query that nobody should read.
var secretParameters = []string{"password", "sslpassword"}

// hasPassword reports whether a database URL holds a secret.
func hasPassword(text string) bool {
	u, err := url.Parse(text)
	if err != nil {
		return false // and nothing will be opened with it
	}
	_, there := u.User.Password()
	return there || slices.ContainsFunc(secretParameters, u.Query().Has)
}

// redactURL hides what a database URL holds that nobody should read. What cannot be parsed is hidden whole.
func redactURL(text string) string {
	if text == "" {
		return ""
	}
	u, err := url.Parse(text)
	if err != nil {
		return "(hidden: not a URL)"
	}
	if _, there := u.User.Password(); there {
		u.User = url.UserPassword(u.User.Username(), "xxxxx")
	}
	query := u.Query()
	for _, name := range secretParameters {
		if query.Has(name) {
			query.Set(name, "xxxxx")
			u.RawQuery = query.Encode()
		}
	}
	return u.String()
}
