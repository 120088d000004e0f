package main

import "slices"

// The suites that must notice, from quick to slow.
var (
	tables    = []string{"./ledger"}
	orders    = []string{"-run", "TestTheReferenceStore|ComesAndGoes|WhereNothingGoesWrong", "./proof/linear"}
	worlds    = []string{"./proof/sim"}
	embedded  = []string{"./ledger/sqlitestore"}
	postgres  = []string{"-run", "OnPostgreSQLUnderFaults", "./proof/linear"}
	databases = []string{"./ledger/sqlstore"}
	reference = []string{"./ledger/storetest"}
	client    = []string{"./clientlib"}
	serving   = []string{"./server"}
	streams   = []string{"-run", "TestCallsOnStreams", "./proof/linear"}
	// Those of the service's own transaction, on PostgreSQL.
	inOneTransaction = []string{"-run", "TestC11|TestC76|TestAReceipt|TestEachAttempt|TestAFinalFailure|TestAnAttemptThatWakesUp", "./clientlib/sqlidem"}
	consumer         = []string{"./clientlib/sqlidem/inbox"}
	dispatcher       = []string{"-run", "TestC82|TestAMissing|TestAClaimPuts", "./clientlib/sqlidem/outbox"}
	webhooks         = []string{"./clientlib/webhook/sqlreceipts"}
)

var mutants = slices.Concat(rowMutants, decisionMutants, otherMutants, clientMutants, transactionMutants)

// rowMutants break what a write does to a row, and when it may.
var rowMutants = []mutant{
	{
		name: "drop the revision check", file: "ledger/store.go", suites: [][]string{orders},
		old: "return e != nil && e.Incarnation == g.Incarnation && e.Revision == g.Revision",
		new: "return e != nil && e.Incarnation == g.Incarnation",
	},
	{
		name: "an absent row may be there", file: "ledger/store.go", suites: [][]string{orders},
		old: "		return e == nil\n", new: "		return true\n",
	},
	{
		name: "a claim's guard forgets the attempt", file: "ledger/store.go", suites: [][]string{orders},
		old: "e.Current && e.Last.Number == g.Attempt &&", new: "e.Current &&",
	},
	{
		name: "a claim that was given up still guards", file: "ledger/store.go", suites: [][]string{orders},
		old: "e.Current && e.Last.Number == g.Attempt &&", new: "e.Last.Number == g.Attempt &&",
	},
	{
		name: "a claim's guard forgets that it was settled", file: "ledger/store.go", suites: [][]string{orders},
		old: "e.State == Pending && !e.Closed && (e.HoldFrom", new: "!e.Closed && (e.HoldFrom",
	},
	{
		name: "RETRYABLE goes through in doubt", file: "ledger/store.go", suites: [][]string{orders},
		old: "			!(g.Undoubted && e.Doubt)", new: "			!(g.Undoubted && e.Doubt && e.Closed)",
	},
	{
		name: "giving up keeps the claim", file: "ledger/store.go", suites: [][]string{orders},
		old: "		c.Current = false\n		c.Doubt = true\n		c.AbandonedAt = now", new: "		c.Doubt = true\n		c.AbandonedAt = now",
	},
	{
		name: "giving up raises no doubt", file: "ledger/store.go", suites: [][]string{orders},
		old: "		c.Current = false\n		c.Doubt = true\n		c.AbandonedAt = now", new: "		c.Current = false\n		c.AbandonedAt = now",
	},
	{
		name: "a settlement shortens the retention that was promised", file: "ledger/store.go", suites: [][]string{tables, reference},
		old: "c.Terms.Retention = max(c.Terms.Retention, s.Retention)", new: "c.Terms.Retention = s.Retention",
	},
	{
		name: "the tombstone is forgotten", file: "ledger/entry.go", suites: [][]string{worlds},
		old: "	case now >= e.DueAt.Add(e.Terms.Tombstone):\n		return Absent\n	case now >= e.DueAt:\n		return Expired\n",
		new: "	case now >= e.DueAt:\n		return Absent\n",
	},
	{
		name: "a lease is over before its end", file: "ledger/entry.go", suites: [][]string{worlds},
		old: "case e.Current && now < e.Last.LeaseUntil:", new: "case e.Current && now < e.Last.LeaseUntil.Add(-e.Last.Lease/2):",
	},
}

