package httpidem

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"github.com/idemd/idemd/clientlib"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// Answer is what a request came to, for hooks: what [clientlib.Recover] found out, and what Config.Pointer looks at.
type Answer struct {
	// Status is the HTTP status. 0: 200.
	Status int
	// Header is what goes with it. Fields that belong to one exchange only, such as cookies, are left out of replays.
	Header http.Header
	Body   []byte
}

// Happened says that the effect is there, and what its answer is.
func Happened(answer Answer) clientlib.Finding {
	kept := record(answer, nil, slices.Collect(maps.Keys(answer.Header)))
	kept.ResourceType, kept.ResourceID = locationOf(answer)
	return clientlib.Happened(kept)
}

// FailedFinally says that the request failed for good, and with what answer.
func FailedFinally(answer Answer) clientlib.Finding {
	return clientlib.FailedFinally(failureOf(record(answer, nil, nil), true))
}

// ResourceLocation is the resource type of an answer's pointer that is its Location.
const ResourceLocation = "location"

// locationOf points to what an answer made by its Location.
func locationOf(answer Answer) (resourceType, resourceID string) {
	if location := answer.Header.Get("Location"); location != "" && utf8.ValidString(location) {
		return ResourceLocation, location
	}
	return "", ""
}

// neverReplayed are names that belong to one exchange, to the connection, or are somebody's secret. Prefixes end in "*".
// Content-Type and Content-Encoding have places of their own.
var neverReplayed = []string{
	"authorization", "proxy-*", "www-authenticate", "authentication-info", "cookie", "cookie2", "set-cookie", "set-cookie2",
	"x-api-key", "x-auth-token", "x-csrf-token", "x-xsrf-token", "x-amz-security-token",
	"date", "age", "server", "via", "retry-after", "alt-svc", "connection", "keep-alive", "upgrade", "transfer-encoding", "te",
	"trailer", "trailer:*", "content-length", "content-range", "content-type", "content-encoding",
	"access-control-*", "ratelimit*", "x-ratelimit*", "x-rate-limit*", "request-id", "x-request-id", "x-correlation-id",
	"correlation-id", "traceparent", "tracestate", "baggage", "x-b3-*", "x-amzn-trace-id", "x-cloud-trace-context", "grpc-*",
	":*", "idem-*", "idempotency-*",
}

func isNeverReplayed(name string) bool {
	for _, pattern := range neverReplayed {
		if prefix, ok := strings.CutSuffix(pattern, "*"); ok && strings.HasPrefix(name, prefix) || name == pattern {
			return true
		}
	}
	return false
}

// DefaultReplayHeaders are the names that replays carry, beside Content-Type, Content-Encoding and Location, where the policy
// keeps them: those that describe the answer, and that a client may need to read it.
func DefaultReplayHeaders() []string {
	return []string{"cache-control", "content-disposition", "content-language", "content-location", "etag", "last-modified", "link", "location"}
}

// The ledger keeps the media type of every answer, and other fields only where the policy lists their names. How the body is
// encoded must not get lost, or it could not be read; and which fields came as trailers has no other place. So both are noted
// behind the media type, and are taken off again.
const (
	noteMark = "; idem-http="
	// maxContentType is what the ledger keeps of a media type; it drops longer ones.
	maxContentType = 1024
)

// record makes what the ledger keeps of an answer. Names are those of the header fields that replays carry.
func record(answer Answer, trailer http.Header, names []string) clientlib.Response {
	kept := clientlib.Response{Code: int32(answer.Status), Body: answer.Body} //nolint:gosec // a status has three digits
	if kept.Code == 0 {
		kept.Code = http.StatusOK
	}
	var counts []string
	lower := make([]string, 0, len(names))
	for _, name := range names {
		lower = append(lower, strings.ToLower(name))
	}
	slices.Sort(lower)
	for _, name := range slices.Compact(lower) {
		if isNeverReplayed(name) || !utf8.ValidString(name) {
			continue
		}
		ofTrailer := trailer.Values(name)
		for _, value := range answer.Header.Values(name) {
			kept.Metadata = append(kept.Metadata, clientlib.MetadataPair{Name: name, Value: []byte(value)})
		}
		for _, value := range ofTrailer {
			kept.Metadata = append(kept.Metadata, clientlib.MetadataPair{Name: name, Value: []byte(value)})
		}
		if len(ofTrailer) > 0 {
			counts = append(counts, name+":"+strconv.Itoa(len(ofTrailer)))
		}
	}
	kept.ContentType = withNote(answer.Header.Get("Content-Type"), strings.Join(answer.Header.Values("Content-Encoding"), ", "), counts)
	if len(kept.ContentType) > maxContentType || !utf8.ValidString(kept.ContentType) {
		// Without its type the body could be taken for something else.
		kept.ContentType = ""
		omitBody(&kept)
	}
	return kept
}

func withNote(contentType, encoding string, trailers []string) string {
	if encoding == "" && len(trailers) == 0 && !strings.Contains(contentType, noteMark) {
		return contentType
	}
	return contentType + noteMark + encoding + "|" + strings.Join(trailers, " ")
}

