package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"google.golang.org/grpc"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/fingerprint"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// EntryLister is the one call of idem.v1.AdminService that [Ledger] makes: an idemv1.AdminServiceClient is one.
type EntryLister interface {
	ListEntries(ctx context.Context, in *idemv1.ListEntriesRequest, opts ...grpc.CallOption) (*idemv1.ListEntriesResponse, error)
}

// LedgerConfig says how receipts are kept in an idemd. Ledger, Entries and Abandoned are required.
type LedgerConfig struct {
	// Ledger is whom to ask.
	Ledger *clientlib.Client
	// Entries lists what an earlier process left behind. Its credentials must be an operator's for the tenant.
	Entries EntryLister
	// Tenant is whose the entries are. Empty: that of the client's credentials.
	Tenant string
	// Abandoned says what becomes of work of which an earlier attempt was abandoned, or failed without saying that nothing happened.
	// There is no default. A hook's claim.Request is the Delivery.
	Abandoned clientlib.Abandoned
	// Lease is for how long the claim on the work is to be exclusive without a heartbeat. Default: the policy's, 60 s by default.
	Lease time.Duration
}

// Ledger keeps receipts in an idemd. A delivery has two entries under its id: one of operation "webhook:<receiver>", whose answer is the
// delivery itself, and one of "webhook-work:<receiver>" for the work. The policy of the first must keep answers whole (store_response
// FULL, max_response_bytes over Config.MaxBodyBytes and 64 KiB); that of the second decides how often and how late work is tried.
type Ledger struct{ config LedgerConfig }

// NewLedger makes receipts in a ledger.
func NewLedger(config LedgerConfig) (*Ledger, error) {
	if config.Ledger == nil || config.Entries == nil {
		return nil, invalid("LedgerConfig needs a Ledger, and Entries to find what an earlier process left behind")
	}
	if err := (clientlib.Options{Abandoned: config.Abandoned, Lease: config.Lease}).Validate(); err != nil {
		return nil, err
	}
	return &Ledger{config: config}, nil
}

func (l *Ledger) receipt(receiver, id string) clientlib.Ref {
	return clientlib.Ref{Tenant: l.config.Tenant, Operation: "webhook:" + receiver, Key: id}
}

func (l *Ledger) work(receiver, id string) clientlib.Ref {
	return clientlib.Ref{Tenant: l.config.Tenant, Operation: "webhook-work:" + receiver, Key: id}
}

// Keep implements [Receipts].
func (l *Ledger) Keep(ctx context.Context, d Delivery) (Standing, error) {
	ref := l.receipt(d.Receiver, d.ID)
	result, err := l.config.Ledger.Do(ctx, ref, d.Fingerprint, func(context.Context, clientlib.Claim) (clientlib.Response, error) {
		body, err := encode(d)
		return clientlib.Response{Body: body, ContentType: envelopeType}, clientlib.NothingHappened(err)
	}, clientlib.Options{
		Abandoned: clientlib.Rerun(), // to put down the same delivery twice is to put it down once
		Wait:      time.Second,
		Classes:   clientlib.Classes{},
	})
	switch {
	case errors.Is(err, clientlib.ErrKeyReused), errors.Is(err, clientlib.ErrHashIncomparable):
		return 0, ErrOtherBody
	case errors.Is(err, clientlib.ErrAnswerNotKept), errors.Is(err, clientlib.ErrExpired):
		return l.withoutReceipt(ctx, d)
	case err != nil:
		return 0, err
	case result.Outcome == clientlib.Replayed:
		return l.standing(ctx, d.Receiver, d.ID)
	case !result.Recorded:
		return 0, errors.New("webhook: the ledger has not confirmed the receipt")
	}
	// Another policy than the one that was asked for may have left the body out. The sender must not be told 2xx then.
	entry, err := l.config.Ledger.Lookup(ctx, ref)
	if err != nil {
		return 0, err
	}
	if entry.GetAnswer().GetResponse().GetBodyOmitted() {
		return 0, ErrNotKept
	}
	return Fresh, nil
}

