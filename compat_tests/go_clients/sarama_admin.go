package main

import (
	"fmt"

	"github.com/IBM/sarama"
)

// saramaAdmins are what administrators do; each version runs those whose requests it has.
func saramaAdmins(name string, version sarama.KafkaVersion) map[string]func(session) {
	scenarios := map[string]func(session){}
	add := func(what string, since sarama.KafkaVersion, scenario func(session, sarama.KafkaVersion)) {
		if version.IsAtLeast(since) {
			scenarios["sarama-"+name+"/"+what] = func(s session) { scenario(s, version) }
		}
	}
	add("quotas", sarama.V2_6_0_0, saramaQuotas)
	add("scram", sarama.V2_7_0_0, saramaScram)
	add("group-admin", sarama.V2_4_0_0, saramaGroupAdmin)
	add("group-transaction", sarama.V2_8_0_0, saramaGroupTransaction)
	add("features", sarama.V3_6_0_0, saramaFeatures)
	return scenarios
}

func (s session) saramaClusterAdmin(version sarama.KafkaVersion) sarama.ClusterAdmin {
	admin, err := sarama.NewClusterAdmin([]string{s.address}, saramaConfig(version))
	must(err, "admin")
	return admin
}

func saramaQuotas(s session, version sarama.KafkaVersion) {
	admin, name := s.saramaClusterAdmin(version), unique("client")
	defer admin.Close()
	entity := []sarama.QuotaEntityComponent{{EntityType: sarama.QuotaEntityClientID, MatchType: sarama.QuotaMatchExact, Name: name}}
	filter := []sarama.QuotaFilterComponent{{EntityType: sarama.QuotaEntityClientID, MatchType: sarama.QuotaMatchExact, Match: name}}
	shown := func() any {
		described, err := admin.DescribeClientQuotas(filter, true)
		must(err, "describe client quotas")
		if len(described) == 0 {
			return "none"
		}
		return described[0].Values
	}
	rate := sarama.ClientQuotasOp{Key: "producer_byte_rate", Value: 250_000}
	must(admin.AlterClientQuotas(entity, rate, true), "validate")
	equal(shown(), "none", "a validated quota")
	must(admin.AlterClientQuotas(entity, rate, false), "set")
	eventually(s, shown, map[string]float64{"producer_byte_rate": 250_000}, "quota")
	rate.Remove = true
	must(admin.AlterClientQuotas(entity, rate, false), "remove")
	eventually(s, shown, "none", "quota after its removal")
}

func saramaScram(s session, version sarama.KafkaVersion) {
	admin, user := s.saramaClusterAdmin(version), unique("user")
	defer admin.Close()
	shown := func() any {
		described, err := admin.DescribeUserScramCredentials([]string{user})
		must(err, "describe users")
		infos := []string{}
		for _, one := range described[0].CredentialInfos {
			infos = append(infos, fmt.Sprint(one.Mechanism, " ", one.Iterations))
		}
		return fmt.Sprint(infos, " ", described[0].ErrorCode == sarama.ErrNoError)
	}
	equal(shown(), "[] false", "a user that does not exist")
	created, err := admin.UpsertUserScramCredentials([]sarama.AlterUserScramCredentialsUpsert{{
		Name: user, Mechanism: sarama.SCRAM_MECHANISM_SHA_256, Iterations: 4096,
		Salt: []byte("my-salt"), Password: []byte("secret"),
	}})
	must(err, "create a user")
	equal(created[0].ErrorCode, sarama.ErrNoError, "create a user")
	eventually(s, shown, "[SCRAM-SHA-256 4096] true", "credentials")
	deleted, err := admin.DeleteUserScramCredentials([]sarama.AlterUserScramCredentialsDelete{
		{Name: user, Mechanism: sarama.SCRAM_MECHANISM_SHA_256},
	})
	must(err, "delete a user")
	equal(deleted[0].ErrorCode, sarama.ErrNoError, "delete a user")
	eventually(s, shown, "[] false", "credentials after their deletion")
}

