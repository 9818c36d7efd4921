package main

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

// saramaVersions are what users pin: the library picks the version of every request by it.
var saramaVersions = map[string]sarama.KafkaVersion{
	"1.0": sarama.V1_0_0_0, "2.1": sarama.V2_1_0_0, "2.8": sarama.V2_8_0_0,
	"3.6": sarama.V3_6_0_0, "4.1": sarama.V4_1_0_0,
}

func saramas() map[string]func(session) {
	made := map[string]func(session){}
	for name, version := range saramaVersions {
		made["sarama-"+name+"/codecs"] = func(s session) { saramaCodecs(s, version) }
		made["sarama-"+name+"/async"] = func(s session) { saramaAsync(s, version) }
		made["sarama-"+name+"/group"] = func(s session) { saramaGroup(s, version) }
		if version.IsAtLeast(sarama.V2_0_0_0) { // before, DescribeConfigs 0, which Kafka 4 does not serve
			made["sarama-"+name+"/admin"] = func(s session) { saramaAdmin(s, version) }
			made["sarama-"+name+"/acls"] = func(s session) { saramaAcls(s, version) }
		}
		made["sarama-"+name+"/offsets"] = func(s session) { saramaOffsets(s, version) }
		made["sarama-"+name+"/transaction"] = func(s session) { saramaTransaction(s, version) }
		maps.Copy(made, saramaAdmins(name, version))
	}
	return made
}

func saramaConfig(version sarama.KafkaVersion) *sarama.Config {
	config := sarama.NewConfig()
	config.Version = version
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Retry.Max = 100 // A new topic may be unknown to the broker for a moment.
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Group.Heartbeat.Interval = 200 * time.Millisecond
	config.Metadata.RefreshFrequency = 500 * time.Millisecond
	return config
}

func (s session) saramaTopic(version sarama.KafkaVersion, partitions int32) string {
	return s.saramaTopicAs(saramaConfig(version), partitions)
}

func (s session) saramaTopicAs(config *sarama.Config, partitions int32) string {
	admin, err := sarama.NewClusterAdmin([]string{s.address}, config)
	must(err, "admin")
	defer admin.Close()
	topic, forever := unique("sarama"), "-1"
	must(admin.CreateTopic(topic, &sarama.TopicDetail{
		NumPartitions: partitions, ReplicationFactor: -1,
		ConfigEntries: map[string]*string{"retention.ms": &forever},
	}, false), "create topic")
	return topic
}

func (s session) saramaFill(topic string, config *sarama.Config) {
	producer, err := sarama.NewSyncProducer([]string{s.address}, config)
	must(err, "producer")
	defer producer.Close()
	made := []*sarama.ProducerMessage{}
	for n := range count {
		made = append(made, &sarama.ProducerMessage{
			Topic: topic, Key: sarama.StringEncoder(fmt.Sprint("key-", n)), Value: sarama.StringEncoder(value(n)),
			Timestamp: time.UnixMilli(1_600_000_000_000 + int64(n)*1000),
			Headers:   []sarama.RecordHeader{{Key: []byte("h"), Value: []byte("1")}},
		})
	}
	must(producer.SendMessages(made), "send")
}

func saramaCodecs(s session, version sarama.KafkaVersion) {
	codecs := []sarama.CompressionCodec{0, sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4}
	if version.IsAtLeast(sarama.V2_1_0_0) {
		codecs = append(codecs, sarama.CompressionZSTD)
	}
	for _, codec := range codecs {
		topic := s.saramaTopic(version, 1)
		config := saramaConfig(version)
		config.Producer.Compression = codec
		s.saramaFill(topic, config)
		consumer, err := sarama.NewConsumer([]string{s.address}, config)
		must(err, "consumer")
		partition, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
		must(err, "consume partition")
		for n := range count {
			select {
			case message := <-partition.Messages():
				equal(string(message.Value), value(n), "value in "+codec.String())
				equal(len(message.Headers), 1, "headers")
			case <-s.Done():
				equal(n, count, "messages in "+codec.String())
			}
		}
		equal(partition.HighWaterMarkOffset(), count, "high watermark")
		must(partition.Close(), "close")
		must(consumer.Close(), "close")
	}
}