// decisionMutants break the decision table.
var decisionMutants = []mutant{
	{
		name: "takeover of a live claim", file: "ledger/decide_begin.go", suites: [][]string{orders},
		old: "case condition == Live:\n", new: "case condition == Live && e.Doubt:\n",
	},
	{
		name: "forget the fingerprint on takeover", file: "ledger/decide_begin.go", suites: [][]string{orders},
		old: "if refusal := matchFingerprints(e, r.Fingerprints); refusal != nil {",
		new: "if refusal := matchFingerprints(e, r.Fingerprints); refusal != nil && condition != Abandoned {",
	},
	{
		name: "takeover without doubt", file: "ledger/decide_begin.go", suites: [][]string{orders},
		old: "		c.Doubt = true\n	}\n	c.Earlier = append", new: "	}\n	c.Earlier = append",
	},
	{
		name: "an attempt id grants twice", file: "ledger/decide_begin.go", suites: [][]string{orders},
		old: "	case attempt != nil:\n		return refused(claimLost(\"this attempt lost its claim; its id never grants again\"))\n	case condition == Live:",
		new: "	case condition == Live:",
	},
	{
		name: "a bad row is taken for an outage", file: "ledger/presence.go", suites: [][]string{tables},
		old: "!errors.Is(err, ErrUnavailable)) {", new: "!errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrBadRow)) {",
	},
	{
		name: "no grace after the store was away", file: "ledger/decide_begin.go", suites: [][]string{tables},
		old: "env.Now < grace {", new: "env.Now < grace && e.Closed {",
	},
	{
		name: "a fence falls behind the life before", file: "ledger/decide_begin.go", suites: [][]string{tables},
		old: "w.MinIncarnation = old.Incarnation + MaxAttempts + 1", new: "w.MinIncarnation = old.Incarnation",
	},
	{
		name: "the attempt cap holds nothing", file: "ledger/decide_begin.go", suites: [][]string{orders},
		old: "if c.capReached() {", new: "if c.capReached() && c.Credit {",
	},
	{
		name: "RECOVER runs", file: "ledger/decide_begin.go", suites: [][]string{tables},
		old: "RecoverOnly: r.Mode == Recover,", new: "RecoverOnly: false,",
	},
	{
		name: "a resent report is not recognised", file: "ledger/decide_report.go", suites: [][]string{orders},
		old: "if r.Report == attempt.Report || e.SettledBy == 0", new: "if r.Report == attempt.Report && e.Closed || e.SettledBy == 0",
	},
	{
		name: "whoever lost the claim still settles", file: "ledger/decide_report.go", suites: [][]string{orders},
		old: "	if standing == earlier {\n		lost.Write = keepEvidence", new: "	if standing == earlier && e.Closed {\n		lost.Write = keepEvidence",
	},
	{
		name: "RETRYABLE speaks for attempts in doubt", file: "ledger/decide_report.go", suites: [][]string{orders},
		old: "r.Failure.Disposition != Retryable || !e.Doubt {", new: "r.Failure.Disposition != Retryable || !e.Doubt || e.Last.Number > 1 {",
	},
	{
		name: "a recovery is believed over a later success", file: "ledger/decide_report.go", suites: [][]string{tables},
		old: "if !e.Last.RecoverOnly || e.Evidence.Success() && e.Evidence.At > e.Last.BeganAt {", new: "if !e.Last.RecoverOnly {",
	},
	{
		name: "a late failure replaces the evidence of a success", file: "ledger/decide_report.go", suites: [][]string{orders},
		old: "have.Report == r.Report || have.Success() && r.Response == nil {", new: "have.Report == r.Report {",
	},
	{
		name: "a late success changes nothing about a RETRYABLE", file: "ledger/decide_report.go", suites: [][]string{orders, tables},
		old: "if e.State == FailedRetryable {\n			//", new: "if e.State == FailedRetryable && e.Closed {\n			//",
	},
	{
		name: "a release raises no doubt", file: "ledger/decide_operator.go", suites: [][]string{orders},
		old: "c.Current, c.Doubt, c.Credit = false, true, true", new: "c.Current, c.Credit = false, true",
	},
	{
		name: "a release credit is never used up", file: "ledger/decide_begin.go", suites: [][]string{orders, tables},
		old: "c.Credit, c.Last.OnCredit = false, true", new: "c.Last.OnCredit = true",
	},
	{
		name: "an operator settles a live claim without force", file: "ledger/decide_operator.go", suites: [][]string{orders},
		old: "	case condition == Live && !r.Force:\n		return refused(", new: "	case condition == Live && !r.Force && e.Closed:\n		return refused(",
	},
	{
		name: "an operator decides about an attempt that nobody saw", file: "ledger/decide_operator.go", suites: [][]string{orders},
		old: "	case r.Attempt != e.Last.Number:", new: "	case r.Attempt > e.Last.Number:",
	},
	{
		name: "a release that is sent again releases again", file: "ledger/decide_operator.go", suites: [][]string{orders},
		old: "d.Action == r.Action && d.Attempt == r.Attempt && d.Report == r.Report {", new: "d.Action == r.Action && d.Attempt == r.Attempt && d.Report == r.Report && r.Action != ResolveRelease {",
	},
	{
		name: "an erasure takes a live claim away", file: "ledger/decide_operator.go", suites: [][]string{orders},
		old: "		return Verdict{Outcome: Skipped}", new: "		env.Now++",
	},
	{
		name: "a report settles what was erased", file: "ledger/decide_report.go", suites: [][]string{orders},
		old: "	case Lapsed, Expired:\n		return refused(expired())\n	case ConditionCompleted:", new: "	case ConditionCompleted:",
	},
	{
		name: "sweep a pending entry", file: "ledger/decide_operator.go", suites: [][]string{tables},
		old: "		if e.DueAt > now {\n			return SweepNothing, nil\n		}\n", new: "		if e.DueAt > now {\n			return SweepForget, nil\n		}\n",
	},
	{
		name: "a sweep closes for good at once", file: "ledger/decide_operator.go", suites: [][]string{worlds},
		old: "c.DueAt = e.ForgetAt()", new: "c.DueAt = now",
	},
}

