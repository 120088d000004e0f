package clientlib

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	resendFirst = 50 * time.Millisecond
	resendMax   = 2 * time.Second
	// oddTries is how often a call is resent on an answer that should not happen, such as INTERNAL: once may be an accident,
	// ten times is a bug that resending does not cure.
	oddTries = 4
)

// answered is a response, and when the try that it answers was sent, on the local monotonic clock.
type answered[R any] struct {
	response R
	at       time.Time
}

// pace says how a call is resent.
type pace struct {
	// try bounds each try.
	try time.Duration
	// limit bounds all of it, pauses included, where the caller set no end, or a later one. Zero: no bound of its own.
	limit time.Duration
	// ceiling bounds the pause between two tries, unless the server asks for a longer one.
	ceiling time.Duration
	// oddTries bounds the tries that get answers which should not happen. Zero: no bound.
	oddTries int
	// insists: a refusal that may be about us for the moment, and not about the call, is no answer.
	insists bool
}

// resend calls until there is an answer that stands, or ctx or the limit ends. Its error is an [*Error].
func resend[R any](
	ctx context.Context, c *Client, call string, pace pace, send func(context.Context) (R, error),
) (answered[R], error) {
	var last *Error
	// Nearly every call is answered at its first try, which needs one timer, not two: its own, set to the limit where that is sooner.
	tryTime, end := pace.try, time.Now().Add(pace.limit)
	if pace.limit > 0 {
		tryTime = min(pace.try, pace.limit)
	}
	for try, odd := 0, 0; ; try++ {
		if ctx.Err() != nil {
			err := ended(ctx, call, last)
			err.unsent = try == 0
			return answered[R]{}, err
		}
		tryCtx, cancel := context.WithTimeout(ctx, tryTime)
		at := time.Now()
		response, err := send(tryCtx)
		cancel()
		if err == nil {
			return answered[R]{response: response, at: at}, nil
		}
		if try == 0 && pace.limit > 0 {
			var release context.CancelFunc
			ctx, release = context.WithDeadline(ctx, end)
			defer release()
		}
		last = fromStatus(status.Convert(err), err)
		switch again, isOdd := worthResending(ctx, last); {
		case !again && !(pace.insists && unwanted(last)):
			return answered[R]{}, last
		case isOdd:
			if odd++; odd == pace.oddTries {
				return answered[R]{}, last
			}
		}
		c.telemetry.resent(ctx, call)
		if !pause(ctx, resendDelay(try, pace.ceiling, last.RetryAfter)) {
			return answered[R]{}, ended(ctx, call, last)
		}
	}
}

// worthResending says whether the same request may fare better, and whether the answer is one that should not happen.
func worthResending(ctx context.Context, e *Error) (again, odd bool) {
	switch e.Code {
	case codes.Unavailable:
		return true, false
	case codes.ResourceExhausted, codes.Aborted:
		return e.RetryAfter > 0, false
	case codes.DeadlineExceeded, codes.Canceled:
		// This try's own end, or the server's; the caller's is noticed by its context.
		return ctx.Err() == nil, e.FromServer
	case codes.Internal, codes.Unknown:
		return true, true
	default:
		return false, false
	}
}

// unwanted says whether a refusal is of whoever calls, and may pass: credentials that ran out and are renewed, or the word of something that
// stands before the ledger, which has not seen the call.
func unwanted(err error) bool {
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	return e.Code == codes.Unauthenticated || !e.FromServer && (e.Code == codes.PermissionDenied || e.Code == codes.Unimplemented)
}

// turnedAway says whether something before the ledger would not take the call: gRPC's own limit of size, or a proxy's of size or of rate, which answer the
// same code, without a reason.
func turnedAway(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == codes.ResourceExhausted && !e.FromServer
}

// ended says that the time was up before an answer stood. It carries on what the server last said, if it said anything.
func ended(ctx context.Context, call string, last *Error) *Error {
	if last == nil || last.Code == codes.DeadlineExceeded || last.Code == codes.Canceled {
		return contextError(ctx, "no answer from the ledger to "+call+"; whether it was carried out is not known")
	}
	return last
}

// ambiguous says whether a call that ended with err may have been carried out all the same.
func ambiguous(err error) bool {
	var e *Error
	if !errors.As(err, &e) {
		return true
	}
	if unsent(err) {
		return false
	}
	switch e.Code {
	case codes.Unavailable:
		// A ledger that cannot reach its store, or is going, has not done it; but an earlier try may have got through.
		return true
	case codes.DeadlineExceeded, codes.Canceled, codes.Internal, codes.Unknown:
		return true
	default:
		return false
	}
}

// unsent says whether a call ended before it was made for the first time.
func unsent(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.unsent
}

// resendDelay is the pause before the try after the given one (counted from 0): growing, random over its upper half so that
// callers who were cut off together do not come back together, and never shorter than the server asked for.
func resendDelay(try int, ceiling, asked time.Duration) time.Duration {
	delay := ceiling
	if try < 16 {
		delay = min(resendFirst<<try, ceiling)
	}
	delay = delay/2 + rand.N(delay/2+1)
	if asked > 0 {
		delay = max(delay, asked+rand.N(asked/4+1))
	}
	return delay
}

// pause waits, or reports false once ctx has ended, at once where the wait would not end before the deadline.
func pause(ctx context.Context, d time.Duration) bool {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= d {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