func cutNote(noted string) (contentType, encoding string, trailers map[string]int) {
	i := strings.LastIndex(noted, noteMark)
	if i < 0 {
		return noted, "", nil
	}
	encoding, counts, _ := strings.Cut(noted[i+len(noteMark):], "|")
	trailers = map[string]int{}
	for _, count := range strings.Fields(counts) {
		name, number, _ := strings.Cut(count, ":")
		trailers[name], _ = strconv.Atoi(number)
	}
	return noted[:i], encoding, trailers
}

// failureOf is a failure as it is reported. Only a final one has its answer with it: nobody gets the others' again.
func failureOf(kept clientlib.Response, isFinal bool) error {
	code := int(kept.Code)
	s := status.New(codeOf(code), statusMark+strconv.Itoa(code)+" "+http.StatusText(code))
	if !isFinal {
		return s.Err()
	}
	detail := &idemv1.Response{
		Code: kept.Code, Body: kept.Body, ContentType: kept.ContentType, BodyOmitted: kept.BodyOmitted,
		BodySizeBytes: kept.BodySizeBytes, BodySha256: kept.BodySHA256,
	}
	if detailed, err := s.WithDetails(protoadapt.MessageV1Of(detail)); err == nil {
		s = detailed
	}
	return s.Err()
}

// statusMark begins the message of a failure that was an HTTP answer, so that its status is known where details are not kept.
const statusMark = "HTTP "

// answerOf reads a failure as an answer to be given again. reason: why it is not the original's, where it is not.
func answerOf(err error) (kept clientlib.Response, reason clientlib.Reason, message string) {
	s := status.Convert(err)
	for _, detail := range s.Details() {
		if r, ok := detail.(*idemv1.Response); ok {
			kept = clientlib.Response{Code: r.GetCode(), Body: r.GetBody(), ContentType: r.GetContentType(), BodyOmitted: r.GetBodyOmitted()}
			if kept.BodyOmitted {
				return kept, clientlib.ReasonAnswerNotKept, "this failed for good before, and its answer was not kept"
			}
			return kept, "", ""
		}
	}
	var code int
	if _, scanErr := fmt.Sscanf(s.Message(), statusMark+"%3d", &code); scanErr == nil && code >= 200 && code <= 599 {
		kept.Code = int32(code)
		return kept, clientlib.ReasonAnswerNotKept, "this failed for good before, and its answer was not kept"
	}
	if s.Code() == codes.OK {
		s = status.New(codes.Unknown, err.Error())
	}
	kept.Code = int32(statusOf(s.Code())) //nolint:gosec // a status has three digits
	return kept, ReasonFailed, s.Message()
}

// replay sends an answer of then. The header is what stands outside of the guard has put there.
func replay(w http.ResponseWriter, kept clientlib.Response) {
	header := w.Header()
	contentType, encoding, trailers := cutNote(kept.ContentType)
	fields := http.Header{}
	for _, pair := range kept.Metadata {
		if !isNeverReplayed(pair.Name) {
			fields.Add(pair.Name, string(pair.Value))
		}
	}
	later := http.Header{}
	for name, n := range trailers {
		name = http.CanonicalHeaderKey(name)
		values := fields[name]
		if n <= 0 || n > len(values) {
			continue // cut off by the ledger's limit
		}
		later[name] = values[len(values)-n:]
		header.Add("Trailer", name)
		if fields[name] = values[:len(values)-n]; len(fields[name]) == 0 {
			delete(fields, name)
		}
	}
	maps.Copy(header, fields)
	// A type that is not known is not guessed, since the original was not; a guess by the client would be a risk.
	header["Content-Type"] = nil
	if contentType != "" {
		header.Set("Content-Type", contentType)
	}
	if encoding != "" {
		header.Set("Content-Encoding", encoding)
	}
	setLocation(header, kept.ResourceType, kept.ResourceID)
	if header.Get("Cache-Control") == "" {
		header.Set("Cache-Control", "no-store")
	}
	header.Set("X-Content-Type-Options", "nosniff")
	code := int(kept.Code)
	if code < 200 || code > 599 {
		code = http.StatusOK // an operator's, who gave a body and no status
	}
	w.WriteHeader(code)
	if hasBody(code) && len(kept.Body) > 0 {
		_, _ = w.Write(kept.Body)
	}
	maps.Copy(header, later)
}

func setLocation(header http.Header, resourceType, resourceID string) {
	if resourceType == ResourceLocation && resourceID != "" && header.Get("Location") == "" && !strings.ContainsAny(resourceID, "\r\n\x00") {
		header.Set("Location", resourceID)
	}
}

// isWork says whether an error is what a handler's own answer was reported as.
func isWork(err error) bool {
	var refusal *clientlib.Error
	var replayed *clientlib.ReplayedFailure
	return !errors.As(err, &refusal) && !errors.As(err, &replayed)
}