// otherMutants break what carries decisions out: the ledger, the stores, the server and the client library.
var otherMutants = []mutant{
	{
		name: "an unknown outcome is called a refusal", file: "ledger/ledger.go", suites: [][]string{orders},
		old: "d.own || w.Extend == nil\n		return false, ctx.Err()\n", new: "d.own || w.Extend == nil\n		return false, storeRefusal(ErrUnavailable)\n",
	},
	{
		name: "an unknown outcome is taken for a write", file: "ledger/ledger.go", suites: [][]string{orders},
		old: "d.own || w.Extend == nil\n		return false, ctx.Err()\n", new: "d.own || w.Extend == nil\n		return true, nil\n",
	},
	{
		name: "leases are judged by the daemon's own clock, which is ahead", file: "ledger/ledger.go", suites: [][]string{orders},
		old: "env.Now, env.Floor = reading.Now,", new: "env.Now, env.Floor = Time(time.Now().Add(time.Hour).UnixMicro()),",
	},
	{
		name: "a policy of any age is followed", file: "ledger/policies.go", suites: [][]string{tables},
		old: "return time.Since(c.asOf) < policyMaxAge", new: "return time.Since(c.asOf) >= 0",
	},
	{
		name: "waiters are not woken", file: "ledger/waiters.go", suites: [][]string{worlds},
		old: "		close(entry.changed)\n", new: "",
	},
	{
		name: "a waiter never leaves", file: "ledger/waiters.go", suites: [][]string{worlds},
		old: "		close(w.watch.stop)\n		delete(hub.entries, w.scope)\n", new: "",
	},
	{
		name: "a token proves any attempt", file: "ledger/token.go", suites: [][]string{tables},
		old: "if mac := s.tokenMAC(scope, public); !hmac.Equal(mac[:], token[tokenBytes-16:]) {", new: "if mac := s.tokenMAC(scope, public); hmac.Equal(mac[:], public) {",
	},
	{
		name: "SQLite does not sync", file: "ledger/sqlitestore/store.go", suites: [][]string{embedded},
		old: "\"synchronous = full\",", new: "\"synchronous = normal\",",
	},
	{
		name: "SQLite acknowledges a commit that failed", file: "ledger/sqlitestore/writer.go", suites: [][]string{embedded},
		old: "if _, err := w.conn.exec(\"COMMIT\"); err != nil {", new: "if _, err := w.conn.exec(\"COMMIT\"); errors.Is(err, errOneFailed) {",
	},
	{
		name: "the log is synced before it is written", file: "ledger/sqlitestore/layerlog.go", suites: [][]string{embedded},
		old: "if rc := f.flush(tls, file); rc != sqlite3.SQLITE_OK {\n		return rc\n	}\n	rc := f.sync(tls, file, flags)",
		new: "defer f.flush(tls, file)\n	rc := f.sync(tls, file, flags)",
	},
	{
		name: "what failed commits left in the log stays there", file: "ledger/sqlitestore/layerlog.go", suites: [][]string{embedded},
		old: "	if b.unsure {\n", new: "	if b.unsure && false {\n",
	},
	{
		name: "the log is let go after a failed sync of the database", file: "ledger/sqlitestore/layer.go", suites: [][]string{embedded},
		old: "	if f.seals.unkept.Load() {\n", new: "	if f.seals.unkept.Load() && false {\n",
	},
	{
		name: "a sweep of many rows is one transaction", file: "ledger/sqlitestore/queue.go", suites: [][]string{embedded},
		old: "share = max(idleShare, min(idleTimes*weight, maxBatch-weight))", new: "share = maxBatch",
	},
	{
		name: "SQLite forgets a row that changed", file: "ledger/sqlitestore/write.go", suites: [][]string{embedded},
		old: " || row.entry.Revision != rows[i].Revision {", new: " {",
	},
	{
		name: "SQL drops the revision check", file: "ledger/sqlstore/statements.go", suites: [][]string{postgres, databases},
		old: "revisionGuard = `e.incarnation = $2::INT8 AND e.revision = $3::INT8`", new: "revisionGuard = `e.incarnation = $2::INT8 AND e.revision > 0 * $3::INT8`",
	},
	{
		name: "SQL drops the attempt check", file: "ledger/sqlstore/statements.go", suites: [][]string{postgres, databases},
		old: "e.is_current AND e.attempt = $3::INT4 AND", new: "e.is_current AND e.attempt > 0 * $3::INT4 AND",
	},
	{
		name: "40003 is taken for a conflict", file: "ledger/sqlstore/errors.go", suites: [][]string{postgres, databases},
		old: "	case \"40003\": // statement completion unknown\n		return unknown\n", new: "	case \"40003\":\n		return unavailable\n",
	},
	{
		name: "a broken connection is taken for nothing done", file: "ledger/sqlstore/errors.go", suites: [][]string{postgres, databases},
		old: "		// The connection broke, or a time limit of the store passed, after the statement was sent.\n		return unknown\n", new: "		return unavailable\n",
	},
	{
		name: "an end of the caller's time is taken for nothing done", file: "ledger/sqlstore/run.go", suites: [][]string{databases},
		old: "	if k == writing {\n		return zero, ended(ctx, op, unknown)\n	}\n", new: "",
	},
	{
		name: "an end of the caller's time is taken for nothing done, in a batch", file: "ledger/sqlstore/gather.go", suites: [][]string{databases},
		old: "	default:\n		return ledger.Written{}, ended(ctx, \"write\", unknown)\n", new: "	default:\n		return ledger.Written{}, ended(ctx, \"write\", unavailable)\n",
	},
	{
		name: "SQL acknowledges a batch whose commit failed", file: "ledger/sqlstore/gather.go", suites: [][]string{databases},
		old: "return s.classified(context.Background(), \"write\", writing, conn.SendBatch(ctx, &pipeline).Close())",
		new: "_ = conn.SendBatch(ctx, &pipeline).Close()\n	return nil",
	},
	{
		name: "a gathered read leaves out what stands apart", file: "ledger/sqlstore/gather_reads.go", suites: [][]string{postgres, databases},
		old: "		if r != nil && *r.apart {\n			continue\n		}\n", new: "",
	},
	{
		name: "SQL settles in batches what has lapsed", file: "ledger/sqlstore/many.go", suites: [][]string{databases},
		old: " + guard + \" AND \" + notLapsed + ", new: " + guard + ",
	},
	{
		name: "SQLite lets a failed commit come back", file: "ledger/sqlitestore/writer.go", suites: [][]string{embedded},
		old: "		w.ghost = w.ghost || errors.Is(err, ledger.ErrUnknown)\n", new: "",
	},
	{
		name: "another tenant's entries are anybody's", file: "server/identity.go", suites: [][]string{serving},
		old: "if p.AnyTenant || tenant == p.Tenant {", new: "if p.AnyTenant || tenant != \"\" {",
	},
	{
		name: "two answers of a session are swapped", file: "server/session.go", suites: [][]string{streams},
		old: "	clear(s.ended[:taken]) // lets go of what is sent\n",
		new: "	clear(s.ended[:taken])\n	if r := message.GetResults(); len(r) > 1 {\n		r[0].Id, r[1].Id = r[1].Id, r[0].Id\n	}\n",
	},
	{
		name: "a cancelled call's write is told as not done", file: "server/session.go", suites: [][]string{streams},
		old: "	response, err := to.handle(ctx, request)\n",
		new: "	response, err := to.handle(ctx, request)\n	if ctx.Err() != nil {\n		err = onWire(errSessionDrains)\n	}\n",
	},
	{
		name: "what a stream lost is sent again as another attempt", file: "clientlib/session.go", suites: [][]string{streams},
		old: "	return l.LedgerServiceClient.Begin(ctx, request, options...)\n",
		new: "	request.AttemptId = request.GetAttemptId()[:35] + \"0\"\n	return l.LedgerServiceClient.Begin(ctx, request, options...)\n",
	},
	{
		name: "a guard runs although the ledger is away", file: "clientlib/do.go", suites: [][]string{worlds},
		old: "case away && r.options.FailOpen:", new: "case away:",
	},
	{
		name: "a recovery hook is not asked", file: "clientlib/granted.go", suites: [][]string{worlds},
		old: "		return r.recover(ctx, h, r.options.Abandoned.hook)\n	default:", new: "		return Result{}, true, nil\n	default:",
	},
	{
		name: "Refuse runs again", file: "clientlib/granted.go", suites: [][]string{worlds},
		old: "		if h.claim.OnCredit {", new: "		if !h.claim.OnCredit {",
	},
	{
		name: "not knowing is reported as nothing happened", file: "clientlib/classify.go", suites: [][]string{worlds},
		old: "	return c[s.Code()]\n", new: "	if class := c[s.Code()]; class != Unknown {\n		return class\n	}\n	return Retryable\n",
	},
	{
		name: "a report ends with its caller", file: "clientlib/settle.go", suites: [][]string{client},
		old: "	detached := context.WithoutCancel(ctx)\n", new: "	detached := ctx\n",
	},
}