// saramaAsync sends many small batches by an idempotent producer.
func saramaAsync(s session, version sarama.KafkaVersion) {
	topic := s.saramaTopic(version, 1)
	config := saramaConfig(version)
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
	config.Producer.Flush.MaxMessages = 7
	producer, err := sarama.NewAsyncProducer([]string{s.address}, config)
	must(err, "producer")
	go func() {
		for n := range 20 * count {
			producer.Input() <- &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(value(n))}
		}
	}()
	for n := range 20 * count {
		select {
		case sent := <-producer.Successes():
			equal(sent.Offset, n, "offset")
		case failed := <-producer.Errors():
			must(failed, "send")
		case <-s.Done():
			equal(n, 20*count, "acknowledged in time")
		}
	}
	must(producer.Close(), "close")
}

type saramaHandler struct {
	ready sync.Once
	found chan *sarama.ConsumerMessage
	sizes chan int
}

func (h *saramaHandler) Setup(open sarama.ConsumerGroupSession) error {
	total := 0
	for _, partitions := range open.Claims() {
		total += len(partitions)
	}
	h.sizes <- total
	return nil
}
func (h *saramaHandler) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (h *saramaHandler) ConsumeClaim(open sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		h.found <- message
		open.MarkMessage(message, "note")
	}
	open.Commit()
	return nil
}

func (s session) saramaMember(group, topic string, config *sarama.Config) (*saramaHandler, func()) {
	member, err := sarama.NewConsumerGroup([]string{s.address}, group, config)
	must(err, "group")
	handler := &saramaHandler{found: make(chan *sarama.ConsumerMessage, 100*count), sizes: make(chan int, 100)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for member.Consume(s, []string{topic}, handler) == nil {
		}
	}()
	return handler, func() { must(member.Close(), "close of a member"); <-ended }
}

func (s session) saramaSize(handler *saramaHandler, wanted int) {
	last := -1
	for last != wanted {
		select {
		case last = <-handler.sizes:
		case <-s.Done():
			equal(last, wanted, "partitions of a member")
		}
	}
}

func (s session) saramaRead(handlers ...*saramaHandler) []string {
	found := map[string]bool{}
	for len(found) < count {
		for _, handler := range handlers {
			select {
			case message := <-handler.found:
				found[string(message.Value)] = true
			case <-time.After(time.Millisecond):
			case <-s.Done():
				equal(len(found), count, "messages in time")
			}
		}
	}
	list := []string{}
	for one := range found {
		list = append(list, one)
	}
	return sorted(list)
}

// saramaGroup: two members by every strategy, one leaves, a third one resumes where they stopped.
func saramaGroup(s session, version sarama.KafkaVersion) {
	for _, strategy := range []sarama.BalanceStrategy{
		sarama.NewBalanceStrategyRange(), sarama.NewBalanceStrategyRoundRobin(), sarama.NewBalanceStrategySticky(),
	} {
		topic, group, config := s.saramaTopic(version, 4), unique("group"), saramaConfig(version)
		config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategy}
		config.Consumer.Group.InstanceId = ""
		one, leaveOne := s.saramaMember(group, topic, config)
		s.saramaSize(one, 4)
		two, leaveTwo := s.saramaMember(group, topic, config)
		s.saramaSize(one, 2)
		s.saramaSize(two, 2)
		s.saramaFill(topic, config)
		equal(s.saramaRead(one, two), values(count), "values by "+strategy.Name())
		leaveTwo()
		s.saramaSize(one, 4)
		leaveOne()
		s.saramaFill(topic, config)
		three, leaveThree := s.saramaMember(group, topic, config)
		equal(s.saramaRead(three), values(count), "resumed")
		time.Sleep(10 * time.Millisecond)
		equal(len(three.found), 0, "nothing is read twice")
		leaveThree()
	}
}

