package main

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
)

var kafkaGoCodecs = []kafka.Compression{0, kafka.Gzip, kafka.Snappy, kafka.Lz4, kafka.Zstd}

func kafkaGo() map[string]func(session) {
	scenarios := map[string]func(session){
		"kafka-go/conn":           kafkaGoConn,
		"kafka-go/codecs":         kafkaGoCodec,
		"kafka-go/old-codecs":     kafkaGoConnCodecs,
		"kafka-go/reader-group":   kafkaGoReaderGroup,
		"kafka-go/consumer-group": kafkaGoConsumerGroup,
		"kafka-go/time":           kafkaGoTime,
		"kafka-go/admin-topics":   kafkaGoTopics,
		"kafka-go/admin-configs":  kafkaGoConfigs,
		"kafka-go/admin-groups":   kafkaGoGroups,
		"kafka-go/errors":         kafkaGoErrors,
		"kafka-go/transaction":    kafkaGoTransaction,
		"kafka-go/acls":           kafkaGoAcls,
	}
	maps.Copy(scenarios, kafkaGoAdmins())
	return scenarios
}

func (s session) tcp() net.Addr { return kafka.TCP(s.address) }

// kafkaGoTransport has seen no metadata yet: the default one keeps it for six seconds. It asks for
// metadata until it is closed, which it is at the end of the scenario.
func (s session) kafkaGoTransport() *kafka.Transport {
	transport := &kafka.Transport{MetadataTTL: 100 * time.Millisecond, ClientID: "kafka-go"}
	context.AfterFunc(s, transport.CloseIdleConnections)
	return transport
}

func (s session) kafkaGoClient() *kafka.Client {
	return &kafka.Client{Addr: s.tcp(), Timeout: 20 * time.Second, Transport: s.kafkaGoTransport()}
}

func (s session) kafkaGoTopic(partitions int) string {
	topic := unique("kafka-go")
	conn, err := kafka.DialContext(s, "tcp", s.address)
	must(err, "dial")
	defer conn.Close()
	must(conn.CreateTopics(kafka.TopicConfig{
		Topic: topic, NumPartitions: partitions, ReplicationFactor: -1,
		ConfigEntries: []kafka.ConfigEntry{{ConfigName: "retention.ms", ConfigValue: "-1"}},
	}), "create topics")
	eventually(s, func() any {
		partitions, _ := conn.ReadPartitions(topic)
		return len(partitions)
	}, partitions, "partitions of the new topic")
	return topic
}

func (s session) kafkaGoWriter(topic string, codec kafka.Compression) *kafka.Writer {
	return &kafka.Writer{
		Addr: s.tcp(), Topic: topic, Compression: codec, Balancer: &kafka.Murmur2Balancer{},
		BatchTimeout: 10 * time.Millisecond, RequiredAcks: kafka.RequireAll,
		Transport: s.kafkaGoTransport(),
	}
}

func (s session) kafkaGoFill(topic string, codec kafka.Compression) {
	writer := s.kafkaGoWriter(topic, codec)
	defer writer.Close()
	must(writer.WriteMessages(s, kafkaGoMessages()...), "write")
}

func kafkaGoMessages() []kafka.Message {
	made := make([]kafka.Message, count)
	for n := range made {
		made[n] = kafka.Message{
			Key: []byte(fmt.Sprint("key-", n)), Value: []byte(value(n)),
			Time:    time.UnixMilli(1_600_000_000_000 + int64(n)*1000),
			Headers: []kafka.Header{{Key: "h", Value: []byte("1")}, {Key: "h", Value: nil}},
		}
	}
	return made
}

