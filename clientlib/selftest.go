package clientlib

import (
	"bytes"
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/idemd/idemd/clientlib/fingerprint"
)

// SelfTestOperation is where the entries of self-tests are kept.
const SelfTestOperation = "idemd.self-test"

// SelfTest proves that the ledger is there, keeps what it is told and replays it: an intent of its own is begun, completed, and
// begun again, which must replay. It leaves one small entry. A policy that keeps no answers (store_response) fails it.
func (c *Client) SelfTest(ctx context.Context) error {
	id := uuid.NewString()
	ref := Ref{Operation: SelfTestOperation, Key: id}
	asked, err := fingerprint.Bytes([]byte(id))
	if err != nil {
		return err
	}
	options := Options{Abandoned: Refuse()}
	for _, want := range []Outcome{Executed, Replayed} {
		result, err := c.Do(ctx, ref, asked, func(context.Context, Claim) (Response, error) {
			return Response{Body: []byte(id), ContentType: "text/plain"}, nil
		}, options)
		if err != nil {
			return fmt.Errorf("clientlib: self-test, %s was to come: %w", want, err)
		}
		if result.Outcome != want || !result.Recorded || !bytes.Equal(result.Response.Body, []byte(id)) {
			return fmt.Errorf("clientlib: self-test: the outcome is %q (recorded: %v) and not %q, with the same answer", result.Outcome, result.Recorded, want)
		}
	}
	return nil
}