// saramaGroupAdmin changes offsets from outside, and removes a static member.
func saramaGroupAdmin(s session, version sarama.KafkaVersion) {
	admin, topic, group := s.saramaClusterAdmin(version), s.saramaTopic(version, 2), unique("group")
	defer admin.Close()
	s.saramaFill(topic, saramaConfig(version))
	altered, err := admin.AlterConsumerGroupOffsets(group, map[string]map[int32]sarama.OffsetAndMetadata{
		topic: {0: {Offset: 5, LeaderEpoch: -1}, 1: {Offset: 6, LeaderEpoch: -1, Metadata: "note"}},
	}, nil)
	must(err, "alter offsets")
	equal(altered.Errors[topic][0], sarama.ErrNoError, "alter offsets")
	if version.IsAtLeast(sarama.V3_0_0_0) {
		fetched, err := admin.ListConsumerGroupOffsetsBatch(map[string]map[string][]int32{group: {topic: {0, 1}}})
		must(err, "list offsets of groups")
		equal(fetched[group].Blocks[topic][1].Offset, 6, "offset")
	}
	listed, err := admin.ListOffsets(map[string]map[int32]int64{
		topic: {0: sarama.OffsetNewest, 1: sarama.OffsetNewest},
	}, nil)
	must(err, "list offsets")
	equal(listed[topic][0].Offset+listed[topic][1].Offset, count, "ends")
	described, err := admin.DescribeConfigs([]*sarama.ConfigResource{
		{Type: sarama.TopicResource, Name: topic}, {Type: sarama.TopicResource, Name: unique("none")},
	}, sarama.DescribeConfigsOptions{})
	must(err, "describe configs")
	equal(len(described), 2, "described resources")
	controller, err := admin.Controller()
	must(err, "controller")
	coordinator, err := admin.Coordinator(group)
	must(err, "coordinator")
	equal(controller.ID() >= 0 && coordinator.ID() >= 0, true, "ids of brokers")
	replicas := [][]int32{}
	topics, err := admin.DescribeTopics([]string{topic})
	must(err, "describe topics")
	for _, partition := range topics[0].Partitions {
		replicas = append(replicas, partition.Replicas)
	}
	must(admin.AlterPartitionReassignments(topic, replicas), "reassign to where it is")
	config := saramaConfig(version)
	config.Consumer.Group.InstanceId = unique("instance")
	static := unique("group")
	member, leave := s.saramaMember(static, topic, config)
	s.saramaSize(member, 2)
	leave() // A static member does not leave the group.
	members := func() any {
		groups, err := admin.DescribeConsumerGroups([]string{static})
		must(err, "describe groups")
		return len(groups[0].Members)
	}
	equal(members(), 1, "members before the removal")
	removed, err := admin.RemoveMemberFromConsumerGroup(static, []string{config.Consumer.Group.InstanceId})
	must(err, "remove a member")
	equal([]any{removed.Err, removed.Members[0].Err}, []any{sarama.ErrNoError, sarama.ErrNoError}, "remove a member")
	equal(members(), 0, "members after the removal")
}

// saramaGroupTransaction commits the offsets of a group's members in transactions (KIP-447).
func saramaGroupTransaction(s session, version sarama.KafkaVersion) {
	topic, group, config := s.saramaTopic(version, 1), unique("group"), saramaConfig(version)
	s.saramaFill(topic, config)
	config.Producer.Idempotent = true
	config.Producer.Transaction.ID = unique("transaction")
	config.Net.MaxOpenRequests = 1
	producer, err := sarama.NewSyncProducer([]string{s.address}, config)
	must(err, "transactional producer")
	defer producer.Close()
	admin := s.saramaClusterAdmin(version)
	defer admin.Close()
	committed := func() any {
		offsets, err := admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {0}})
		must(err, "list group offsets")
		return offsets.GetBlock(topic, 0).Offset
	}
	outside := &sarama.ConsumerGroupMetadata{GroupID: group, GenerationID: -1}
	must(producer.BeginTxn(), "begin")
	must(producer.AddOffsetsToTxnWithGroupMetadata(map[string][]*sarama.PartitionOffsetMetadata{
		topic: {{Partition: 0, Offset: 3}},
	}, outside), "add offsets")
	must(producer.CommitTxn(), "commit")
	eventually(s, committed, 3, "offset of the first transaction")
	must(producer.BeginTxn(), "begin")
	message := &sarama.ConsumerMessage{Topic: topic, Partition: 0, Offset: 8}
	must(producer.AddMessageToTxnWithGroupMetadata(message, outside, nil), "add a message")
	must(producer.CommitTxn(), "commit")
	eventually(s, committed, 9, "offset of the second transaction")
	stranger := &sarama.ConsumerGroupMetadata{GroupID: group, GenerationID: 4, MemberID: "stranger"}
	must(producer.BeginTxn(), "begin")
	refused := producer.AddOffsetsToTxnWithGroupMetadata(map[string][]*sarama.PartitionOffsetMetadata{
		topic: {{Partition: 0, Offset: 50}},
	}, stranger)
	if refused == nil {
		refused = producer.CommitTxn() // The offsets are sent with the end of the transaction.
	}
	equal(refused != nil, true, "offsets of a stranger are refused")
	equal(committed(), 9, "offset after the refusal")
}

func saramaFeatures(s session, version sarama.KafkaVersion) {
	admin := s.saramaClusterAdmin(version)
	defer admin.Close()
	results, err := admin.UpdateFeatures([]sarama.FeatureUpdate{{Feature: "no.such.feature", MaxVersionLevel: 1}})
	refused := err != nil
	for _, one := range results {
		refused = refused || one.ErrorCode != sarama.ErrNoError
	}
	equal(refused, true, "an unknown feature is refused")
}
