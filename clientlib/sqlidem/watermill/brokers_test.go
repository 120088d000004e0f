package watermillidem_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	wmjetstream "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/jetstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kfake"

	watermillidem "github.com/idemd/idemd/clientlib/sqlidem/watermill"
)

const (
	topic = "orders"
	group = "billing"
	// ackWait is after how long a broker takes a consumer that does not acknowledge for dead.
	ackWait = 300 * time.Millisecond
)

// broker is a message broker in this process, on loopback.
type broker struct {
	publisher message.Publisher
	// subscriber is a new instance of one consumer: what an earlier one did not acknowledge comes to it.
	subscriber func(*testing.T) message.Subscriber
}

// onEveryBroker runs a test on Watermill's own channel, on a NATS JetStream server, and on a broker that speaks Kafka's protocol.
func onEveryBroker(t *testing.T, test func(*testing.T, *rig, broker)) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) broker{"gochannel": startChannel, "NATS JetStream": startNATS, "Kafka": startKafka} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newRig(t), start(t))
		})
	}
}

func must[T any](t *testing.T) func(value T, err error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// startChannel: a persistent channel gives everything to every new subscriber, acknowledged or not.
func startChannel(t *testing.T) broker {
	channel := gochannel.NewGoChannel(gochannel.Config{Persistent: true, OutputChannelBuffer: 100}, watermill.NopLogger{})
	t.Cleanup(func() { _ = channel.Close() })
	return broker{channel, func(*testing.T) message.Subscriber { return notClosed{channel} }}
}

// notClosed lets the one channel outlive a consumer's instance.
type notClosed struct{ message.Subscriber }

func (notClosed) Close() error { return nil }

func startNATS(t *testing.T) broker {
	s := must[*server.Server](t)(server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true}))
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the NATS server does not come up")
	}
	conn := must[*nats.Conn](t)(nats.Connect(s.ClientURL()))
	t.Cleanup(conn.Close)
	js := must[jetstream.JetStream](t)(jetstream.New(conn))
	must[jetstream.Stream](t)(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: topic, Subjects: []string{topic}}))
	durable := func(ctx context.Context, js jetstream.JetStream, topic string) (jetstream.Consumer, func(context.Context, watermill.LoggerAdapter), error) {
		consumer, err := js.CreateOrUpdateConsumer(ctx, topic, jetstream.ConsumerConfig{Durable: group, AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait})
		return consumer, nil, err
	}
	publisher := must[*wmjetstream.Publisher](t)(wmjetstream.NewPublisher(wmjetstream.PublisherConfig{URL: s.ClientURL(), Logger: watermill.NopLogger{}}))
	t.Cleanup(func() { _ = publisher.Close() })
	return broker{publisher, func(t *testing.T) message.Subscriber {
		return must[*wmjetstream.Subscriber](t)(wmjetstream.NewSubscriber(wmjetstream.SubscriberConfig{
			URL: s.ClientURL(), Logger: watermill.NopLogger{}, ResourceInitializer: durable, AckWaitTimeout: ackWait,
		}))
	}}
}

func startKafka(t *testing.T) broker {
	// kfake listens on loopback only.
	cluster := must[*kfake.Cluster](t)(kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, topic)))
	t.Cleanup(cluster.Close)
	marshaler := kafka.NewWithPartitioningMarshaler(watermillidem.AggregateID)
	publisher := must[*kafka.Publisher](t)(kafka.NewPublisher(kafka.PublisherConfig{Brokers: cluster.ListenAddrs(), Marshaler: marshaler}, watermill.NopLogger{}))
	t.Cleanup(func() { _ = publisher.Close() })
	return broker{publisher, func(t *testing.T) message.Subscriber {
		config := kafka.DefaultSaramaSubscriberConfig()
		config.Consumer.Offsets.Initial = sarama.OffsetOldest
		config.ClientID = strings.ReplaceAll(t.Name(), "/", "_")
		return must[*kafka.Subscriber](t)(kafka.NewSubscriber(kafka.SubscriberConfig{
			Brokers: cluster.ListenAddrs(), Unmarshaler: marshaler, ConsumerGroup: group, OverwriteSaramaConfig: config, NackResendSleep: time.Millisecond,
		}, watermill.NopLogger{}))
	}}
}
