package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"
)

// StandingHeader is the header by which a receiver says how far a delivery is: fresh, waiting, done or failed.
const StandingHeader = "Webhook-Standing"

// Receiver takes deliveries as an http.Handler, and does their work in [Receiver.Run].
type Receiver struct {
	config Config
	queue  *queue
}

// New makes a receiver. Without Run it takes deliveries, and their work waits.
func New(config Config) (*Receiver, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.withDefaults()
	return &Receiver{config: config, queue: newQueue(config)}, nil
}

// Run does the work of deliveries until ctx ends, those that an earlier process left behind first. It returns when every handler has:
// they may take Config.StopTimeout to end. Run is called once.
func (r *Receiver) Run(ctx context.Context) error { return r.queue.run(ctx) }

// refusal is a request that is not taken.
type refusal struct {
	status int
	// told is what the sender is told: not more than it knows.
	told string
	err  error
}

// ServeHTTP takes one delivery.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	delivery, refused := r.open(w, request)
	if refused == nil {
		var standing Standing
		if standing, refused = r.keep(request.Context(), delivery); refused == nil {
			r.accepted(w, delivery, standing)
			return
		}
	}
	r.refuse(w, request, refused)
}

// open reads a request and verifies it. Nothing is believed, counted or written before the signature is.
func (r *Receiver) open(w http.ResponseWriter, request *http.Request) (Delivery, *refusal) {
	if request.Method != http.MethodPost {
		return Delivery{}, &refusal{http.StatusMethodNotAllowed, "deliveries are POSTed", errors.New("webhook: method " + request.Method)}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, request.Body, r.config.MaxBodyBytes))
	var tooLong *http.MaxBytesError
	switch {
	case errors.As(err, &tooLong):
		return Delivery{}, &refusal{http.StatusRequestEntityTooLarge, "the body is too long", err}
	case err != nil:
		return Delivery{}, &refusal{http.StatusBadRequest, "the body could not be read", err}
	}
	now := r.config.Now()
	d, err := r.config.Sender.Open(request.Header, body, now)
	switch {
	case errors.Is(err, ErrSignature), errors.Is(err, ErrTolerance):
		return Delivery{}, &refusal{http.StatusUnauthorized, "the signature is not valid now", err}
	case err != nil:
		return Delivery{}, &refusal{http.StatusBadRequest, "the delivery is malformed", err}
	}
	if err := checkName("delivery's id", d.ID, MaxIDLength); err != nil {
		return Delivery{}, &refusal{http.StatusBadRequest, "the delivery is malformed", malformed(err)}
	}
	d.Receiver, d.Body, d.ReceivedAt, d.Header = r.config.Name, body, now, http.Header{}
	for _, name := range r.config.KeepHeaders {
		for _, value := range request.Header.Values(name) {
			d.Header.Add(name, value)
		}
	}
	if r.config.Sequence != nil {
		d.Sequence, d.Sequenced = r.config.Sequence(d)
	}
	return d, nil
}

// keep puts a delivery down. A sender that hangs up meanwhile does not cut it short: the delivery is genuine, whoever waits for it.
func (r *Receiver) keep(ctx context.Context, d Delivery) (Standing, *refusal) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.config.KeepTimeout)
	defer cancel()
	standing, err := r.config.Receipts.Keep(ctx, d)
	switch {
	case errors.Is(err, ErrOtherBody):
		r.config.Logger.ErrorContext(ctx, "webhook: an id came again with another body; the delivery is refused, and somebody must look",
			"receiver", r.config.Name, "type", d.Type)
		return 0, &refusal{http.StatusConflict, "this id was delivered before, with another body", err}
	case errors.Is(err, ErrNotKept):
		r.config.Logger.ErrorContext(ctx, "webhook: a receipt is not kept whole; the delivery is refused, and the ledger's policy must be put right",
			"receiver", r.config.Name, "type", d.Type, "bytes", len(d.Body), "error", err)
		return 0, &refusal{http.StatusInternalServerError, "the delivery could not be kept", err}
	case err != nil:
		return 0, &refusal{http.StatusServiceUnavailable, "the delivery could not be kept; send it again", err}
	}
	return standing, nil
}

func (r *Receiver) accepted(w http.ResponseWriter, d Delivery, standing Standing) {
	status, told := http.StatusOK, "this delivery was received before"
	if standing == Fresh || standing == Waiting {
		status = http.StatusAccepted
		if standing == Fresh {
			told = "received"
		}
		if !r.queue.add(d.ID, true) {
			r.config.Logger.Warn("webhook: too many deliveries wait; the next rescan finds this one", "receiver", r.config.Name)
		}
	}
	if r.config.Hooks.Received != nil {
		r.config.Hooks.Received(d, standing)
	}
	w.Header().Set(StandingHeader, standing.String())
	answer(w, status, told)
}

func (r *Receiver) refuse(w http.ResponseWriter, request *http.Request, refused *refusal) {
	level := slog.LevelInfo
	if refused.status >= http.StatusInternalServerError {
		level = slog.LevelWarn
		w.Header().Set("Retry-After", strconv.Itoa(int(max(r.config.FirstPause, time.Second).Seconds())))
	}
	if refused.status == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", http.MethodPost)
	}
	r.config.Logger.Log(request.Context(), level, "webhook: refused", "receiver", r.config.Name, "status", refused.status, "error", refused.err)
	if r.config.Hooks.Refused != nil {
		r.config.Hooks.Refused(refused.status, refused.err)
	}
	answer(w, refused.status, refused.told)
}

func answer(w http.ResponseWriter, status int, told string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = fmt.Fprintln(w, told) // a sender that is gone asks again
}
