package main

import (
	"fmt"
	"maps"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
)

// franzVersions pin every request to what clients of that release of Kafka sent.
var franzVersions = map[string]*kversion.Versions{
	"2.1": kversion.V2_1_0(), "2.8": kversion.V2_8_0(), "3.0": kversion.V3_0_0(), "3.5": kversion.V3_5_0(),
	"3.9": kversion.V3_9_0(), "4.0": kversion.V4_0_0(), "4.3": kversion.V4_3_0(),
}

func franz() map[string]func(session) {
	made := map[string]func(session){}
	for name, version := range franzVersions {
		made["franz-"+name+"/codecs"] = func(s session) { franzCodecs(s, version) }
		made["franz-"+name+"/group"] = func(s session) { franzGroup(s, version) }
		made["franz-"+name+"/admin"] = func(s session) { franzAdmin(s, version) }
		made["franz-"+name+"/acls"] = func(s session) { franzAcls(s, version) }
		made["franz-"+name+"/offsets"] = func(s session) { franzOffsets(s, version) }
		made["franz-"+name+"/transaction"] = func(s session) { franzTransaction(s, version) }
		if _, exists := version.LookupMaxKeyVersion(65); exists { // DescribeTransactions
			made["franz-"+name+"/transaction-admin"] = func(s session) { franzTransactionAdmin(s, version) }
		}
		maps.Copy(made, franzAdmins(name, version))
	}
	return made
}

func (s session) franzClient(version *kversion.Versions, options ...kgo.Opt) *kgo.Client {
	options = append(options, kgo.SeedBrokers(s.address), kgo.MaxVersions(version),
		kgo.FetchMaxWait(200*time.Millisecond), kgo.MetadataMinAge(100*time.Millisecond))
	client, err := kgo.NewClient(options...)
	must(err, "client")
	return client
}

func franzTopic(s session, version *kversion.Versions, partitions int32, options ...kgo.Opt) string {
	client := s.franzClient(version, options...)
	defer client.Close()
	topic, forever := unique("franz"), "-1"
	answer, err := kadm.NewClient(client).CreateTopic(s, partitions, -1, map[string]*string{"retention.ms": &forever}, topic)
	must(err, "create topic")
	must(answer.Err, "create topic")
	return topic
}

func franzFill(s session, topic string, version *kversion.Versions, options ...kgo.Opt) {
	client := s.franzClient(version, options...)
	defer client.Close()
	made := []*kgo.Record{}
	for n := range count {
		made = append(made, &kgo.Record{
			Topic: topic, Key: []byte(fmt.Sprint("key-", n)), Value: []byte(value(n)),
			Timestamp: time.UnixMilli(1_600_000_000_000 + int64(n)*1000),
			Headers:   []kgo.RecordHeader{{Key: "h", Value: []byte("1")}, {Key: "h"}},
		})
	}
	must(client.ProduceSync(s, made...).FirstErr(), "produce")
}

func franzRead(s session, client *kgo.Client) []string {
	found := []string{}
	for len(found) < count {
		fetches := client.PollFetches(s)
		fetches.EachError(func(topic string, _ int32, err error) { must(err, "fetch of "+topic) })
		fetches.EachRecord(func(record *kgo.Record) {
			equal(len(record.Headers), 2, "headers")
			found = append(found, string(record.Value))
		})
	}
	return found
}

func franzCodecs(s session, version *kversion.Versions) {
	for _, codec := range []kgo.CompressionCodec{
		kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression(),
	} {
		topic := franzTopic(s, version, 1)
		franzFill(s, topic, version, kgo.ProducerBatchCompression(codec))
		client := s.franzClient(version, kgo.ConsumeTopics(topic))
		equal(franzRead(s, client), values(count), "values")
		client.Close()
	}
}

// franzGroup: two members that rebalance cooperatively, one leaves, then the group resumes.
func franzGroup(s session, version *kversion.Versions) {
	topic, group := franzTopic(s, version, 4), unique("group")
	member := func() *kgo.Client {
		return s.franzClient(version, kgo.ConsumeTopics(topic), kgo.ConsumerGroup(group),
			kgo.HeartbeatInterval(200*time.Millisecond), kgo.Balancers(kgo.CooperativeStickyBalancer(), kgo.RangeBalancer()))
	}
	one := member()
	franzFill(s, topic, version)
	equal(sorted(franzRead(s, one)), values(count), "values")
	must(one.CommitUncommittedOffsets(s), "commit")
	two := member()
	admin := kadm.NewClient(s.franzClient(version))
	defer admin.Close()
	for {
		groups, err := admin.DescribeGroups(s, group)
		must(err, "describe groups")
		sizes := []int{}
		for _, one := range groups[group].Members {
			if assigned, ok := one.Assigned.AsConsumer(); ok && len(assigned.Topics) > 0 {
				sizes = append(sizes, len(assigned.Topics[0].Partitions))
			}
		}
		if fmt.Sprint(sizes) == "[2 2]" {
			break
		}
		must(s.Err(), fmt.Sprint("assignments ", sizes))
		time.Sleep(20 * time.Millisecond)
	}
	one.Close()
	franzFill(s, topic, version)
	equal(sorted(franzRead(s, two)), values(count), "resumed")
	must(two.CommitUncommittedOffsets(s), "commit")
	two.Close()
	lags, err := admin.Lag(s, group)
	must(err, "lag")
	equal(lags[group].Lag.Total(), 0, "lag")
	deleted, err := admin.DeleteGroup(s, group)
	must(err, "delete group")
	must(deleted.Err, "delete group")
}

