package outbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/idemd/idemd/clientlib/internal/sqldb"
)

// Limits of an event.
const (
	// MaxNameLength is how many characters an aggregate type, an aggregate id and an event type may have.
	MaxNameLength = 255
	// MaxHeadersBytes is how long an event's headers may be, as JSON.
	MaxHeadersBytes = 32 << 10
)

// ErrInvalidEvent refuses an event that cannot be written. The transaction is untouched.
var ErrInvalidEvent = errors.New("outbox: invalid event")

// Aggregate names what an event is about, and within what events keep their order: an order, an account, a customer.
type Aggregate struct {
	Type, ID string
}

// Event is what happened, as the service says it.
type Event struct {
	// ID is the same on every delivery of this event: what consumers recognise a repetition by. The zero value: Write makes one.
	ID uuid.UUID
	// AggregateType and AggregateID name the aggregate. Debezium's event router makes the topic of the type and the message's key of the id.
	AggregateType, AggregateID string
	// Type says what happened, for example OrderPaid.
	Type string
	// Payload is published byte by byte as it is. May be empty.
	Payload []byte
	// Headers travel beside the payload. May be nil.
	Headers map[string]string
}

// Aggregate is the event's aggregate.
func (e Event) Aggregate() Aggregate { return Aggregate{e.AggregateType, e.AggregateID} }

// Envelope is an event with what the outbox knows of it.
type Envelope struct {
	Event
	// Version is the event's place within its aggregate: 1, 2, 3 …
	Version int64
	// WrittenAt is when it was written, by the database's clock. Its transaction was committed later.
	WrittenAt time.Time
}

// prepare checks the event and returns its headers as JSON.
func (e *Event) prepare(maxPayload int) (headers string, err error) {
	for _, part := range []struct{ name, value string }{
		{"aggregate type", e.AggregateType}, {"aggregate id", e.AggregateID}, {"type", e.Type},
	} {
		if err := sqldb.CheckName(part.value, MaxNameLength); err != nil {
			return "", fmt.Errorf("%w: its %s %w", ErrInvalidEvent, part.name, err)
		}
	}
	if len(e.Payload) > maxPayload {
		return "", fmt.Errorf("%w: its payload has %d bytes, more than Config.MaxPayloadBytes (%d): put it elsewhere and a reference here",
			ErrInvalidEvent, len(e.Payload), maxPayload)
	}
	for name, value := range e.Headers {
		// jsonb cannot hold U+0000.
		if err := sqldb.CheckName(name, MaxNameLength); err != nil {
			return "", fmt.Errorf("%w: the name of a header %w", ErrInvalidEvent, err)
		}
		if !utf8.ValidString(value) || containsNul(value) {
			return "", fmt.Errorf("%w: header %q is not text", ErrInvalidEvent, name)
		}
	}
	if e.ID == uuid.Nil {
		if e.ID, err = uuid.NewRandom(); err != nil {
			return "", fmt.Errorf("outbox: %w", err)
		}
	}
	if e.Headers == nil {
		return "{}", nil
	}
	encoded, err := json.Marshal(e.Headers)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrInvalidEvent, err)
	}
	if len(encoded) > MaxHeadersBytes {
		return "", fmt.Errorf("%w: its headers have %d bytes, more than %d", ErrInvalidEvent, len(encoded), MaxHeadersBytes)
	}
	return string(encoded), nil
}

func containsNul(s string) bool {
	for i := range len(s) {
		if s[i] == 0 {
			return true
		}
	}
	return false
}