// kafkaGoConn uses the low-level Conn: Produce, Fetch, ListOffsets and Metadata of its own coding.
func kafkaGoConn(s session) {
	topic := s.kafkaGoTopic(1)
	conn, err := kafka.DialLeader(s, "tcp", s.address, topic, 0)
	must(err, "dial leader")
	defer conn.Close()
	versions, err := conn.ApiVersions()
	must(err, "api versions")
	equal(len(versions) > 30, true, "many APIs")
	_, err = conn.WriteMessages(kafkaGoMessages()...)
	must(err, "write messages")
	first, last, err := conn.ReadOffsets()
	must(err, "read offsets")
	equal([]int64{first, last}, []int64{0, count}, "offsets")
	at, err := conn.ReadOffset(time.UnixMilli(1_600_000_010_001))
	must(err, "offset by time")
	equal(at, 11, "offset by time")
	_, err = conn.Seek(count-2, kafka.SeekAbsolute)
	must(err, "seek")
	message, err := conn.ReadMessage(1e6)
	must(err, "read message")
	equal(string(message.Value), value(count-2), "sought message")
	_, err = conn.Seek(0, kafka.SeekStart)
	must(err, "seek to the start")
	batch := conn.ReadBatch(1, 1e6)
	for n := range count {
		message, err := batch.ReadMessage()
		must(err, "batch")
		equal(string(message.Value), value(n), "value")
		equal(len(message.Headers), 2, "headers")
	}
	must(batch.Close(), "close of the batch")
	partitions, err := conn.ReadPartitions(topic)
	must(err, "partitions")
	equal(len(partitions), 1, "partitions")
	controller, err := conn.Controller()
	must(err, "controller")
	brokers, err := conn.Brokers()
	must(err, "brokers")
	equal(len(brokers), s.brokerCount, "brokers")
	equal(slices.Contains(brokers, controller), true, "a broker is shown as controller")
	must(conn.DeleteTopics(topic), "delete topics")
}

func kafkaGoConnCodecs(s session) {
	topic := s.kafkaGoTopic(1)
	conn, err := kafka.DialLeader(s, "tcp", s.address, topic, 0)
	must(err, "dial leader")
	defer conn.Close()
	for turn, codec := range kafkaGoCodecs[1:] {
		_, _, offset, _, err := conn.WriteCompressedMessagesAt(codec.Codec(), kafkaGoMessages()...)
		must(err, "write "+codec.String())
		equal(offset, turn*count, "offset")
	}
	for n := range 4 * count {
		message, err := conn.ReadMessage(1e6)
		must(err, "read")
		equal(string(message.Value), value(n%count), "value")
	}
}

func kafkaGoCodec(s session) {
	for _, codec := range kafkaGoCodecs {
		topic := s.kafkaGoTopic(1)
		s.kafkaGoFill(topic, codec)
		reader := kafka.NewReader(kafka.ReaderConfig{
			Brokers: []string{s.address}, Topic: topic, MaxWait: 200 * time.Millisecond,
		})
		for n := range count {
			message, err := reader.ReadMessage(s)
			must(err, "read")
			equal(string(message.Value), value(n), "value in "+codec.String())
			equal(message.HighWaterMark, count, "high watermark")
		}
		lag, err := reader.ReadLag(s)
		must(err, "lag")
		equal(lag, 0, "lag")
		must(reader.SetOffset(5), "set offset")
		message, err := reader.ReadMessage(s)
		must(err, "read again")
		equal(message.Offset, 5, "offset")
		must(reader.Close(), "close")
	}
}

func kafkaGoTime(s session) {
	topic := s.kafkaGoTopic(1)
	s.kafkaGoFill(topic, kafka.Zstd)
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{s.address}, Topic: topic})
	defer reader.Close()
	must(reader.SetOffsetAt(s, time.UnixMilli(1_600_000_020_500)), "set offset at")
	message, err := reader.ReadMessage(s)
	must(err, "read")
	equal(message.Offset, 21, "offset by time")
	answer, err := s.kafkaGoClient().ListOffsets(s, &kafka.ListOffsetsRequest{
		Topics: map[string][]kafka.OffsetRequest{topic: {
			kafka.FirstOffsetOf(0), kafka.LastOffsetOf(0),
			kafka.TimeOffsetOf(0, time.UnixMilli(1_600_000_020_000)),
		}},
	})
	must(err, "list offsets")
	found := answer.Topics[topic][0]
	equal([]int64{found.FirstOffset, found.LastOffset}, []int64{0, count}, "first and last")
	_, has := found.Offsets[20]
	equal(has, true, fmt.Sprint("by time: ", found.Offsets))
}

func (s session) kafkaGoReader(group, topic string) *kafka.Reader {
	return kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{s.address}, GroupID: group, Topic: topic,
		StartOffset: kafka.FirstOffset, MaxWait: 100 * time.Millisecond,
		HeartbeatInterval: 200 * time.Millisecond, RebalanceTimeout: 10 * time.Second,
		JoinGroupBackoff: 100 * time.Millisecond,
	})
}

