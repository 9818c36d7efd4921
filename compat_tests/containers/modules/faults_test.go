package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/modules/kafka"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

type values map[string]any

var address, control = os.Getenv("FAULTS_ADDRESS"), os.Getenv("FAULTS_CONTROL")

// Three faults over HTTP: at FAULTS_ADDRESS and FAULTS_CONTROL, or at a container of FAULTS_IMAGE.
func TestMain(m *testing.M) {
	if address != "" {
		os.Exit(m.Run())
	}
	ctx := context.Background()
	container, err := kafka.Run(ctx, os.Getenv("FAULTS_IMAGE"),
		testcontainers.WithEnv(map[string]string{"KWIRE_CONTROL_PORT": "9100"}),
		testcontainers.WithExposedPorts("9100/tcp"))
	if err != nil {
		panic(err)
	}
	brokers, err := container.Brokers(ctx)
	if err != nil {
		panic(err)
	}
	endpoint, err := container.PortEndpoint(ctx, "9100/tcp", "http")
	if err != nil {
		panic(err)
	}
	address, control = brokers[0], endpoint
	code := m.Run()
	if err := container.Terminate(ctx); err != nil {
		panic(err)
	}
	os.Exit(code)
}

func TestLostAcknowledgement(t *testing.T) {
	topic := newTopic(t)
	verb(t, "add-fault", values{"action": "drop", "after": true, "api": "Produce", "topic": topic})
	produce(t, topic, "once", "end")
	equal(t, read(t, topic, 2), []string{"once", "end"})
	count := verb(t, "list-requests", values{"api": "Produce", "client_id": topic})["count"]
	fmt.Println("OBSERVED lost-acknowledgement", count)
}

func TestResponseCutInTheMiddle(t *testing.T) {
	topic := newTopic(t)
	produce(t, topic, "1", "2", "3")
	verb(t, "add-fault", values{"action": "cut", "api": "Fetch", "topic": topic})
	equal(t, read(t, topic, 3), []string{"1", "2", "3"})
	fmt.Println("OBSERVED cut-response 3")
}

func TestRefusedHeartbeat(t *testing.T) {
	topic := newTopic(t)
	produce(t, topic, "1")
	verb(t, "add-fault", values{"action": "fail", "api": "Heartbeat", "error": "REBALANCE_IN_PROGRESS", "group": topic})
	found := poll(t, func(found []string) bool { return len(found) > 0 && hasRejoined(t, topic) },
		kgo.ClientID(topic), kgo.ConsumeTopics(topic), kgo.ConsumerGroup(topic), kgo.HeartbeatInterval(200*time.Millisecond))
	equal(t, found, []string{"1"})
	fmt.Println("OBSERVED refused-heartbeat 1")
}

func hasRejoined(t *testing.T, client string) bool {
	var apis []string
	for _, request := range verb(t, "list-requests", values{"client_id": client})["requests"].([]any) {
		apis = append(apis, request.(map[string]any)["api"].(string))
	}
	heartbeat := slices.Index(apis, "Heartbeat")
	return heartbeat >= 0 && slices.Contains(apis[heartbeat:], "SyncGroup")
}

func newTopic(t *testing.T) string {
	topic := fmt.Sprintf("go-%d", time.Now().UnixNano())
	admin := kadm.NewClient(client(t))
	created, err := admin.CreateTopics(t.Context(), 1, 1, nil, topic)
	if err != nil || created[topic].Err != nil {
		t.Fatal(err, created[topic].Err)
	}
	t.Cleanup(func() { verb(t, "check-faults", values{}) })
	return topic
}

func client(t *testing.T, options ...kgo.Opt) *kgo.Client {
	client, err := kgo.NewClient(append(options, kgo.SeedBrokers(address))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func produce(t *testing.T, topic string, texts ...string) {
	producer := client(t, kgo.ClientID(topic), kgo.DefaultProduceTopic(topic))
	for _, text := range texts {
		if err := producer.ProduceSync(t.Context(), kgo.StringRecord(text)).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, topic string, count int) []string {
	isOver := func(found []string) bool { return len(found) >= count }
	return poll(t, isOver, kgo.ClientID(topic), kgo.ConsumeTopics(topic))
}

func poll(t *testing.T, isOver func([]string) bool, options ...kgo.Opt) (found []string) {
	consumer := client(t, append(options, kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	for end := time.Now().Add(30 * time.Second); !isOver(found); {
		if time.Now().After(end) {
			t.Fatal("waited 30 s; read ", found)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		consumer.PollFetches(ctx).EachRecord(func(record *kgo.Record) { found = append(found, string(record.Value)) })
		cancel()
	}
	return found
}

func equal(t *testing.T, found, wanted []string) {
	if !slices.Equal(found, wanted) {
		t.Fatalf("read %v, not %v", found, wanted)
	}
}

func verb(t *testing.T, name string, arguments values) (result map[string]any) {
	body, _ := json.Marshal(arguments)
	answer, err := http.Post(control+"/v1/"+name, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(&result); err != nil || answer.StatusCode != http.StatusOK {
		t.Fatal(name, err, result)
	}
	return result
}