func franzAdmin(s session, version *kversion.Versions) {
	topic := franzTopic(s, version, 2)
	admin := kadm.NewClient(s.franzClient(version))
	defer admin.Close()
	grown, err := admin.UpdatePartitions(s, 3, topic)
	must(err, "update partitions")
	must(grown.Error(), "update partitions")
	eventually(s, func() any {
		details, err := admin.ListTopics(s, topic)
		must(err, "list topics")
		return len(details[topic].Partitions)
	}, 3, "partitions")
	size := "88888"
	changed, err := admin.AlterTopicConfigsState(s, []kadm.AlterConfig{{Name: "max.message.bytes", Value: &size}}, topic)
	must(err, "alter configs")
	must(changed[0].Err, "alter configs")
	eventually(s, func() any {
		configs, err := admin.DescribeTopicConfigs(s, topic)
		must(err, "describe configs")
		for _, one := range configs[0].Configs {
			if one.Key == "max.message.bytes" {
				return one.MaybeValue()
			}
		}
		return "no such config"
	}, size, "config")
	franzFill(s, topic, version)
	deleted, err := admin.DeleteRecords(s, kadm.OffsetsFromRecords(kgo.Record{Topic: topic, Partition: 1, Offset: 2, LeaderEpoch: -1}))
	must(err, "delete records")
	must(deleted.Error(), "delete records")
	starts, err := admin.ListStartOffsets(s, topic)
	must(err, "start offsets")
	start, _ := starts.Lookup(topic, 1)
	equal(start.Offset, 3, "start after deletion")
	dirs, err := admin.DescribeAllLogDirs(s, nil)
	must(err, "log dirs")
	dirs.Each(func(one kadm.DescribedLogDir) { must(one.Err, "log dirs") })
	brokers, err := admin.ListBrokers(s)
	must(err, "brokers")
	equal(len(brokers), s.brokerCount, "brokers")
	gone, err := admin.DeleteTopic(s, topic)
	must(err, "delete topic")
	must(gone.Err, "delete topic")
}

func franzOffsets(s session, version *kversion.Versions) {
	topic, group := franzTopic(s, version, 1), unique("group")
	franzFill(s, topic, version)
	admin := kadm.NewClient(s.franzClient(version))
	defer admin.Close()
	listed, err := admin.ListOffsetsAfterMilli(s, 1_600_000_030_001, topic)
	must(err, "offsets by time")
	found, _ := listed.Lookup(topic, 0)
	equal(found.Offset, 31, "offset by time")
	ends, err := admin.ListEndOffsets(s, topic)
	must(err, "end offsets")
	end, _ := ends.Lookup(topic, 0)
	equal(end.Offset, count, "end")
	must(admin.CommitAllOffsets(s, group, kadm.OffsetsFromRecords(kgo.Record{Topic: topic, Offset: 8, LeaderEpoch: -1})), "commit")
	fetched, err := admin.FetchOffsets(s, group)
	must(err, "fetch offsets")
	at, _ := fetched.Lookup(topic, 0)
	equal(at.At, 9, "committed")
	client := s.franzClient(version, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AfterMilli(1_600_000_050_000)))
	defer client.Close()
	fetches := client.PollFetches(s)
	must(fetches.Err(), "fetch")
	equal(fetches.Records()[0].Offset, 50, "reads from a time on")
}

