// Package payments is a small service that charges accounts, made safe to retry with idemd.
//
// The mark in proto/payments/v1/payments.proto says which method is keyed, [NewServer] puts the guard before the handlers, and
// [Recover] tells the guard how to find out what an attempt did that was never heard of again. [Pay] is a client that retries until
// it has an answer.
package payments