// withoutReceipt answers a delivery that is known, and of which nothing is kept to work from. If its work is over this is a late
// redelivery like any other. If not, nobody will ever do it, and the sender must not be told otherwise.
func (l *Ledger) withoutReceipt(ctx context.Context, d Delivery) (Standing, error) {
	standing, err := l.standing(ctx, d.Receiver, d.ID)
	if err != nil {
		return 0, err
	}
	if standing != Done && standing != Failed {
		return 0, ErrNotKept
	}
	return standing, nil
}

// standing is how far the work of a known delivery is.
func (l *Ledger) standing(ctx context.Context, receiver, id string) (Standing, error) {
	entry, err := l.config.Ledger.Lookup(ctx, l.work(receiver, id))
	switch {
	case errors.Is(err, clientlib.ErrEntryNotFound):
		return Waiting, nil
	case err != nil:
		return 0, err
	}
	return standingOf(entry.GetCondition()), nil
}

func standingOf(condition idemv1.EntryCondition) Standing {
	switch condition {
	case idemv1.EntryCondition_ENTRY_CONDITION_COMPLETED, idemv1.EntryCondition_ENTRY_CONDITION_EXPIRED:
		return Done
	case idemv1.EntryCondition_ENTRY_CONDITION_FAILED_FINAL, idemv1.EntryCondition_ENTRY_CONDITION_LAPSED:
		return Failed
	default:
		return Waiting
	}
}

// Unfinished implements [Receipts]. It lists the receiver's entries of both operations and compares them: the more deliveries are
// within their retention, the longer it takes.
func (l *Ledger) Unfinished(ctx context.Context, receiver string, found func(id string) error) error {
	over := map[string]bool{}
	err := l.list(ctx, l.work(receiver, "").Operation, func(entry *idemv1.Entry) error {
		switch entry.GetCondition() {
		case idemv1.EntryCondition_ENTRY_CONDITION_ABANDONED, idemv1.EntryCondition_ENTRY_CONDITION_FAILED_RETRYABLE:
		default:
			over[entry.GetRef().GetKey()] = true // settled, or somebody is at it, or it is held for an operator
		}
		return nil
	})
	if err != nil {
		return err
	}
	return l.list(ctx, l.receipt(receiver, "").Operation, func(entry *idemv1.Entry) error {
		id := entry.GetRef().GetKey()
		if entry.GetCondition() != idemv1.EntryCondition_ENTRY_CONDITION_COMPLETED || over[id] {
			return nil
		}
		return found(id)
	})
}

const listPage = 1000

func (l *Ledger) list(ctx context.Context, operation string, each func(*idemv1.Entry) error) error {
	request := &idemv1.ListEntriesRequest{Tenant: l.config.Tenant, Operation: operation, PageSize: listPage}
	for {
		page, err := l.config.Entries.ListEntries(ctx, request)
		if err != nil {
			return fmt.Errorf("webhook: list %s: %w", operation, err)
		}
		for _, entry := range page.GetEntries() {
			if err := each(entry); err != nil {
				return err
			}
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			return nil
		}
	}
}

// Run implements [Receipts].
func (l *Ledger) Run(ctx context.Context, receiver, id string, work Handler) (Standing, error) {
	d, err := l.read(ctx, receiver, id)
	if err != nil {
		return Waiting, err
	}
	result, err := l.config.Ledger.Do(ctx, l.work(receiver, id), d.Fingerprint,
		func(ctx context.Context, claim clientlib.Claim) (clientlib.Response, error) {
			ctx = clientlib.WithKey(clientlib.WithClaim(ctx, claim), DownstreamKey(receiver, id))
			return clientlib.Response{}, work(ctx, d)
		}, clientlib.Options{
			Abandoned: l.config.Abandoned, Lease: l.config.Lease, Request: d,
			// By no code alone: what a handler passes on from downstream, as NOT_FOUND of what an event not yet delivered makes, is no
			// word about this delivery.
			Classes: clientlib.Classes{},
		})
	return l.ran(result, err)
}

// DownstreamKey is the key that a delivery's handler finds in its context, for calls downstream: the same in every attempt, and no other
// delivery's.
func DownstreamKey(receiver, id string) string { return clientlib.DeriveKey(id, "webhook:"+receiver) }

