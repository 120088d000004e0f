package sqldb

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"
)

// DeleteBatches runs a statement again and again that deletes at most batch rows and returns a time of each, until there are fewer. args
// are its parameters, where from is the latest time that was returned: a statement that begins there steps over nothing that is deleted
// already. It returns how many rows were deleted, also when it was cut short.
func DeleteBatches(
	ctx context.Context, q Querier, text string, batch int, pause time.Duration, args func(from time.Time) []any,
) (deleted int, err error) {
	from := time.Unix(0, 0)
	for {
		n, latest := 0, from
		err := Retry(ctx, func() error {
			n, latest = 0, from
			return q.Each(ctx, text, args(from), func(scan func(...any) error) error {
				var at time.Time
				if err := scan(&at); err != nil {
					return err
				}
				n++
				if at.After(latest) {
					latest = at
				}
				return nil
			})
		})
		if err != nil {
			return deleted, err
		}
		deleted, from = deleted+n, latest
		if n < batch {
			return deleted, nil
		}
		if pause > 0 && !Pause(ctx, pause) {
			return deleted, ctx.Err()
		}
	}
}

// CheckName says what is wrong with a name that somebody else gave, or nil: it has 1 to limit characters, and no control characters.
func CheckName(s string, limit int) error {
	switch {
	case s == "":
		return errors.New("is empty")
	case !utf8.ValidString(s):
		return errors.New("is not UTF-8")
	case utf8.RuneCountInString(s) > limit:
		return fmt.Errorf("is longer than %d characters", limit)
	}
	for _, r := range s {
		if unicode.IsControl(r) {
			return errors.New("has a control character in it")
		}
	}
	return nil
}
