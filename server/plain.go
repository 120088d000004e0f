package server

import (
	"google.golang.org/protobuf/types/known/durationpb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
)

// Nearly every request is an ordinary one, of short printable texts well within all limits. That can be seen at a glance, where evaluating the rules of the .proto takes longer
// than all else that happens to a replayed call. So what is plainly well formed passes, and the rules judge everything else: every refusal is theirs, and what is said here only
// has to be narrower than they are. A test compares the two.

// plainlyValid reports whether a request is plainly well formed. False says nothing about it. The names in its ref have been judged by the ledger already.
func plainlyValid(req any) bool {
	switch r := req.(type) {
	case *idemv1.BeginRequest:
		return r.GetRef() != nil && plainFingerprints(r.GetFingerprints()) && plainUUID(r.GetAttemptId()) && plainDuration(r.GetLease()) &&
			plainDuration(r.GetWait()) && ledger.PlainText(r.GetHolder(), ledger.MaxHolderChars) && uint32(r.GetMode()) <= uint32(idemv1.BeginMode_BEGIN_MODE_RECOVER)
	case *idemv1.CompleteRequest:
		return r.GetRef() != nil && plainToken(r.GetClaimToken()) && plainResponse(r.GetResponse())
	case *idemv1.FailRequest:
		return r.GetRef() != nil && plainToken(r.GetClaimToken()) && r.GetStatus().GetCode() != 0 &&
			r.GetDisposition() >= idemv1.Disposition_DISPOSITION_FINAL && r.GetDisposition() <= idemv1.Disposition_DISPOSITION_UNKNOWN
	case *idemv1.ExtendRequest:
		return r.GetRef() != nil && plainToken(r.GetClaimToken()) && plainDuration(r.GetLease())
	case *idemv1.LookupRequest:
		return r.GetRef() != nil
	case *idemv1.SessionRequest:
		return plainCalls(r.GetCalls()) && len(r.GetCancelIds()) <= MaxSessionCalls
	default:
		return false
	}
}

func plainFingerprints(fps []*idemv1.Fingerprint) bool {
	if len(fps) != 1 {
		return false
	}
	name := fps[0].GetAlgorithm()
	for i := range len(name) {
		if c := name[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '.' {
			return false
		}
	}
	return name != "" && len(name) <= ledger.MaxAlgorithmChars && len(fps[0].GetHash()) >= ledger.MinHashBytes && len(fps[0].GetHash()) <= ledger.MaxHashBytes
}

// plainUUID takes UUIDs in lower case that have a version, which the nil UUID has not.
func plainUUID(id string) bool {
	if len(id) != uuidChars {
		return false
	}
	for i := range len(id) {
		c := id[i]
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
		}
	}
	return id[14] != '0'
}

func plainDuration(d *durationpb.Duration) bool {
	return d == nil || d.GetSeconds() >= 0 && d.GetSeconds() < int64(ledger.MaxLease.Seconds()) && d.GetNanos() >= 0 && d.GetNanos() < 1e9
}

// plainTokenBytes is the longest claim token there may be, in bytes.
const plainTokenBytes = 64

func plainToken(token []byte) bool { return len(token) > 0 && len(token) <= plainTokenBytes }

func plainResponse(r *idemv1.Response) bool {
	return r != nil && !r.GetBodyOmitted() && r.GetBodySizeBytes() >= 0 && len(r.GetBodySha256()) == 0
}

func plainCalls(calls []*idemv1.SessionCall) bool {
	for _, c := range calls {
		if c.GetId() == 0 || !plainDuration(c.GetTimeout()) {
			return false
		}
	}
	return len(calls) <= MaxSessionCalls
}