// kafkaGoReaderGroup shares a topic between two readers, then resumes at what they committed.
func kafkaGoReaderGroup(s session) {
	topic, group := s.kafkaGoTopic(4), unique("group")
	one, two := s.kafkaGoReader(group, topic), s.kafkaGoReader(group, topic)
	s.kafkaGoFill(topic, kafka.Snappy)
	found := make(chan kafka.Message, 10*count)
	fails := make(chan error, 2)
	for _, reader := range []*kafka.Reader{one, two} {
		go func() {
			for {
				message, err := reader.FetchMessage(s)
				if err != nil {
					return
				}
				found <- message
				if err := reader.CommitMessages(s, message); err != nil {
					fails <- err
				}
			}
		}()
	}
	seen := map[string]bool{}
	for len(seen) < count {
		select {
		case message := <-found:
			seen[string(message.Value)] = true
		case err := <-fails:
			must(err, "commit")
		case <-s.Done():
			equal(len(seen), count, "messages in time")
		}
	}
	must(one.Close(), "close")
	must(two.Close(), "close")
	offsets, err := s.kafkaGoClient().ConsumerOffsets(s, kafka.TopicAndGroup{Topic: topic, GroupId: group})
	must(err, "consumer offsets")
	total := int64(0)
	for _, offset := range offsets {
		total += offset
	}
	equal(total, count, "committed")
	writer := s.kafkaGoWriter(topic, 0)
	must(writer.WriteMessages(s, kafka.Message{Value: []byte("later")}), "write")
	must(writer.Close(), "close")
	again := s.kafkaGoReader(group, topic)
	defer again.Close()
	message, err := again.ReadMessage(s)
	must(err, "read")
	equal(string(message.Value), "later", "resumed")
}

// kafkaGoConsumerGroup uses the lower API: generations, and a partition that is added meanwhile.
func kafkaGoConsumerGroup(s session) {
	topic := s.kafkaGoTopic(2)
	group, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID: unique("group"), Brokers: []string{s.address}, Topics: []string{topic},
		HeartbeatInterval: 200 * time.Millisecond, WatchPartitionChanges: true,
		PartitionWatchInterval: 200 * time.Millisecond,
	})
	must(err, "group")
	defer group.Close()
	generation, err := group.Next(s)
	must(err, "generation")
	equal(len(generation.Assignments[topic]), 2, "partitions")
	must(generation.CommitOffsets(map[string]map[int]int64{topic: {0: 7}}), "commit")
	_, err = s.kafkaGoClient().CreatePartitions(s, &kafka.CreatePartitionsRequest{
		Topics: []kafka.TopicPartitionsConfig{{Name: topic, Count: 3}},
	})
	must(err, "create partitions")
	generation, err = group.Next(s)
	must(err, "next generation")
	equal(len(generation.Assignments[topic]), 3, "partitions after growth")
	for _, one := range generation.Assignments[topic] {
		if one.ID == 0 {
			equal(one.Offset, 7, "committed offset")
		}
	}
}

func kafkaGoTopics(s session) {
	client, topic := s.kafkaGoClient(), unique("kafka-go")
	config := kafka.TopicConfig{Topic: topic, NumPartitions: 2, ReplicationFactor: -1}
	for turn := range 2 {
		answer, err := client.CreateTopics(s, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{config}})
		must(err, "create topics")
		if turn == 0 {
			must(answer.Errors[topic], "create topic")
		} else {
			equal(answer.Errors[topic] != nil, true, "refused the second time")
		}
	}
	grown, err := client.CreatePartitions(s, &kafka.CreatePartitionsRequest{
		Topics: []kafka.TopicPartitionsConfig{{Name: topic, Count: 5}},
	})
	must(err, "create partitions")
	must(grown.Errors[topic], "create partitions")
	eventually(s, func() any {
		metadata, err := client.Metadata(s, &kafka.MetadataRequest{Topics: []string{topic}})
		must(err, "metadata")
		return len(metadata.Topics[0].Partitions)
	}, 5, "partitions")
	_, err = client.ElectLeaders(s, &kafka.ElectLeadersRequest{Topic: topic, Partitions: []int{0}})
	must(err, "elect leaders")
	_, err = client.ListPartitionReassignments(s, &kafka.ListPartitionReassignmentsRequest{})
	must(err, "list partition reassignments")
	deleted, err := client.DeleteTopics(s, &kafka.DeleteTopicsRequest{Topics: []string{topic, "no-such-topic"}})
	must(err, "delete topics")
	must(deleted.Errors[topic], "delete topic")
	equal(deleted.Errors["no-such-topic"] != nil, true, "unknown topic refused")
}

