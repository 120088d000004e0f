package clientlib

import (
	"context"
	"crypto/sha256"
	"encoding/binary"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
)

// DefaultKeyName is the name of the metadata in which keys travel.
const DefaultKeyName = "idempotency-key"

type keyContext struct{}

// WithKey gives the calls that are made with the context a key: one intent, however often they are made. It counts for guards
// in this process, and it goes on in outgoing metadata under DefaultKeyName, in place of a key that was there. A key for
// metadata is of printable ASCII characters; others only count in this process and where a key_field carries them.
//
// A guarded handler's context has the key of its own call, so that what it calls downstream carries it. A handler that calls one
// method twice for two effects must give each its own: WithKey(ctx, DeriveKey(key, "step")).
func WithKey(ctx context.Context, key string) context.Context {
	ctx = context.WithValue(ctx, keyContext{}, key)
	return withOutgoingKey(ctx, key, []string{DefaultKeyName})
}

// KeyFrom returns the key of the context, and whether there is one.
func KeyFrom(ctx context.Context) (key string, ok bool) {
	key, ok = ctx.Value(keyContext{}).(string)
	return key, ok
}

// DeriveKey makes the key of one step of an intent: the same for the same two words, and different for any other two. It is
// a UUID (version 8), whatever the key looks like. A compensation is a step too: DeriveKey(key, "refund").
func DeriveKey(key, step string) string {
	hash := sha256.New()
	hash.Write([]byte("idem.derived-key-v1\x00"))
	var length [8]byte
	binary.BigEndian.PutUint64(length[:], uint64(len(key)))
	hash.Write(length[:])
	hash.Write([]byte(key))
	hash.Write([]byte(step))
	var id uuid.UUID
	copy(id[:], hash.Sum(nil))
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return id.String()
}

// withOutgoingKey puts the key into outgoing metadata under the first name, and takes it from under the others.
func withOutgoingKey(ctx context.Context, key string, names []string) context.Context {
	old, _ := metadata.FromOutgoingContext(ctx)
	md := old.Copy()
	if md == nil {
		md = metadata.MD{}
	}
	for _, name := range names {
		md.Delete(name)
	}
	if travels(key) {
		md.Set(names[0], key)
	}
	return metadata.NewOutgoingContext(ctx, md)
}

// travels says whether gRPC takes a key as it is: printable ASCII, and no space at an end, which proxies trim.
func travels(key string) bool {
	for i := range len(key) {
		if key[i] < ' ' || key[i] > '~' {
			return false
		}
	}
	return key != "" && key[0] != ' ' && key[len(key)-1] != ' '
}

// travelRule is the rule that travels judges by.
const travelRule = "must be of printable ASCII characters without a space at either end"

// metadataKey reads the key from metadata. Several values must agree: one of two different ones would be somebody's mistake.
func metadataKey(md metadata.MD, names []string) (key string, ok bool, err *Error) {
	for _, name := range names {
		for _, value := range md.Get(name) {
			switch {
			case value == "":
				return "", false, badKey(name, "must not be empty")
			case ok && value != key:
				return "", false, badKey(name, "must not be there with two different values")
			case !travels(value):
				return "", false, badKey(name, travelRule)
			}
			key, ok = value, true
		}
	}
	return key, ok, nil
}

func badKey(name, rule string) *Error {
	e := local(codes.InvalidArgument, ReasonInvalidKey, "metadata %s %s", name, rule)
	e.Field, e.Rule = name, rule
	return e
}

func keyRequired(name, keyField string) *Error {
	e := local(codes.InvalidArgument, ReasonKeyRequired, "this method needs a key, in metadata %s", name)
	if keyField != "" {
		e.Message += " or in the request's field " + keyField
	}
	e.Field, e.Rule = name, "is required"
	return e
}