func saramaAdmin(s session, version sarama.KafkaVersion) {
	config := saramaConfig(version)
	admin, err := sarama.NewClusterAdmin([]string{s.address}, config)
	must(err, "admin")
	defer admin.Close()
	topic := s.saramaTopic(version, 2)
	must(admin.CreatePartitions(topic, 3, nil, false), "create partitions")
	eventually(s, func() any {
		topics, err := admin.ListTopics()
		must(err, "list topics")
		return topics[topic].NumPartitions
	}, 3, "partitions")
	eventually(s, func() any {
		described, err := admin.DescribeTopics([]string{topic})
		must(err, "describe topics")
		return described[0].Err
	}, sarama.ErrNoError, "describe topics")
	size := "88888"
	must(admin.AlterConfig(sarama.TopicResource, topic, map[string]*string{"max.message.bytes": &size}, false), "alter config")
	eventually(s, func() any {
		entries, err := admin.DescribeConfig(sarama.ConfigResource{
			Type: sarama.TopicResource, Name: topic, ConfigNames: []string{"max.message.bytes"},
		})
		must(err, "describe config")
		return entries[0].Value
	}, size, "config")
	if version.IsAtLeast(sarama.V2_4_0_0) {
		other := "99999"
		must(admin.IncrementalAlterConfig(sarama.TopicResource, topic, map[string]sarama.IncrementalAlterConfigsEntry{
			"max.message.bytes": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &other},
		}, false), "incremental alter config")
		_, err = admin.ListPartitionReassignments(topic, []int32{0})
		must(err, "list reassignments")
		_, err = admin.ElectLeaders(sarama.PreferredElection, map[string][]int32{topic: {0}})
		must(err, "elect leaders")
	}
	s.saramaFill(topic, config)
	must(admin.DeleteRecords(topic, map[int32]int64{0: 1}), "delete records")
	brokers, controller, err := admin.DescribeCluster()
	must(err, "describe cluster")
	equal(len(brokers), s.brokerCount, "brokers")
	isController := func(broker *sarama.Broker) bool { return broker.ID() == controller }
	equal(slices.ContainsFunc(brokers, isController), true, "a broker is shown as controller")
	dirs, err := admin.DescribeLogDirs([]int32{brokers[0].ID()})
	must(err, "describe log dirs")
	equal(len(dirs[brokers[0].ID()]), 1, "log dirs")
	saramaGroups(s, admin, topic, config)
	must(admin.DeleteTopic(topic), "delete topic")
}

func saramaGroups(s session, admin sarama.ClusterAdmin, topic string, config *sarama.Config) {
	group := unique("group")
	member, leave := s.saramaMember(group, topic, config)
	s.saramaSize(member, 3)
	listed, err := admin.ListConsumerGroups()
	must(err, "list groups")
	equal(listed[group], "consumer", "group is listed")
	groups, err := admin.DescribeConsumerGroups([]string{group})
	must(err, "describe groups")
	for _, one := range groups[0].Members {
		assignment, err := one.GetMemberAssignment()
		must(err, "member assignment")
		equal(len(assignment.Topics[topic]), 3, "assignment")
	}
	for len(member.found) < count-1 && s.Err() == nil {
		time.Sleep(5 * time.Millisecond)
	}
	leave()
	offsets, err := admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {0, 1, 2}})
	must(err, "list group offsets")
	total := int64(0)
	for partition := range int32(3) {
		total += offsets.GetBlock(topic, partition).Offset
	}
	equal(total, count, "committed")
	if config.Version.IsAtLeast(sarama.V2_4_0_0) {
		must(admin.DeleteConsumerGroupOffset(group, topic, 0), "delete group offset")
	}
	must(admin.DeleteConsumerGroup(group), "delete group")
}

func saramaOffsets(s session, version sarama.KafkaVersion) {
	config := saramaConfig(version)
	topic := s.saramaTopic(version, 1)
	s.saramaFill(topic, config)
	client, err := sarama.NewClient([]string{s.address}, config)
	must(err, "client")
	defer client.Close()
	for time, wanted := range map[int64]int64{
		sarama.OffsetOldest: 0, sarama.OffsetNewest: count, 1_600_000_030_001: 31, 1_900_000_000_000: -1,
	} {
		offset, err := client.GetOffset(topic, 0, time)
		must(err, "get offset")
		equal(offset, wanted, fmt.Sprint("offset at ", time))
	}
	manager, err := sarama.NewOffsetManagerFromClient(unique("group"), client)
	must(err, "offset manager")
	partition, err := manager.ManagePartition(topic, 0)
	must(err, "manage partition")
	partition.MarkOffset(9, "note")
	manager.Commit()
	offset, note := partition.NextOffset()
	equal([]any{offset, note}, []any{9, "note"}, "committed")
	must(partition.Close(), "close")
	must(manager.Close(), "close")
}

