package outbox

import "sync"

// outageAfter is how many aggregates have to fail one after the other, with no success in between, for it to be nobody's fault but the
// broker's.
const outageAfter = 3

// outage tells a broker that is away from an event that is poison. While it lasts, failures do not count towards parking: else an hour
// without a broker would park everything.
type outage struct {
	mu     sync.Mutex
	failed map[Aggregate]struct{} // since the last success, at most outageAfter
	tries  int                    // how many failures there were since it was noticed
}

// fail takes a failure in, which the publisher may have said is the broker's. It reports whether there is an outage, and whether that
// is news.
func (o *outage) fail(a Aggregate, said bool) (away, news bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.failed) < outageAfter {
		if o.failed == nil {
			o.failed = map[Aggregate]struct{}{}
		}
		o.failed[a] = struct{}{}
	}
	if !said && o.tries == 0 && len(o.failed) < outageAfter {
		return false, false
	}
	o.tries++
	return true, o.tries == 1
}

// succeed reports whether an outage is over.
func (o *outage) succeed() (over bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	over = o.tries > 0
	clear(o.failed)
	o.tries = 0
	return over
}

// probes is how often the broker was found away since it went, 0 while it is there.
func (o *outage) probes() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.tries
}

// outageSeen takes a failure in, and reports whether it is the broker's.
func (d *Dispatcher) outageSeen(a Aggregate, err error) bool {
	if isPoison(err) {
		return false
	}
	away, news := d.outage.fail(a, isUnavailable(err))
	if hook := d.config.Hooks.Outage; hook != nil && news {
		hook(true)
	}
	return away
}

func (d *Dispatcher) outageOver() {
	if over := d.outage.succeed(); over && d.config.Hooks.Outage != nil {
		d.config.Hooks.Outage(false)
	}
}