func kafkaGoConfigs(s session) {
	client, topic := s.kafkaGoClient(), s.kafkaGoTopic(1)
	answer, err := client.IncrementalAlterConfigs(s, &kafka.IncrementalAlterConfigsRequest{
		Resources: []kafka.IncrementalAlterConfigsRequestResource{{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: topic,
			Configs: []kafka.IncrementalAlterConfigsRequestConfig{{
				Name: "max.message.bytes", Value: "77777", ConfigOperation: kafka.ConfigOperationSet,
			}},
		}},
	})
	must(err, "incremental alter configs")
	must(answer.Resources[0].Error, "incremental alter configs")
	eventually(s, func() any { return s.kafkaGoConfig(topic, "max.message.bytes") }, "77777", "config")
	_, err = client.AlterConfigs(s, &kafka.AlterConfigsRequest{
		Resources: []kafka.AlterConfigRequestResource{{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: topic,
			Configs: []kafka.AlterConfigRequestConfig{{Name: "retention.ms", Value: "123456"}},
		}},
	})
	must(err, "alter configs")
	eventually(s, func() any { return s.kafkaGoConfig(topic, "retention.ms") }, "123456", "config")
	eventually(s, func() any { return s.kafkaGoConfig(topic, "max.message.bytes") }, "1048588", "the rest is back to its default")
}

func (s session) kafkaGoConfig(topic, name string) string {
	answer, err := s.kafkaGoClient().DescribeConfigs(s, &kafka.DescribeConfigsRequest{
		Resources: []kafka.DescribeConfigRequestResource{{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: topic,
		}},
		IncludeSynonyms: true, IncludeDocumentation: true,
	})
	must(err, "describe configs")
	for _, entry := range answer.Resources[0].ConfigEntries {
		if entry.ConfigName == name {
			return entry.ConfigValue
		}
	}
	return "no such config"
}

func kafkaGoGroups(s session) {
	client, topic, group := s.kafkaGoClient(), s.kafkaGoTopic(1), unique("group")
	s.kafkaGoFill(topic, 0)
	reader := s.kafkaGoReader(group, topic)
	_, err := reader.ReadMessage(s)
	must(err, "read")
	described, err := client.DescribeGroups(s, &kafka.DescribeGroupsRequest{GroupIDs: []string{group}})
	must(err, "describe groups")
	equal(described.Groups[0].GroupState, "Stable", "state")
	equal(described.Groups[0].Members[0].MemberMetadata.Topics, []string{topic}, "subscription")
	equal(described.Groups[0].Members[0].MemberAssignments.Topics[0].Topic, topic, "assignment")
	must(reader.Close(), "close")
	listed, err := client.ListGroups(s, &kafka.ListGroupsRequest{})
	must(err, "list groups")
	found := false
	for _, one := range listed.Groups {
		found = found || one.GroupID == group
	}
	equal(found, true, "group is listed")
	fetched, err := client.OffsetFetch(s, &kafka.OffsetFetchRequest{
		GroupID: group, Topics: map[string][]int{topic: {0}},
	})
	must(err, "offset fetch")
	equal(fetched.Topics[topic][0].CommittedOffset, 1, "committed")
	deleted, err := client.OffsetDelete(s, &kafka.OffsetDeleteRequest{
		GroupID: group, Topics: map[string][]int{topic: {0}},
	})
	must(err, "offset delete")
	must(deleted.Topics[topic][0].Error, "offset delete")
	gone, err := client.DeleteGroups(s, &kafka.DeleteGroupsRequest{GroupIDs: []string{group}})
	must(err, "delete groups")
	must(gone.Errors[group], "delete group")
	producer, err := client.InitProducerID(s, &kafka.InitProducerIDRequest{})
	must(err, "init producer id")
	equal(producer.Producer.ProducerID >= 0, true, "producer id")
}

func kafkaGoErrors(s session) {
	topic := s.kafkaGoTopic(1)
	writer := s.kafkaGoWriter(topic, 0)
	writer.BatchBytes = 5e6
	defer writer.Close()
	err := writer.WriteMessages(s, kafka.Message{Value: make([]byte, 2_000_000)})
	equal(strings.Contains(fmt.Sprint(err), "Message Size Too Large"), true, fmt.Sprint("too large: ", err))
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{s.address}, Topic: topic})
	defer reader.Close()
	must(writer.WriteMessages(s, kafka.Message{Value: []byte("fits")}), "write")
	message, err := reader.ReadMessage(s)
	must(err, "read")
	equal(message.Offset, 0, "offset")
}

