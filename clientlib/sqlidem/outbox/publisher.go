package outbox

import (
	"context"
	"errors"
)

// Publisher hands events to a broker.
type Publisher interface {
	// Publish publishes the events of one aggregate, in order. It returns how many of them, counted from the first, the broker has
	// acknowledged, and an error unless that is all of them. It must not make an event visible to consumers before the ones that stand
	// before it, so a publisher that sends several in one call needs a broker that keeps their order, also when one of them fails.
	//
	// When ctx ends the aggregate may have been given to another dispatcher: Publish must not begin with a further event.
	Publish(ctx context.Context, events []Envelope) (published int, err error)
}

// OneByOne is a [Publisher] of a function that publishes one event and returns when the broker has acknowledged it.
func OneByOne(publish func(ctx context.Context, event Envelope) error) Publisher {
	return oneByOne(publish)
}

type oneByOne func(ctx context.Context, event Envelope) error

func (publish oneByOne) Publish(ctx context.Context, events []Envelope) (int, error) {
	for i, event := range events {
		if err := context.Cause(ctx); err != nil {
			return i, err
		}
		if err := publish(ctx, event); err != nil {
			return i, err
		}
	}
	return len(events), nil
}

// Poison marks a publisher's error as one that no further attempt will cure: the aggregate is parked at once.
func Poison(err error) error { return &judgedError{err, true} }

// Unavailable marks a publisher's error as no fault of the event: the broker cannot be reached, refuses everybody, is full. It is tried
// again for ever and never counts towards parking. A dispatcher comes to the same conclusion by itself where the events of several
// aggregates fail one after the other with no success in between.
func Unavailable(err error) error { return &judgedError{err, false} }

type judgedError struct {
	error
	poison bool
}

func (e *judgedError) Unwrap() error { return e.error }

func isPoison(err error) bool {
	var judged *judgedError
	return errors.As(err, &judged) && judged.poison
}

func isUnavailable(err error) bool {
	var judged *judgedError
	return errors.As(err, &judged) && !judged.poison
}