// saramaTransaction: what is aborted is never read, what is committed is, with the group's offset.
func saramaTransaction(s session, version sarama.KafkaVersion) {
	topic, group := s.saramaTopic(version, 1), unique("group")
	config := saramaConfig(version)
	config.Producer.Idempotent = true
	config.Producer.Transaction.ID = unique("transaction")
	config.Net.MaxOpenRequests = 1
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	producer, err := sarama.NewSyncProducer([]string{s.address}, config)
	must(err, "transactional producer")
	defer producer.Close()
	send := func(text string) {
		_, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(text)})
		must(err, "send")
	}
	must(producer.BeginTxn(), "begin")
	send("undone")
	must(producer.AbortTxn(), "abort")
	must(producer.BeginTxn(), "begin again")
	for n := range count {
		send(value(n))
	}
	offsets := map[string][]*sarama.PartitionOffsetMetadata{topic: {{Partition: 0, Offset: 9}}}
	must(producer.AddOffsetsToTxn(offsets, group), "add offsets")
	must(producer.CommitTxn(), "commit")
	consumer, err := sarama.NewConsumer([]string{s.address}, config)
	must(err, "consumer")
	defer consumer.Close()
	partition, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
	must(err, "consume partition")
	var last *sarama.ConsumerMessage
	for n := range count {
		select {
		case last = <-partition.Messages():
			equal(string(last.Value), value(n), "value")
		case <-s.Done():
			equal(n, count, "messages")
		}
	}
	must(partition.Close(), "close")
	must(producer.BeginTxn(), "begin with a message")
	must(producer.AddMessageToTxn(last, group, nil), "add message")
	heir, err := sarama.NewSyncProducer([]string{s.address}, config)
	must(err, "newer producer")
	defer heir.Close()
	equal(producer.CommitTxn() != nil, true, "the older producer's commit fails")
	must(heir.BeginTxn(), "begin of the newer producer")
	_, _, err = heir.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("heir")})
	must(err, "send of the newer producer")
	must(heir.CommitTxn(), "commit of the newer producer")
	admin, err := sarama.NewClusterAdmin([]string{s.address}, config)
	must(err, "admin")
	defer admin.Close()
	eventually(s, func() any {
		committed, err := admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {0}})
		must(err, "list group offsets")
		return committed.GetBlock(topic, 0).Offset
	}, 9, "committed offset")
}

func saramaAcls(s session, version sarama.KafkaVersion) {
	admin, err := sarama.NewClusterAdmin([]string{s.address}, saramaConfig(version))
	must(err, "admin")
	defer admin.Close()
	name := unique("acls")
	topic := sarama.Resource{
		ResourceType: sarama.AclResourceTopic, ResourceName: name,
		ResourcePatternType: sarama.AclPatternLiteral,
	}
	read := sarama.Acl{
		Principal: "User:alice", Host: "*",
		Operation: sarama.AclOperationRead, PermissionType: sarama.AclPermissionAllow,
	}
	write := read
	write.Operation = sarama.AclOperationWrite
	must(admin.CreateACL(topic, read), "create one")
	must(admin.CreateACLs([]*sarama.ResourceAcls{{Resource: topic, Acls: []*sarama.Acl{&read, &write}}}), "create")
	filter := sarama.AclFilter{
		ResourceType: sarama.AclResourceTopic, ResourceName: &name,
		ResourcePatternTypeFilter: sarama.AclPatternLiteral,
		Operation:                 sarama.AclOperationAny, PermissionType: sarama.AclPermissionAny,
	}
	count := func() any {
		listed, err := admin.ListAcls(filter)
		must(err, "list")
		acls := 0
		for _, resource := range listed {
			acls += len(resource.Acls)
		}
		return acls
	}
	eventually(s, count, 2, "the new ACLs")
	deleted, err := admin.DeleteACL(filter, false)
	must(err, "delete")
	equal(len(deleted), 2, "deleted")
	eventually(s, count, 0, "the ACLs after the deletion")
}
