package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

func readAtMost(r io.Reader, limit int64) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(content)) > limit {
		return nil, fmt.Errorf("longer than %d bytes", limit)
	}
	return content, err
}

// reports is what the calls have in common that report progress.
type reports[M proto.Message] interface{ Recv() (M, error) }

// progressEvery is how often progress is told where no line can be written over.
const progressEvery = 5 * time.Second

// follow prints the reports of a call as they come: one JSON line each for scripts, one line that is written over on a terminal, a line from
// time to time elsewhere, and what it came to in the end. each, if not nil, is called with every report.
func follow[M proto.Message](w *world, c *client, s reports[M], err error, each func(M), text func(M) string) error {
	if err != nil {
		return called(err, c.target.addr)
	}
	var last M
	told := time.Now()
	for some := false; ; some = true {
		report, err := s.Recv()
		switch {
		case errors.Is(err, io.EOF):
			w.endLine(some && !c.target.json())
			if some && !c.target.json() {
				w.stdout.printf("%s\n", text(last))
			}
			return nil
		case err != nil:
			w.endLine(some && !c.target.json())
			if some && !c.target.json() {
				w.stderr.printf("idemd: broken off after: %s\n", text(last))
			}
			return called(err, c.target.addr)
		}
		if each != nil {
			each(report)
		}
		if some && proto.Equal(last, report) {
			continue // nothing happened since
		}
		last = report
		switch {
		case c.target.json():
			if err := printProto(w.stdout, report); err != nil {
				return err
			}
		case w.draws:
			w.stderr.printf("\r\x1b[K%s", text(report))
		case time.Since(told) > progressEvery:
			told = time.Now()
			w.stderr.printf("%s\n", text(report))
		}
	}
}

// endLine wipes the line that is written over.
func (w *world) endLine(drawn bool) {
	if drawn && w.draws {
		w.stderr.printf("\r\x1b[K")
	}
}

func (w *world) sweepCommand() *cobra.Command {
	var request idemv1.SweepRequest
	cmd := &cobra.Command{
		Use: "sweep", Short: "Strip and forget now what is past its retention",
		Long: "Do now what daemons do from time to time: strip answers whose retention is past, close what lapsed, forget tombstones. It never touches a " +
			"live claim or what is held, and yields to traffic. Ending the command ends the sweep; what is done stays done.",
		GroupID: groupRules, Args: exactArgs(),
	}
	t := addTarget(cmd.Flags())
	cmd.Flags().BoolVar(&request.DryRun, "dry-run", false, "only count what would be done")
	cmd.Flags().Int64Var(&request.Limit, "limit", 0, "how many entries to change at most. 0: no limit")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if request.GetLimit() < 0 {
			return usage("--limit: must not be negative")
		}
		c, err := w.connect(cmd.Context(), t)
		if err != nil {
			return err
		}
		defer c.close()
		s, err := c.Sweep(cmd.Context(), &request)
		return follow(w, c, s, err, nil, func(r *idemv1.SweepResponse) string {
			text := fmt.Sprintf("examined %d, stripped %d (%d of them lapsed), forgotten %d", r.GetExaminedCount(), r.GetTombstonedCount(), r.GetLapsedCount(),
				r.GetForgottenCount())
			if request.GetDryRun() {
				text = "dry run: " + text
			}
			if overdue := r.GetOldestOverdueTime(); overdue != nil {
				text += ", oldest overdue since " + overdue.AsTime().In(w.zone).Format(timeLayout)
			}
			return text
		})
	}
	return cmd
}

func (w *world) statsCommand() *cobra.Command {
	var request idemv1.GetStatsRequest
	cmd := &cobra.Command{
		Use: "stats", Short: "Count entries by tenant, operation and condition", GroupID: groupEntries, Args: exactArgs(),
	}
	t := addTarget(cmd.Flags())
	addTenant(cmd.Flags(), &request.Tenant)
	cmd.Flags().StringVar(&request.Operation, "operation", "", "only those of this operation")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		stats, err := ask(cmd.Context(), w, t, func(ctx context.Context, c *client) (*idemv1.GetStatsResponse, error) {
			return c.GetStats(ctx, &request)
		})
		if err != nil {
			return err
		}
		if t.json() {
			return printProto(w.stdout, stats)
		}
		w.printStats(stats)
		return nil
	}
	return cmd
}

