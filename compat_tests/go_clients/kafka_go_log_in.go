package main

import (
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"
)

func kafkaGoMechanism(name, secret string) sasl.Mechanism {
	return kafkaGoMechanismOf(name, user, secret)
}

func kafkaGoMechanismOf(name, who, secret string) sasl.Mechanism {
	if name == "PLAIN" {
		return plain.Mechanism{Username: who, Password: secret}
	}
	algorithm := map[string]scram.Algorithm{"SCRAM-SHA-256": scram.SHA256, "SCRAM-SHA-512": scram.SHA512}[name]
	mechanism, err := scram.Mechanism(algorithm, who, secret)
	must(err, "mechanism")
	return mechanism
}

func kafkaGoLogIn(s session) {
	for _, name := range mechanisms {
		transport := s.kafkaGoTransport()
		transport.SASL = kafkaGoMechanism(name, password)
		client := &kafka.Client{Addr: s.tcp(), Timeout: 20 * time.Second, Transport: transport}
		topic := unique("kafka-go")
		created, err := client.CreateTopics(s, &kafka.CreateTopicsRequest{
			Topics: []kafka.TopicConfig{{
				Topic: topic, NumPartitions: 1, ReplicationFactor: -1,
				ConfigEntries: []kafka.ConfigEntry{{ConfigName: "retention.ms", ConfigValue: "-1"}},
			}},
		})
		must(err, "create topics as a user")
		must(created.Errors[topic], "create topics as a user")
		writer := &kafka.Writer{
			Addr: s.tcp(), Topic: topic, BatchTimeout: 10 * time.Millisecond, RequiredAcks: kafka.RequireAll, Transport: transport,
		}
		must(writer.WriteMessages(s, kafkaGoMessages()...), "write as a user")
		must(writer.Close(), "close")
		reader := kafka.NewReader(kafka.ReaderConfig{
			Brokers: []string{s.address}, GroupID: unique("group"), Topic: topic, MaxWait: 100 * time.Millisecond,
			Dialer: &kafka.Dialer{Timeout: 10 * time.Second, SASLMechanism: kafkaGoMechanism(name, password)},
		})
		for n := range count {
			message, err := reader.ReadMessage(s)
			must(err, "read as a user")
			equal(string(message.Value), value(n), "value with "+name)
		}
		must(reader.Close(), "close")
		_, err = (&kafka.Dialer{SASLMechanism: kafkaGoMechanism(name, "wrong")}).DialContext(s, "tcp", s.address)
		refused(err, name)
	}
}
