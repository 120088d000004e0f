package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

const day = 24 * time.Hour

var leadingDays = regexp.MustCompile(`^(\d+)d`)

// parseDuration reads what people write for retentions too: Go's own form with days in front, as "90d" or "1d12h". A day is 24 hours.
func parseDuration(text string) (time.Duration, error) {
	rest, days := text, time.Duration(0)
	if m := leadingDays.FindStringSubmatch(text); m != nil {
		n, err := strconv.ParseInt(m[1], 10, 64)
		if err != nil || n > 100*365 {
			return 0, fmt.Errorf("%q is longer than 100 years", text)
		}
		if days, rest = time.Duration(n)*day, text[len(m[0]):]; rest == "" {
			return days, nil
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a duration: write it as 90d, 12h, 1m30s or 250ms", text)
	}
	return days + d, nil
}

// formatDuration writes a duration as parseDuration reads it, without the units that are zero.
func formatDuration(d time.Duration) string {
	if d < 0 {
		return "-" + formatDuration(-d)
	}
	out := ""
	if d >= day {
		out, d = strconv.FormatInt(int64(d/day), 10)+"d", d%day
		if d == 0 {
			return out
		}
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return out + text
}

// durationFlag is a flag that is read by parseDuration.
type durationFlag time.Duration

func (d *durationFlag) String() string { return formatDuration(time.Duration(*d)) }
func (d *durationFlag) Type() string   { return "duration" }
func (d *durationFlag) Set(text string) error {
	parsed, err := parseDuration(text)
	if err == nil {
		*d = durationFlag(parsed)
	}
	return err
}

// addDuration adds a duration that is an argument and no setting: its zero means that it was not given, and is not shown as a default.
func addDuration(fs *pflag.FlagSet, d *durationFlag, name, usage string) {
	fs.Var(d, name, usage)
	fs.Lookup(name).DefValue = ""
}

// choice is a flag that takes one of a few words.
type choice struct {
	value string
	words []string
}

func (c *choice) String() string { return c.value }
func (c *choice) Type() string   { return strings.Join(c.words, "|") }
func (c *choice) Set(text string) error {
	for _, word := range c.words {
		if strings.EqualFold(text, word) {
			c.value = word
			return nil
		}
	}
	return fmt.Errorf("%q is none of %s", text, strings.Join(c.words, ", "))
}