// clientMutants break what the client library does around the work.
var clientMutants = []mutant{
	{
		name: "a dry run uses up its caller's time", file: "clientlib/do.go", suites: [][]string{client},
		old: "(r.options.FailOpen || r.options.DryRun) {", new: "r.options.FailOpen {",
	},
	{
		name: "a release is not seen", file: "clientlib/granted.go", suites: [][]string{client},
		old: "if h.claim.OnCredit {", new: "if h.claim.OnCredit && h.claim.RecoverOnly {",
	},
	{
		name: "another's retryable failure is taken for the answer", file: "clientlib/granted.go", suites: [][]string{client},
		old: "			if outcome.Failure.GetDisposition() == idemv1.Disposition_DISPOSITION_FINAL {", new: "			if outcome.Failure != nil {",
	},
	{
		name: "a heartbeat crosses the report", file: "clientlib/held.go", suites: [][]string{client},
		old: "	<-h.stopped\n", new: "",
	},
	{
		name: "a report in the background is its caller's to change", file: "clientlib/settle.go", suites: [][]string{client},
		old: "	report = report.copied()", new: "	_ = report.copied()",
	},
	{
		name: "an operator's settlement does not end a report", file: "clientlib/settle.go", suites: [][]string{client},
		old: "	case errors.Is(err, ErrClaimLost), errors.Is(err, ErrAlreadySettled):", new: "	case errors.Is(err, ErrClaimLost):",
	},
	{
		name: "a recovery that nobody made speaks for all attempts", file: "clientlib/settle.go", suites: [][]string{client},
		old: "		class = Unknown // such", new: "		class = Retryable // such",
	},
	{
		name: "a failure that quotes bytes is never recorded", file: "clientlib/classify.go", suites: [][]string{client},
		old: "strings.ToValidUTF8(told.GetMessage(), \"\\ufffd\")", new: "strings.Clone(told.GetMessage())",
	},
	{
		name: "a refusal speaks for the tries before it", file: "clientlib/outcome.go", suites: [][]string{client},
		old: " || len(trailer.Get(EarlierTriesTrailer)) > 0", new: "",
	},
	{
		name: "two callers have one fingerprint", file: "clientlib/guard.go", suites: [][]string{client},
		old: "	hash.Write(length[:])\n", new: "",
	},
}

