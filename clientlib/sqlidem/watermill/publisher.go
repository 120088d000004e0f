package watermillidem

import (
	"context"
	"errors"
	"maps"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/idemd/idemd/clientlib/sqlidem/outbox"
)

// The metadata of a message, beside the event's headers, which cannot take these names. The message's UUID is the event's id.
const (
	MetadataAggregateType = "idem-aggregate-type"
	MetadataAggregateID   = "idem-aggregate-id"
	MetadataEventType     = "idem-event-type"
	MetadataVersion       = "idem-version"
)

// PublisherConfig says how events become messages. The zero value is right for most.
type PublisherConfig struct {
	// Topic is where an event goes. Default: "outbox.event." and the aggregate's type, which is where Debezium's event router sends it.
	Topic func(outbox.Envelope) string
	// Batches hands as many events of one topic as there are to the publisher in one call, instead of one event at a time. Only for a
	// publisher that keeps their order also when one of them fails: a batch that publishes the second and then the first, tried again, has
	// let event 2 out before event 1.
	Batches bool
}

// NewPublisher makes a publisher for an outbox's dispatcher of a Watermill publisher, which must return from Publish only when the broker
// has acknowledged the messages. A broker that spreads a topic over partitions keeps the order within an aggregate if it is told to
// choose the partition by the metadata [MetadataAggregateID].
func NewPublisher(publisher message.Publisher, config PublisherConfig) outbox.Publisher {
	if config.Topic == nil {
		config.Topic = func(e outbox.Envelope) string { return "outbox.event." + e.AggregateType }
	}
	if config.Batches {
		return batches{publisher, config}
	}
	return outbox.OneByOne(func(ctx context.Context, e outbox.Envelope) error {
		return publisher.Publish(config.Topic(e), messageOf(ctx, e))
	})
}

type batches struct {
	publisher message.Publisher
	config    PublisherConfig
}

// Publish publishes runs of events that go to one topic. Of a run that fails it counts none: they are published again.
func (b batches) Publish(ctx context.Context, events []outbox.Envelope) (published int, err error) {
	for published < len(events) {
		if err := context.Cause(ctx); err != nil {
			return published, err
		}
		topic, run := b.config.Topic(events[published]), []*message.Message(nil)
		for _, e := range events[published:] {
			if b.config.Topic(e) != topic {
				break
			}
			run = append(run, messageOf(ctx, e))
		}
		if err := b.publisher.Publish(topic, run...); err != nil {
			return published, err
		}
		published += len(run)
	}
	return published, nil
}

func messageOf(ctx context.Context, e outbox.Envelope) *message.Message {
	msg := message.NewMessageWithContext(ctx, e.ID.String(), e.Payload)
	maps.Copy(msg.Metadata, e.Headers)
	msg.Metadata.Set(MetadataAggregateType, e.AggregateType)
	msg.Metadata.Set(MetadataAggregateID, e.AggregateID)
	msg.Metadata.Set(MetadataEventType, e.Type)
	msg.Metadata.Set(MetadataVersion, strconv.FormatInt(e.Version, 10))
	return msg
}

// AggregateID is the message's aggregate, for brokers that are told a partition key: pass it to kafka.NewWithPartitioningMarshaler.
func AggregateID(_ string, msg *message.Message) (string, error) {
	id := msg.Metadata.Get(MetadataAggregateID)
	if id == "" {
		return "", errors.New("watermillidem: the message has no " + MetadataAggregateID)
	}
	return id, nil
}
