package clientlib

import (
	"context"
	"time"
)

// OpenSessions returns once there is a stream in each place for one, or ctx ends.
func (c *Client) OpenSessions(ctx context.Context) {
	for i := range c.sessions.slots {
		for c.sessions.session(&c.sessions.slots[i]) == nil {
			select {
			case <-time.After(time.Millisecond):
			case <-ctx.Done():
				return
			}
		}
	}
}

// SessionAge and ReopenMax are how streams are renewed.
const (
	SessionAge          = sessionAge
	ReopenMax           = reopenMax
	MaxSessionCallBytes = maxSessionCallBytes
)
