package sqlidem

import (
	"encoding/hex"
	"strconv"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/fingerprint"
	"github.com/idemd/idemd/ledger"
)

// Between clientlib's words, which callers see, and the ledger's, which are decided about and stored.

func toLedger(r clientlib.Response) *ledger.Response {
	out := &ledger.Response{
		Code: r.Code, Body: r.Body, ContentType: r.ContentType, ResourceType: r.ResourceType, ResourceID: r.ResourceID,
		BodyOmitted: r.BodyOmitted, BodySize: r.BodySizeBytes, BodySHA256: r.BodySHA256,
	}
	for _, m := range r.Metadata {
		out.Metadata = append(out.Metadata, ledger.MetadataPair{Name: m.Name, Value: m.Value})
	}
	return out
}

func fromLedger(r *ledger.Response) clientlib.Response {
	if r == nil {
		return clientlib.Response{}
	}
	out := clientlib.Response{
		Code: r.Code, Body: r.Body, ContentType: r.ContentType, ResourceType: r.ResourceType, ResourceID: r.ResourceID,
		BodyOmitted: r.BodyOmitted, BodySizeBytes: r.BodySize, BodySHA256: r.BodySHA256,
	}
	for _, m := range r.Metadata {
		out.Metadata = append(out.Metadata, clientlib.MetadataPair{Name: m.Name, Value: m.Value})
	}
	return out
}

// finalFailure is an error of the work as it is kept: never OK, its details included.
func finalFailure(err error) *ledger.Failure {
	s := status.Convert(err)
	if s.Code() == codes.OK {
		s = status.New(codes.Unknown, err.Error())
	}
	out := &ledger.Failure{Code: int32(s.Code()), Message: s.Message(), Disposition: ledger.Final}
	for _, d := range s.Proto().GetDetails() {
		out.Details = append(out.Details, ledger.Detail{TypeURL: d.GetTypeUrl(), Value: d.GetValue()})
	}
	return out
}

func replayedFailure(f *ledger.Failure, attempt int32, original time.Time) *clientlib.ReplayedFailure {
	s := &spb.Status{Code: f.Code, Message: f.Message}
	for _, d := range f.Details {
		s.Details = append(s.Details, &anypb.Any{TypeUrl: d.TypeURL, Value: d.Value})
	}
	return &clientlib.ReplayedFailure{Status: s, DetailsOmitted: f.DetailsOmitted, Attempt: attempt, OriginalTime: original}
}

// answerNotKept is what a retry is told whose answer's body was not kept: it was done, and here is where to look.
func answerNotKept(r clientlib.Response, original time.Time) *clientlib.Error {
	e := refusal(clientlib.ReasonAnswerNotKept, "this was done before, and its answer was not kept; it is not run again")
	e.Metadata = map[string]string{"original_time": original.UTC().Format(time.RFC3339Nano)}
	for name, value := range map[string]string{
		"resource_type": r.ResourceType, "resource_id": r.ResourceID, "body_sha256": hex.EncodeToString(r.BodySHA256),
	} {
		if value != "" {
			e.Metadata[name] = value
		}
	}
	if r.BodySizeBytes > 0 {
		e.Metadata["body_size_bytes"] = strconv.FormatInt(r.BodySizeBytes, 10)
	}
	return e
}

func toFingerprints(given []fingerprint.Fingerprint) []ledger.Fingerprint {
	out := make([]ledger.Fingerprint, len(given))
	for i, f := range given {
		out[i] = ledger.Fingerprint{Algorithm: f.Algorithm, Hash: f.Hash}
	}
	return out
}

// validateFingerprints refuses what could not tell one request from another.
func validateFingerprints(given []fingerprint.Fingerprint) *clientlib.Error {
	for i, f := range given {
		switch {
		case f.Algorithm == "" || len(f.Algorithm) > ledger.MaxAlgorithmChars:
			return invalid(clientlib.ReasonInvalidFingerprint, "fingerprint.algorithm", "must have 1 to 64 characters; make one with package fingerprint")
		case len(f.Hash) < ledger.MinHashBytes || len(f.Hash) > ledger.MaxHashBytes:
			return invalid(clientlib.ReasonInvalidFingerprint, "fingerprint.hash", "must have 16 to 64 bytes; make one with package fingerprint")
		case i > 0 && f.Algorithm == given[0].Algorithm:
			return invalid(clientlib.ReasonInvalidFingerprint, "fingerprint.algorithm", "must differ from the other fingerprint's")
		}
	}
	return nil
}

// DefaultTenant is whose intents they are where a Ref names no tenant. It is the daemon's word for the same.
const DefaultTenant = "default"

// scopeSecret derives scope ids and hashes of attempt ids as the daemon does. It is no secret here: what it hashes stands beside it in
// the service's own tables. The scope ids only spread rows over shards and hold entries apart.
var scopeSecret = func() *ledger.Secret {
	s, err := ledger.NewSecret(make([]byte, ledger.SecretBytes))
	if err != nil {
		panic(err)
	}
	return s
}()

func refOf(r clientlib.Ref) ledger.Ref {
	if r.Tenant == "" {
		r.Tenant = DefaultTenant
	}
	return ledger.Ref{Tenant: r.Tenant, Operation: r.Operation, Key: r.Key}
}
