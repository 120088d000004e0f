package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// jsonForm is protobuf's own JSON, so that what a script learns here it knows of grpcurl and of every client: lowerCamelCase, int64 as text,
// bytes in base64, times in RFC 3339. Zero values are printed: a script need not know which fields can be absent.
var jsonForm = protojson.MarshalOptions{EmitDefaultValues: true}

// protoJSON is a message on one line. protojson varies its spaces on purpose; scripts and tests compare bytes.
func protoJSON(m proto.Message) (json.RawMessage, error) {
	raw, err := jsonForm.Marshal(m)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := json.Compact(&out, raw); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// printProto prints a message as one line of JSON.
func printProto(w *printer, m proto.Message) error {
	raw, err := protoJSON(m)
	if err != nil {
		return err
	}
	w.printf("%s\n", raw)
	return nil
}

// printJSON prints a value of this program's own as one line of JSON.
func printJSON(w *printer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

// printer writes, and remembers the first failure: a script whose disk is full must not take half a list for all of it.
type printer struct {
	to     io.Writer
	failed error
}

// Write implements [io.Writer].
func (p *printer) Write(b []byte) (int, error) {
	if p.failed != nil {
		return 0, p.failed
	}
	n, err := p.to.Write(b)
	p.failed = err
	return n, err
}

// printf writes; run tells what went wrong.
func (p *printer) printf(format string, args ...any) { _, _ = fmt.Fprintf(p, format, args...) }

// printable makes text safe for a terminal: keys, holders, reasons and answers are other people's words, and some terminals obey them.
func printable(text string) string {
	clean := func(r rune) bool { return r == '\n' || r == '\t' || r != utf8.RuneError && unicode.IsPrint(r) }
	if strings.IndexFunc(text, func(r rune) bool { return !clean(r) }) < 0 {
		return text
	}
	var out strings.Builder
	for i, r := range text {
		switch {
		case clean(r):
			out.WriteRune(r)
		case r == utf8.RuneError:
			fmt.Fprintf(&out, `\x%02x`, text[i])
		default:
			quoted := strconv.QuoteRuneToASCII(r)
			out.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return out.String()
}

// oneLine is printable text without line breaks.
func oneLine(text string) string {
	return printable(strings.NewReplacer("\n", `\n`, "\r", `\r`, "\t", `\t`).Replace(text))
}

// table prints rows under a header, each column as wide as its widest cell. An empty cell is a dash, so that columns can be counted.
func table(w *printer, header []string, rows [][]string) {
	widths := make([]int, len(header))
	for _, row := range append([][]string{header}, rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell), 1)
		}
	}
	for _, row := range append([][]string{header}, rows...) {
		var line strings.Builder
		for i, cell := range row {
			if cell == "" {
				cell = "-"
			}
			line.WriteString(cell)
			line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
		}
		w.printf("%s\n", strings.TrimRight(line.String(), " "))
	}
}

// facts prints names and values in two columns, and leaves out what has no value.
type facts struct{ rows [][2]string }

func (f *facts) add(name, format string, args ...any) {
	if value := fmt.Sprintf(format, args...); value != "" {
		f.rows = append(f.rows, [2]string{name, value})
	}
}

func (f *facts) print(w *printer) {
	width := 0
	for _, row := range f.rows {
		width = max(width, len(row[0]))
	}
	for _, row := range f.rows {
		value := strings.ReplaceAll(row[1], "\n", "\n"+strings.Repeat(" ", width+2))
		w.printf("%-*s  %s\n", width, row[0], value)
	}
}

// clockFace tells times by the reader's zone, and how long before or after the store's clock they are. The machine's own clock is not asked.
type clockFace struct {
	now  time.Time
	zone *time.Location
}

func (w *world) clock(now *timestamppb.Timestamp) clockFace {
	return clockFace{now: now.AsTime(), zone: w.zone}
}

const timeLayout = "2006-01-02 15:04:05 MST"

// tell is a time and its age; "" for one that is not set.
func (c clockFace) tell(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return fmt.Sprintf("%s (%s)", t.AsTime().In(c.zone).Format(timeLayout), c.ago(t))
}

// ago is how long ago a time is, or how long it will be.
func (c clockFace) ago(t *timestamppb.Timestamp) string {
	switch d := c.now.Sub(t.AsTime()); {
	case d > -time.Second && d < time.Second:
		return "now"
	case d < 0:
		return "in " + roughly(-d)
	default:
		return roughly(d) + " ago"
	}
}

// age is how long ago a time is; "" for one that is not set.
func (c clockFace) age(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return roughly(max(c.now.Sub(t.AsTime()), 0))
}

// roughly is a duration to about two digits, since a person reads it.
func roughly(d time.Duration) string {
	switch {
	case d >= 2*day:
		return formatDuration(d.Truncate(time.Hour))
	case d >= 2*time.Hour:
		return formatDuration(d.Truncate(time.Minute))
	default:
		return formatDuration(d.Truncate(time.Second))
	}
}

// words turns the name of an enum value into words: ENTRY_CONDITION_FAILED_FINAL under its prefix into "failed-final".
func words(name, prefix string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, prefix)), "_", "-")
}
