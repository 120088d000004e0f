package clientlib

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// Response is what guarded work answered. An empty one is an answer too. A content type, a pointer or a name of metadata that
// is not UTF-8 is not kept.
type Response struct {
	// Code is the work's own code: a gRPC code, an HTTP status, or anything else. Nobody but the work's callers reads it.
	Code int32
	// Body is the answer itself. A policy keeps up to max_response_bytes of it, 1 MiB by default; a longer one is left out.
	Body []byte
	// ContentType is the media type of the body, at most 1024 characters.
	ContentType string
	// Metadata belongs to the answer. Order and multiplicity are kept, of the names that the policy lists; none by default.
	Metadata []MetadataPair
	// ResourceType and ResourceID point to what the work made, as "charge" and "ch_42": for retries whose body was not kept.
	// At most 1024 characters each.
	ResourceType, ResourceID string

	// Of a replay: there was a body, and it was not kept. Its length in bytes and its SHA-256 follow, as far as they are known.
	BodyOmitted   bool
	BodySizeBytes int64
	BodySHA256    []byte
}

// MetadataPair is one metadata or header field, with a lower-case name.
type MetadataPair struct {
	Name  string
	Value []byte
}

// proto is the response as it is reported. Text that is not UTF-8 no message can carry, and a report is not worth losing over
// what goes with a body.
func (r Response) proto() *idemv1.Response {
	p := &idemv1.Response{
		Code: r.Code, Body: r.Body, BodyOmitted: r.BodyOmitted, BodySizeBytes: r.BodySizeBytes, BodySha256: r.BodySHA256,
	}
	if utf8.ValidString(r.ContentType) {
		p.ContentType = r.ContentType
	}
	if utf8.ValidString(r.ResourceType) && utf8.ValidString(r.ResourceID) {
		p.ResourceType, p.ResourceId = r.ResourceType, r.ResourceID
	}
	for _, m := range r.Metadata {
		if utf8.ValidString(m.Name) {
			p.Metadata = append(p.Metadata, &idemv1.MetadataEntry{Key: m.Name, Value: m.Value})
		}
	}
	return p
}

func responseOf(p *idemv1.Response) Response {
	r := Response{
		Code: p.GetCode(), Body: p.GetBody(), ContentType: p.GetContentType(),
		ResourceType: p.GetResourceType(), ResourceID: p.GetResourceId(),
		BodyOmitted: p.GetBodyOmitted(), BodySizeBytes: p.GetBodySizeBytes(), BodySHA256: p.GetBodySha256(),
	}
	for _, m := range p.GetMetadata() {
		r.Metadata = append(r.Metadata, MetadataPair{Name: m.GetKey(), Value: m.GetValue()})
	}
	return r
}

// withoutBody leaves the body out and says so. What is left out once more stays as it was.
func withoutBody(p *idemv1.Response) *idemv1.Response {
	if p.GetBodyOmitted() {
		return p
	}
	sum := sha256.Sum256(p.GetBody())
	return &idemv1.Response{
		Code: p.GetCode(), ContentType: p.GetContentType(), Metadata: p.GetMetadata(),
		ResourceType: p.GetResourceType(), ResourceId: p.GetResourceId(),
		BodyOmitted: true, BodySizeBytes: int64(len(p.GetBody())), BodySha256: sum[:],
	}
}

// bareResponse is the least that can be said: it was done.
func bareResponse(p *idemv1.Response) *idemv1.Response {
	bare := withoutBody(p)
	return &idemv1.Response{
		Code: bare.GetCode(), BodyOmitted: true, BodySizeBytes: bare.GetBodySizeBytes(), BodySha256: bare.GetBodySha256(),
	}
}

// fitComplete leaves out of a report what is over the message limit: a report is never worth losing over its size.
func fitComplete(request *idemv1.CompleteRequest, limit int) *idemv1.CompleteRequest {
	if proto.Size(request) <= limit {
		return request
	}
	fitted := &idemv1.CompleteRequest{Ref: request.GetRef(), ClaimToken: request.GetClaimToken()}
	fitted.Response = withoutBody(request.GetResponse())
	if proto.Size(fitted) > limit {
		fitted.Response = bareResponse(request.GetResponse())
	}
	return fitted
}

// Names of metadata in an ANSWER_NOT_KEPT error.
const (
	metaOriginalTime = "original_time"
	metaResourceType = "resource_type"
	metaResourceID   = "resource_id"
	metaBodySize     = "body_size_bytes"
	metaBodySHA256   = "body_sha256"
)

// answerNotKept is what a retry is told whose answer is not there any more, or never was: it was done, and here is where to look.
func answerNotKept(r Response, original time.Time) *Error {
	e := local(codes.FailedPrecondition, ReasonAnswerNotKept,
		"this was done before, and its answer was not kept; it is not run again")
	e.FromServer = true
	e.Metadata = map[string]string{metaOriginalTime: original.UTC().Format(time.RFC3339Nano)}
	for name, value := range map[string]string{
		metaResourceType: r.ResourceType, metaResourceID: r.ResourceID, metaBodySHA256: hex.EncodeToString(r.BodySHA256),
	} {
		if value != "" {
			e.Metadata[name] = value
		}
	}
	if r.BodySizeBytes > 0 {
		e.Metadata[metaBodySize] = strconv.FormatInt(r.BodySizeBytes, 10)
	}
	return e
}