func (w *world) printStats(stats *idemv1.GetStatsResponse) {
	clock := w.clock(stats.GetStoreTime())
	var rows [][]string
	for _, count := range stats.GetCounts() {
		rows = append(rows, []string{
			oneLine(count.GetTenant()), oneLine(count.GetOperation()), conditionWord(count.GetCondition()), strconv.FormatInt(count.GetEntryCount(), 10),
			strconv.FormatInt(count.GetDoubtCount(), 10),
		})
	}
	if len(rows) > 0 {
		table(w.stdout, []string{"TENANT", "OPERATION", "CONDITION", "ENTRIES", "IN DOUBT"}, rows)
	} else {
		w.stdout.printf("no entries\n")
	}
	if held := stats.GetOldestHeldTime(); held != nil {
		w.stdout.printf("held longest since %s: see idemd list --condition held\n", clock.tell(held))
	}
	if overdue := stats.GetOldestOverdueTime(); overdue != nil {
		w.stdout.printf("oldest overdue for a sweep since %s\n", clock.tell(overdue))
	}
}

func (w *world) eraseCommand() *cobra.Command {
	var before string
	var force, yes bool
	cmd := &cobra.Command{
		Use: "erase TENANT --before TIME", Short: "Erase what a tenant's entries hold, and leave tombstones",
		Long: "Erase answers, evidence, holders, metadata and names of a tenant's entries. Tombstones stay under hashed names, so that late retries still " +
			"do not run again. It cannot be undone. It can be run again, and then does what is left.\n\n" +
			"Withdraw the tenant's credentials first, and give the time of that as --before: what the tenant begins after it is not erased.",
		Example: "  idemd erase acme --before now\n  idemd erase acme --before 2026-11-30T12:00:00Z --yes -o json",
		GroupID: groupRules, Args: exactArgs("TENANT"),
	}
	t := addTarget(cmd.Flags())
	cmd.Flags().StringVar(&before, "before", "", "only entries created before this `time`: RFC 3339, a date, \"now\", or an age as 30d. Required")
	cmd.Flags().BoolVar(&force, "force", false, "also those that somebody is at work on: their holders are told that the claim is lost")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	_ = cmd.MarkFlagRequired("before")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cutOff, err := parseInstant(before, time.Now(), w.zone)
		if err != nil {
			return usage("--before: %w", err)
		}
		tenant := args[0]
		switch {
		case yes:
		case !w.asks:
			return usage("erasing cannot be undone: where nobody can be asked it needs --yes")
		case !w.confirm(fmt.Sprintf("Erase what the entries of %q hold that were created before %s. This cannot be undone.\nType the tenant's name: ",
			tenant, cutOff.In(w.zone).Format(timeLayout)), tenant):
			return fmt.Errorf("nothing was erased")
		}
		c, err := w.connect(cmd.Context(), t)
		if err != nil {
			return err
		}
		defer c.close()
		return w.erase(cmd.Context(), c, &idemv1.DeleteEntriesRequest{Tenant: tenant, CreateTimeBefore: timestamppb.New(cutOff), Force: force})
	}
	return cmd
}

func (w *world) erase(ctx context.Context, c *client, request *idemv1.DeleteEntriesRequest) error {
	var rows [][]string
	s, err := c.DeleteEntries(ctx, request)
	err = follow(w, c, s, err, func(r *idemv1.DeleteEntriesResponse) {
		for _, skipped := range r.GetSkipped() {
			rows = append(rows, []string{
				skipped.GetRefHash(), conditionWord(skipped.GetCondition()), skipped.GetLeaseExpireTime().AsTime().In(w.zone).Format(timeLayout),
			})
		}
	}, func(r *idemv1.DeleteEntriesResponse) string {
		return fmt.Sprintf("erased %d, skipped %d", r.GetErasedCount(), r.GetSkippedCount())
	})
	if len(rows) > 0 && !c.target.json() {
		w.stdout.printf("skipped, since somebody is at work on them: run it again after their leases, or with --force\n")
		table(w.stdout, []string{"HASH", "CONDITION", "LEASE ENDS"}, rows)
	}
	return err
}

// parseInstant reads a point in time as people write it: RFC 3339, a date, "now", or how long ago.
func parseInstant(text string, now time.Time, zone *time.Location) (time.Time, error) {
	if text == "now" {
		return now, nil
	}
	if age, err := parseDuration(text); err == nil {
		return now.Add(-age), nil
	}
	for _, layout := range []string{time.RFC3339Nano, time.DateTime, time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, zone); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a time: write 2026-11-30T12:00:00Z, 2026-11-30, now, or an age as 30d", text)
}
