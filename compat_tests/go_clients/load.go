package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"
)

// report is that of compat_tests/security/loads.py.
type report struct {
	Acknowledged []string `json:"acknowledged"`
	Received     []string `json:"received"`
	Errors       []string `json:"errors"`
}

// load is a client that writes and reads without pause.
type load struct {
	attempt
	context.Context
	stop     string
	lock     sync.Mutex
	observed report
}

func (l *load) add(list *[]string, text string) {
	l.lock.Lock()
	defer l.lock.Unlock()
	*list = append(*list, text)
}

func (l *load) failed(err error) {
	if err != nil && l.Err() == nil {
		l.add(&l.observed.Errors, err.Error())
	}
}

// count returns how many records were acknowledged and received, and how many errors there were.
func (l *load) count() (int, int, int) {
	l.lock.Lock()
	defer l.lock.Unlock()
	return len(l.observed.Acknowledged), len(l.observed.Received), len(l.observed.Errors)
}

// write sends one value after the other until the file exists or an error was reported.
func (l *load) write(send func(value string) error) {
	for number := 0; ; number++ {
		_, found := os.Stat(l.stop)
		if _, _, errors := l.count(); errors > 0 || found == nil {
			return
		}
		value := fmt.Sprint(l.Name, "-", number)
		if err := send(value); err != nil {
			l.failed(err)
			return
		}
		l.add(&l.observed.Acknowledged, value)
		time.Sleep(10 * time.Millisecond)
	}
}

// runLoad carries out the attempt of standard input until the file exists or a client reports an error.
func runLoad(stop string) {
	bounded, cancel := context.WithCancel(context.Background())
	running := &load{Context: bounded, stop: stop, observed: report{[]string{}, []string{}, []string{}}}
	must(json.NewDecoder(os.Stdin).Decode(&running.attempt), "read the attempt")
	clients := map[string]func(*load){"kafka-go": kafkaGoLoad, "sarama": saramaLoad, "franz-go": franzLoad}
	clients[running.Client](running)
	limit := time.Now().Add(deadline)
	for sent, received, errors := running.count(); errors == 0 && received < sent && time.Now().Before(limit); {
		time.Sleep(20 * time.Millisecond)
		sent, received, errors = running.count()
	}
	cancel()
	running.lock.Lock()
	defer running.lock.Unlock()
	text, err := json.Marshal(running.observed)
	must(err, "report")
	fmt.Println(string(text))
}

// Each of the following returns when nothing more is written; the reader goes on.

func franzLoad(l *load) {
	login := kgo.SASL(franzMechanism(l.Mechanism, l.User, l.Secret, false))
	writer, err := kgo.NewClient(kgo.SeedBrokers(l.Address), login, kgo.DialTLSConfig(l.tls()))
	must(err, "client")
	reader, err := kgo.NewClient(kgo.SeedBrokers(l.Address), login, kgo.DialTLSConfig(l.tls()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{l.Topic: {0: kgo.NewOffset().AtStart()}}))
	must(err, "client")
	go func() {
		for l.Err() == nil {
			fetches := reader.PollFetches(l)
			fetches.EachError(func(_ string, _ int32, err error) { l.failed(err) })
			fetches.EachRecord(func(r *kgo.Record) { l.add(&l.observed.Received, string(r.Value)) })
		}
	}()
	l.write(func(value string) error {
		return writer.ProduceSync(l, &kgo.Record{Topic: l.Topic, Value: []byte(value)}).FirstErr()
	})
}

func saramaLoad(l *load) {
	config := saramaUser(sarama.V4_1_0_0, l.Mechanism, l.Secret, sarama.SASLHandshakeV1)
	config.Net.SASL.User = l.User
	config.Net.TLS.Enable, config.Net.TLS.Config = true, l.tls()
	config.Consumer.Return.Errors = true
	producer, err := sarama.NewSyncProducer([]string{l.Address}, config)
	must(err, "producer")
	consumer, err := sarama.NewConsumer([]string{l.Address}, config)
	must(err, "consumer")
	partition, err := consumer.ConsumePartition(l.Topic, 0, sarama.OffsetOldest)
	must(err, "partition")
	go func() {
		for message := range partition.Messages() {
			l.add(&l.observed.Received, string(message.Value))
		}
	}()
	go func() {
		for err := range partition.Errors() {
			fmt.Fprintln(os.Stderr, err) // The consumer reconnects by itself.
		}
	}()
	l.write(func(value string) error {
		_, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: l.Topic, Value: sarama.StringEncoder(value)})
		return err
	})
}

func kafkaGoLoad(l *load) {
	mechanism := kafkaGoMechanismOf(l.Mechanism, l.User, l.Secret)
	writer := &kafka.Writer{
		Addr: kafka.TCP(l.Address), Topic: l.Topic, BatchTimeout: time.Millisecond, RequiredAcks: kafka.RequireAll,
		Transport: &kafka.Transport{TLS: l.tls(), SASL: mechanism},
	}
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{l.Address}, Topic: l.Topic, MaxWait: 100 * time.Millisecond,
		Dialer: &kafka.Dialer{Timeout: 10 * time.Second, TLS: l.tls(), SASLMechanism: mechanism},
	})
	go func() {
		for l.Err() == nil {
			message, err := reader.ReadMessage(l)
			if err == nil {
				l.add(&l.observed.Received, string(message.Value))
			}
		}
	}()
	l.write(func(value string) error { return writer.WriteMessages(l, kafka.Message{Value: []byte(value)}) })
}