// franzTransaction: what is aborted is never read, what is committed is.
func franzTransaction(s session, version *kversion.Versions) {
	topic := franzTopic(s, version, 1)
	producer := s.franzClient(version, kgo.TransactionalID(unique("transaction")), kgo.DefaultProduceTopic(topic))
	defer producer.Close()
	headers := []kgo.RecordHeader{{Key: "h", Value: []byte("1")}, {Key: "h"}}
	send := func(text string) {
		must(producer.ProduceSync(s, &kgo.Record{Value: []byte(text), Headers: headers}).FirstErr(), "produce")
	}
	must(producer.BeginTransaction(), "begin")
	send("undone")
	must(producer.EndTransaction(s, kgo.TryAbort), "abort")
	must(producer.BeginTransaction(), "begin again")
	for n := range count {
		send(value(n))
	}
	must(producer.EndTransaction(s, kgo.TryCommit), "commit")
	client := s.franzClient(version, kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	defer client.Close()
	equal(franzRead(s, client), values(count), "values")
	franzFencing(s, version)
}

// franzFencing: a newer producer of the same transactional id ends the older one's transaction.
func franzFencing(s session, version *kversion.Versions) {
	topic, id := franzTopic(s, version, 1), unique("transaction")
	begin := func(text string) *kgo.Client {
		producer := s.franzClient(version, kgo.TransactionalID(id), kgo.DefaultProduceTopic(topic))
		must(producer.BeginTransaction(), "begin")
		must(producer.ProduceSync(s, kgo.StringRecord(text)).FirstErr(), "produce")
		return producer
	}
	zombie := begin("zombie")
	defer zombie.Close()
	heir := begin("heir")
	defer heir.Close()
	must(heir.EndTransaction(s, kgo.TryCommit), "commit of the newer producer")
	equal(zombie.EndTransaction(s, kgo.TryCommit) != nil, true, "the older producer's commit fails")
	client := s.franzClient(version, kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	defer client.Close()
	fetches := client.PollFetches(s)
	must(fetches.Err(), "fetch")
	equal(string(fetches.Records()[0].Value), "heir", "the first committed record")
}

// franzTransactionAdmin: an administrator lists and describes an open transaction, and aborts it.
func franzTransactionAdmin(s session, version *kversion.Versions) {
	topic, id := franzTopic(s, version, 1), unique("transaction")
	producer := s.franzClient(version, kgo.TransactionalID(id), kgo.DefaultProduceTopic(topic))
	defer producer.Close()
	admin := kadm.NewClient(s.franzClient(version))
	defer admin.Close()
	must(producer.BeginTransaction(), "begin")
	must(producer.ProduceSync(s, kgo.StringRecord("undone")).FirstErr(), "produce")
	coordinators := admin.FindTxnCoordinators(s, id)
	must(coordinators[id].Err, "find coordinator")
	described, err := admin.DescribeTransactions(s, id)
	must(err, "describe transactions")
	open := described[id]
	must(open.Err, "describe transactions")
	equal([]any{open.State, open.Topics, open.Coordinator}, []any{"Ongoing", map[string]map[int32]struct{}{topic: {0: {}}}, coordinators[id].NodeID}, "described")
	listed, err := admin.ListTransactions(s, []int64{open.ProducerID}, []string{"Ongoing"})
	must(err, "list transactions")
	equal(listed[id].State, "Ongoing", "listed")
	if max, _ := version.LookupMaxKeyVersion(66); max >= 2 {
		listed, err = admin.ListTransactionsByTxPattern(s, nil, nil, id[:len(id)-1]+".")
		must(err, "list transactions by pattern")
		equal(len(listed), 1, "listed by pattern")
	}
	partition := kadm.TopicsSet{topic: {0: {}}}
	producers, err := admin.DescribeProducers(s, partition)
	must(err, "describe producers")
	equal(producers.SortedProducers()[0].CurrentTxnStartOffset, 0, "start of the transaction")
	markers, err := admin.WriteTxnMarkers(s, kadm.TxnMarkers{
		ProducerID: open.ProducerID, ProducerEpoch: open.ProducerEpoch, CoordinatorEpoch: -1, Topics: partition,
	})
	must(err, "write markers")
	for _, response := range markers.SortedPartitions() {
		must(response.Err, "write markers")
	}
	ends, err := admin.ListCommittedOffsets(s, topic)
	must(err, "committed offsets")
	end, _ := ends.Lookup(topic, 0)
	equal(end.Offset, 2, "last stable offset")
	must(producer.EndTransaction(s, kgo.TryAbort), "abort")
}

func franzAcls(s session, version *kversion.Versions) {
	client := s.franzClient(version)
	defer client.Close()
	admin, name := kadm.NewClient(client), unique("acls")
	acls := kadm.NewACLs().Topics(name).Allow("User:alice").AllowHosts("*").
		Operations(kadm.OpRead, kadm.OpWrite).ResourcePatternType(kadm.ACLPatternLiteral)
	created, err := admin.CreateACLs(s, acls)
	must(err, "create")
	for _, one := range created {
		must(one.Err, "create")
	}
	count := func() any {
		described, err := admin.DescribeACLs(s, acls)
		must(err, "describe")
		count := 0
		for _, one := range described {
			must(one.Err, "describe")
			count += len(one.Described)
		}
		return count
	}
	eventually(s, count, 2, "the new ACLs")
	deleted, err := admin.DeleteACLs(s, acls)
	must(err, "delete")
	for _, one := range deleted {
		must(one.Err, "delete")
		equal(len(one.Deleted), 1, "deleted by one filter")
	}
	eventually(s, count, 0, "the ACLs after the deletion")
}