// kafkaGoTransaction: the library has the requests but no transactional writer; a group's offset is
// committed in a transaction by hand.
func kafkaGoTransaction(s session) {
	topic, group, id := s.kafkaGoTopic(1), unique("group"), unique("transaction")
	client := s.kafkaGoClient()
	var given *kafka.InitProducerIDResponse
	eventually(s, func() any {
		answer, err := client.InitProducerID(s, &kafka.InitProducerIDRequest{TransactionalID: id, TransactionTimeoutMs: 30_000})
		must(err, "init producer id")
		given = answer
		return answer.Error == nil
	}, true, "producer id")
	producer, epoch := given.Producer.ProducerID, given.Producer.ProducerEpoch
	added, err := client.AddPartitionsToTxn(s, &kafka.AddPartitionsToTxnRequest{
		TransactionalID: id, ProducerID: producer, ProducerEpoch: epoch,
		Topics: map[string][]kafka.AddPartitionToTxn{topic: {{Partition: 0}}},
	})
	must(err, "add partitions")
	must(added.Topics[topic][0].Error, "add partitions")
	offsets, err := client.AddOffsetsToTxn(s, &kafka.AddOffsetsToTxnRequest{
		TransactionalID: id, ProducerID: producer, ProducerEpoch: epoch, GroupID: group,
	})
	must(err, "add offsets")
	must(offsets.Error, "add offsets")
	eventually(s, func() any {
		committed, err := client.TxnOffsetCommit(s, &kafka.TxnOffsetCommitRequest{
			TransactionalID: id, GroupID: group, ProducerID: producer, ProducerEpoch: epoch, GenerationID: -1,
			Topics: map[string][]kafka.TxnOffsetCommit{topic: {{Partition: 0, Offset: 9}}},
		})
		must(err, "commit of the offset")
		return committed.Topics[topic][0].Error
	}, nil, "commit of the offset")
	ended, err := client.EndTxn(s, &kafka.EndTxnRequest{
		TransactionalID: id, ProducerID: producer, ProducerEpoch: epoch, Committed: true,
	})
	must(err, "end")
	must(ended.Error, "end")
	eventually(s, func() any {
		fetched, err := client.OffsetFetch(s, &kafka.OffsetFetchRequest{GroupID: group, Topics: map[string][]int{topic: {0}}})
		must(err, "offset fetch")
		return fetched.Topics[topic][0].CommittedOffset
	}, 9, "committed offset")
}

func kafkaGoAcls(s session) {
	client, name := s.kafkaGoClient(), unique("acls")
	created, err := client.CreateACLs(s, &kafka.CreateACLsRequest{ACLs: []kafka.ACLEntry{{
		ResourceType: kafka.ResourceTypeTopic, ResourceName: name,
		ResourcePatternType: kafka.PatternTypePrefixed, Principal: "User:alice", Host: "*",
		Operation: kafka.ACLOperationTypeRead, PermissionType: kafka.ACLPermissionTypeAllow,
	}}})
	must(err, "create")
	must(created.Errors[0], "create")
	count := func() any {
		described, err := client.DescribeACLs(s, &kafka.DescribeACLsRequest{Filter: kafka.ACLFilter{
			ResourceTypeFilter: kafka.ResourceTypeTopic, ResourceNameFilter: name + "-1",
			ResourcePatternTypeFilter: kafka.PatternTypeMatch, PrincipalFilter: "User:alice", HostFilter: "*",
			Operation: kafka.ACLOperationTypeAny, PermissionType: kafka.ACLPermissionTypeAny,
		}})
		must(err, "describe")
		must(described.Error, "describe")
		return len(described.Resources)
	}
	eventually(s, count, 1, "the new ACL")
	deleted, err := client.DeleteACLs(s, &kafka.DeleteACLsRequest{Filters: []kafka.DeleteACLsFilter{{
		ResourceTypeFilter: kafka.ResourceTypeTopic, ResourceNameFilter: name,
		ResourcePatternTypeFilter: kafka.PatternTypePrefixed, PrincipalFilter: "User:alice", HostFilter: "*",
		Operation: kafka.ACLOperationTypeRead, PermissionType: kafka.ACLPermissionTypeAllow,
	}}})
	must(err, "delete")
	must(deleted.Results[0].Error, "delete")
	equal(len(deleted.Results[0].MatchingACLs), 1, "deleted")
	eventually(s, count, 0, "the ACLs after the deletion")
}
