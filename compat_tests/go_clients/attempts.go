package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/segmentio/kafka-go"
	kafkaSasl "github.com/segmentio/kafka-go/sasl"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
)

// attempt is a login over TLS of compat_tests/security/programs.py, which writes a record and reads it.
type attempt struct {
	Name, Client, Address, Topic, Mechanism, User, Secret, Trusted string
}

func (a attempt) tls() *tls.Config {
	text, err := os.ReadFile(a.Trusted)
	must(err, "read the authority")
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(text)
	return &tls.Config{RootCAs: trusted}
}

// makeAttempts carries out the attempts of standard input and prints a line for each.
func makeAttempts() {
	var attempts []attempt
	must(json.NewDecoder(os.Stdin).Decode(&attempts), "read the attempts")
	clients := map[string]func(context.Context, attempt) (string, error){
		"kafka-go": kafkaGoAttempt, "sarama": saramaAttempt, "franz-go": franzAttempt,
	}
	var running sync.WaitGroup
	for _, each := range attempts {
		running.Go(func() {
			bounded, cancel := context.WithTimeout(context.Background(), deadline)
			defer cancel()
			outcome, err := clients[each.Client](bounded, each)
			if err != nil {
				outcome = err.Error()
			}
			fmt.Printf("%s\t%s\n", each.Name, strings.ReplaceAll(outcome, "\n", " "))
		})
	}
	running.Wait()
}

func franzAttempt(c context.Context, a attempt) (string, error) {
	mechanism := oauth.Auth{Token: a.Secret}.AsMechanism()
	if a.Mechanism != "OAUTHBEARER" {
		mechanism = franzMechanism(a.Mechanism, a.User, a.Secret, false)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(a.Address), kgo.SASL(mechanism), kgo.DialTLSConfig(a.tls()),
		kgo.ConsumeTopics(a.Topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	must(err, "client")
	defer client.Close()
	if err := client.Ping(c); err != nil {
		return "", err
	}
	record := &kgo.Record{Topic: a.Topic, Value: []byte(a.Name)}
	if err := client.ProduceSync(c, record).FirstErr(); err != nil {
		return "", err
	}
	fetches := client.PollFetches(c)
	if err := fetches.Err0(); err != nil {
		return "", err
	}
	return string(fetches.Records()[0].Value), nil
}

// saramaToken gives the library the token of an attempt.
type saramaToken string

func (t saramaToken) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: string(t)}, nil
}

func saramaAttempt(c context.Context, a attempt) (string, error) {
	config := saramaUser(sarama.V4_1_0_0, a.Mechanism, a.Secret, sarama.SASLHandshakeV1)
	config.Net.SASL.User, config.Net.SASL.TokenProvider = a.User, saramaToken(a.Secret)
	config.Net.TLS.Enable, config.Net.TLS.Config = true, a.tls()
	producer, err := sarama.NewSyncProducer([]string{a.Address}, config)
	if err != nil {
		return "", err
	}
	defer producer.Close()
	_, _, err = producer.SendMessage(&sarama.ProducerMessage{Topic: a.Topic, Value: sarama.StringEncoder(a.Name)})
	if err != nil {
		return "", err
	}
	consumer, err := sarama.NewConsumer([]string{a.Address}, config)
	if err != nil {
		return "", err
	}
	defer consumer.Close()
	partition, err := consumer.ConsumePartition(a.Topic, 0, sarama.OffsetOldest)
	if err != nil {
		return "", err
	}
	defer partition.Close()
	select {
	case message := <-partition.Messages():
		return string(message.Value), nil
	case <-c.Done():
		return "", c.Err()
	}
}

// kafkaGoToken is a mechanism that the library leaves to its users: OAUTHBEARER of RFC 7628.
type kafkaGoToken string

func (kafkaGoToken) Name() string { return "OAUTHBEARER" }

func (t kafkaGoToken) Start(context.Context) (kafkaSasl.StateMachine, []byte, error) {
	return t, []byte("n,,\x01auth=Bearer " + string(t) + "\x01\x01"), nil
}

func (kafkaGoToken) Next(_ context.Context, challenge []byte) (bool, []byte, error) {
	if len(challenge) == 0 {
		return true, nil, nil
	}
	return false, []byte{1}, nil // The broker then reports the error.
}

func kafkaGoAttempt(c context.Context, a attempt) (string, error) {
	var mechanism kafkaSasl.Mechanism = kafkaGoToken(a.Secret)
	if a.Mechanism != "OAUTHBEARER" {
		mechanism = kafkaGoMechanism(a.Mechanism, a.Secret)
	}
	transport := &kafka.Transport{TLS: a.tls(), SASL: mechanism}
	defer transport.CloseIdleConnections()
	writer := &kafka.Writer{
		Addr: kafka.TCP(a.Address), Topic: a.Topic, BatchTimeout: 10 * time.Millisecond, Transport: transport, MaxAttempts: 1,
	}
	defer writer.Close()
	if err := writer.WriteMessages(c, kafka.Message{Value: []byte(a.Name)}); err != nil {
		return "", err
	}
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{a.Address}, Topic: a.Topic, MaxWait: 100 * time.Millisecond,
		Dialer: &kafka.Dialer{Timeout: 10 * time.Second, TLS: a.tls(), SASLMechanism: mechanism},
	})
	defer reader.Close()
	message, err := reader.ReadMessage(c)
	return string(message.Value), err
}