// ran says what became of an attempt.
func (l *Ledger) ran(result clientlib.Result, err error) (Standing, error) {
	var failure *clientlib.ReplayedFailure
	var refused *clientlib.Error
	switch {
	case err == nil, errors.Is(err, clientlib.ErrAnswerNotKept), errors.Is(err, clientlib.ErrExpired):
		return Done, nil
	case errors.As(err, &failure):
		return Failed, err
	case result.Outcome == clientlib.ReplayedAsFailure:
		return Failed, err // a recovery hook found that it had failed
	case result.Outcome == clientlib.Executed && !errors.Is(err, clientlib.ErrClaimLost):
		if (clientlib.Classes{}).ClassOf(err) == clientlib.FinalFailure {
			return Failed, err
		}
		return Waiting, err
	case errors.Is(err, clientlib.ErrAbandoned):
		return Waiting, fmt.Errorf("%w: %w", ErrUndecided, err)
	case errors.As(err, &refused):
		return Waiting, &NotNow{After: refused.RetryAfter, Err: err}
	default:
		return Waiting, &NotNow{Err: err}
	}
}

// read finds a delivery's receipt.
func (l *Ledger) read(ctx context.Context, receiver, id string) (Delivery, error) {
	entry, err := l.config.Ledger.Lookup(ctx, l.receipt(receiver, id))
	if errors.Is(err, clientlib.ErrEntryNotFound) {
		return Delivery{}, ErrNoReceipt
	}
	if err != nil {
		return Delivery{}, &NotNow{Err: err}
	}
	response := entry.GetAnswer().GetResponse()
	if entry.GetAnswer() == nil || response.GetBodyOmitted() {
		return Delivery{}, ErrNoReceipt
	}
	d, err := decode(response.GetBody())
	if err != nil {
		return Delivery{}, err
	}
	d.Receiver, d.ID = receiver, id
	return d, nil
}

const envelopeType = "application/vnd.idemd.webhook"

// envelope is all of a delivery but its body. The names are kept in receipts: they never change.
type envelope struct {
	Type       string      `json:"type,omitempty"`
	Header     http.Header `json:"header,omitempty"`
	Algorithm  string      `json:"algorithm"`
	Hash       []byte      `json:"hash"`
	ReceivedAt time.Time   `json:"received_at"`
	SentAt     time.Time   `json:"sent_at,omitzero"`
	CreatedAt  time.Time   `json:"created_at,omitzero"`
	Sequence   int64       `json:"sequence,omitempty"`
	Sequenced  bool        `json:"sequenced,omitempty"`
}

// Envelope is all of a delivery but its body, receiver and id, as JSON in one line, for implementations of [Receipts].
func (d Delivery) Envelope() ([]byte, error) {
	return json.Marshal(envelope{
		Type: d.Type, Header: d.Header, Algorithm: d.Fingerprint.Algorithm, Hash: d.Fingerprint.Hash,
		ReceivedAt: d.ReceivedAt.UTC(), SentAt: utc(d.SentAt), CreatedAt: utc(d.CreatedAt), Sequence: d.Sequence, Sequenced: d.Sequenced,
	})
}

// OpenEnvelope makes a delivery of an envelope again.
func OpenEnvelope(text []byte) (Delivery, error) {
	var e envelope
	if err := json.Unmarshal(text, &e); err != nil {
		return Delivery{}, fmt.Errorf("webhook: a receipt that cannot be read: %w", err)
	}
	return Delivery{
		Type: e.Type, Header: e.Header, Fingerprint: fingerprint.Fingerprint{Algorithm: e.Algorithm, Hash: e.Hash},
		ReceivedAt: e.ReceivedAt, SentAt: e.SentAt, CreatedAt: e.CreatedAt, Sequence: e.Sequence, Sequenced: e.Sequenced,
	}, nil
}

func utc(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC()
}

// encode is the envelope, a line feed, and the body as it is.
func encode(d Delivery) ([]byte, error) {
	head, err := d.Envelope()
	if err != nil {
		return nil, err
	}
	return append(append(head, '\n'), d.Body...), nil
}

func decode(stored []byte) (Delivery, error) {
	for i, b := range stored {
		if b == '\n' {
			d, err := OpenEnvelope(stored[:i])
			d.Body = stored[i+1:]
			return d, err
		}
	}
	return Delivery{}, errors.New("webhook: a receipt that cannot be read")
}
