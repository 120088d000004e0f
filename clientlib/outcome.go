package clientlib

import (
	"context"
	"errors"
	"mime"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Names of the trailer by which a guard says what became of a call.
const (
	// OutcomeTrailer has one of the words of [Outcome].
	OutcomeTrailer = "idem-outcome"
	// OriginalTimeTrailer has, with a replay, when the original was recorded, in RFC 3339.
	OriginalTimeTrailer = "idem-original-time"
	// WouldBeTrailer has, in a dry run, what the outcome would have been.
	WouldBeTrailer = "idem-would-be"
	// EarlierTriesTrailer is there where the call was itself a retry, by gRPC or an interceptor: "it was refused" is then no
	// word about the tries before.
	EarlierTriesTrailer = "idem-earlier-tries"
	// DetailsOmittedTrailer is there where a replayed failure had details that were too long to be kept.
	DetailsOmittedTrailer = "idem-details-omitted"
)

// The metadata by which retries make themselves known: gRPC's own, and go-grpc-middleware's.
const (
	grpcAttemptName  = "grpc-previous-rpc-attempts"
	retryAttemptName = "x-retry-attempt"
)

// trailerOf marks what became of a call.
func trailerOf(result Result, err error) metadata.MD {
	md := metadata.Pairs(OutcomeTrailer, string(result.Outcome))
	if !result.OriginalTime.IsZero() {
		md.Set(OriginalTimeTrailer, result.OriginalTime.UTC().Format(time.RFC3339Nano))
	}
	if result.WouldBe != "" {
		md.Set(WouldBeTrailer, string(result.WouldBe))
	}
	var failure *ReplayedFailure
	if errors.As(err, &failure) && failure.DetailsOmitted {
		md.Set(DetailsOmittedTrailer, "true")
	}
	return md
}

const protobufType = "application/protobuf"

// encode makes a response of an answer and of the metadata that goes with it.
func (g *guard) encode(m *method, answer proto.Message, header, trailer metadata.MD) (Response, error) {
	body, err := proto.Marshal(answer)
	if err != nil {
		return Response{}, err
	}
	parameters := map[string]string{"message": string(m.answer.Descriptor().FullName())}
	response := Response{Body: body}
	var counts []string
	for _, name := range g.ReplayMetadata {
		for _, value := range header[name] {
			response.Metadata = append(response.Metadata, MetadataPair{Name: name, Value: []byte(value)})
		}
		for _, value := range trailer[name] {
			response.Metadata = append(response.Metadata, MetadataPair{Name: name, Value: []byte(value)})
		}
		if n := len(trailer[name]); n > 0 {
			counts = append(counts, name+":"+strconv.Itoa(n))
		}
	}
	if len(counts) > 0 {
		// How many of the last values of a name were in the trailer: there is no other place to note it.
		parameters["trailer"] = strings.Join(counts, " ")
	}
	response.ContentType = mime.FormatMediaType(protobufType, parameters)
	if g.Pointer != nil {
		response.ResourceType, response.ResourceID = g.Pointer(m.Method, answer)
	}
	return response, nil
}

// decode reads a kept answer into a message of the method's type, and gives the metadata that went with it.
func (g *guard) decode(result Result, answer proto.Message) (header, trailer metadata.MD, err error) {
	response := result.Response
	kind, parameters, _ := mime.ParseMediaType(response.ContentType)
	if kind == "application/json" {
		// An operator settled it, in the form that people write.
		err = protojson.Unmarshal(response.Body, answer)
	} else {
		err = proto.Unmarshal(response.Body, answer)
	}
	if err != nil {
		return nil, nil, answerNotKept(response, result.OriginalTime).because(err)
	}
	header, trailer = metadata.MD{}, metadata.MD{}
	for _, pair := range response.Metadata {
		if slices.Contains(g.ReplayMetadata, pair.Name) {
			header.Append(pair.Name, string(pair.Value))
		}
	}
	for _, count := range strings.Fields(parameters["trailer"]) {
		name, number, _ := strings.Cut(count, ":")
		n, _ := strconv.Atoi(number)
		values := header[name]
		if n <= 0 || n > len(values) {
			continue // cut off by the ledger's limit
		}
		trailer[name] = values[len(values)-n:]
		if header[name] = values[:len(values)-n]; len(header[name]) == 0 {
			delete(header, name)
		}
	}
	return header, trailer, nil
}

// refusedResult is a call that was refused before the ledger was asked.
func (g *guard) refused(ctx context.Context, m *method, err error) (Result, error) {
	result := Result{Outcome: Refused}
	_, done := g.Ledger.telemetry.call(ctx, m.Operation)
	done(result, err)
	return result, err
}

// callOptionsOf fills what a caller asked for with grpc.Header, grpc.Trailer and grpc.OnFinish, on a replay without a call.
func fillCallOptions(options []grpc.CallOption, header, trailer metadata.MD, err error) {
	for _, option := range options {
		switch o := option.(type) {
		case grpc.HeaderCallOption:
			*o.HeaderAddr = header
		case grpc.TrailerCallOption:
			*o.TrailerAddr = trailer
		case grpc.OnFinishCallOption:
			o.OnFinish(err)
		}
	}
}

// didNotRun says whether a guarded server's trailer proves that the handler was not run for this call.
func didNotRun(trailer metadata.MD, tries int) bool {
	outcome := trailer.Get(OutcomeTrailer)
	if len(outcome) != 1 || tries > 1 || len(trailer.Get(EarlierTriesTrailer)) > 0 {
		return false
	}
	return outcome[0] == string(Refused) || outcome[0] == string(InProgress)
}

// wasReplayedFailure says whether a guarded server says that this failure is its answer for good.
func wasReplayedFailure(trailer metadata.MD) bool {
	outcome := trailer.Get(OutcomeTrailer)
	return len(outcome) == 1 && outcome[0] == string(ReplayedAsFailure)
}

func notAMessage(what string) error {
	return local(codes.Internal, "", "the %s is not a protobuf message, so this method cannot be guarded", what)
}