// transactionMutants break what a service keeps in its own database.
var transactionMutants = []mutant{
	{
		name: "another one's row is taken for one's own commit", file: "clientlib/sqlidem/do.go", suites: [][]string{inOneTransaction},
		old: "r.seen.Last.IDHash == r.begin.IDHash && ", new: "",
	},
	{
		name: "a final failure keeps its mutation", file: "clientlib/sqlidem/do.go", suites: [][]string{inOneTransaction},
		old: "s.t.Script(s.control, rollbackToWork)", new: "s.t.Script(s.control, \"SELECT 1\")",
	},
	{
		name: "a transaction behind a fence commits", file: "clientlib/sqlidem/statements.go", suites: [][]string{inOneTransaction},
		old: " AND r.fence <= excluded.fence AND", new: " AND",
	},
	{
		name: "a fence goes up over an answer", file: "clientlib/sqlidem/statements.go", suites: [][]string{inOneTransaction},
		old: " AND r.answer IS NULL\"", new: "\"",
	},
	{
		name: "the second attempt puts up no fence", file: "clientlib/sqlidem/receipts.go", suites: [][]string{inOneTransaction},
		old: "claim.Attempt != 1 &&", new: "claim.Attempt > 2 &&",
	},
	{
		name: "a handler that fails keeps its mutation", file: "clientlib/sqlidem/inbox/inbox.go", suites: [][]string{consumer},
		old: "		if !done {\n", new: "		if !done && false {\n",
	},
	{
		name: "a dispatcher that lost its claim is believed", file: "clientlib/sqlidem/outbox/store.go", suites: [][]string{dispatcher},
		old: " AND fence = $3::INT8 RETURNING 1)", new: " AND $3::INT8 > 0 RETURNING 1)",
	},
	{
		name: "who waited behind a final failure runs the work", file: "clientlib/webhook/sqlreceipts/sqlreceipts.go", suites: [][]string{webhooks},
		old: "	case state != waiting:\n", new: "	case false:\n",
	},
}
