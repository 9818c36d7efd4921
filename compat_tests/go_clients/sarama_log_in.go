package main

import (
	"fmt"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

// saramaConversation is what sarama asks its user to bring for SCRAM.
type saramaConversation struct {
	hash scram.HashGeneratorFcn
	*scram.ClientConversation
}

func (c *saramaConversation) Begin(name, secret, authorization string) error {
	client, err := c.hash.NewClient(name, secret, authorization)
	if err == nil {
		c.ClientConversation = client.NewConversation()
	}
	return err
}

func saramaUser(version sarama.KafkaVersion, mechanism, secret string, handshake int16) *sarama.Config {
	config := saramaConfig(version)
	config.Net.SASL.Enable, config.Net.SASL.User, config.Net.SASL.Password = true, user, secret
	config.Net.SASL.Mechanism, config.Net.SASL.Version = sarama.SASLMechanism(mechanism), handshake
	config.ApiVersionsRequest = handshake != sarama.SASLHandshakeV0 // The library allows no other order.
	hash := map[string]scram.HashGeneratorFcn{"SCRAM-SHA-256": scram.SHA256, "SCRAM-SHA-512": scram.SHA512}[mechanism]
	if hash != nil {
		config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &saramaConversation{hash: hash} }
	}
	return config
}

// saramaLogIn also sends tokens without request headers, as the first version of SaslHandshake had them.
func saramaLogIn(s session, version sarama.KafkaVersion) {
	for _, mechanism := range mechanisms {
		for _, handshake := range []int16{sarama.SASLHandshakeV0, sarama.SASLHandshakeV1} {
			what := fmt.Sprint(mechanism, " after SaslHandshake ", handshake)
			config := saramaUser(version, mechanism, password, handshake)
			topic := s.saramaTopicAs(config, 1)
			s.saramaFill(topic, config)
			consumer, err := sarama.NewConsumer([]string{s.address}, config)
			must(err, "consumer")
			partition, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
			must(err, "consume partition")
			for n := range count {
				select {
				case message := <-partition.Messages():
					equal(string(message.Value), value(n), "value with "+what)
				case <-s.Done():
					equal(n, count, "messages with "+what)
				}
			}
			must(partition.Close(), "close")
			must(consumer.Close(), "close")
			wrong := saramaUser(version, mechanism, "wrong", handshake)
			wrong.Metadata.Retry.Max = 0
			_, err = sarama.NewClient([]string{s.address}, wrong)
			equal(err != nil, true, "a wrong password is refused with "+what)
		}
	}
}
