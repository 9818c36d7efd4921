package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
)

// franzAdmins are what administrators do; each version runs those whose requests it has.
func franzAdmins(name string, version *kversion.Versions) map[string]func(session) {
	scenarios := map[string]func(session){
		"franz-" + name + "/configs":      func(s session) { franzConfigs(s, version) },
		"franz-" + name + "/topics":       func(s session) { franzTopics(s, version) },
		"franz-" + name + "/group-admin":  func(s session) { franzGroupAdmin(s, version) },
		"franz-" + name + "/list-offsets": func(s session) { franzListOffsets(s, version) },
	}
	for key, scenario := range map[int16]func(session, *kversion.Versions){
		48: franzQuotas, 50: franzScram, 57: franzFeatures, 77: franzShareGroups,
	} {
		if _, exists := version.LookupMaxKeyVersion(key); exists {
			what := map[int16]string{48: "quotas", 50: "scram", 57: "features", 77: "share-groups"}[key]
			scenarios["franz-"+name+"/"+what] = func(s session) { scenario(s, version) }
		}
	}
	if max, _ := version.LookupMaxKeyVersion(68); max >= 1 { // ConsumerGroupHeartbeat of Kafka 4
		scenarios["franz-"+name+"/consumer-groups"] = func(s session) { franzConsumerGroups(s, version) }
	}
	return scenarios
}

func (s session) franzAdminClient(version *kversion.Versions) *kadm.Client {
	return kadm.NewClient(s.franzClient(version))
}

func franzConfigs(s session, version *kversion.Versions) {
	topic, admin := franzTopic(s, version, 1), s.franzAdminClient(version)
	defer admin.Close()
	size, wrong := "77777", "many"
	config := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &size}}
	invalid := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &wrong}}
	shown := func() any {
		configs, err := admin.DescribeTopicConfigs(s, topic)
		must(err, "describe configs")
		for _, one := range configs[0].Configs {
			if one.Key == "max.message.bytes" {
				return one.MaybeValue()
			}
		}
		return "no such config"
	}
	eventually(s, func() any { return shown() != "no such config" }, true, "configs of the new topic")
	before := shown()
	checked, err := admin.ValidateAlterTopicConfigsState(s, config, topic)
	must(err, "validate the whole state")
	must(checked[0].Err, "validate the whole state")
	brokers, err := admin.ListBrokers(s)
	must(err, "brokers")
	broker := brokers[0].NodeID
	checked, err = admin.ValidateAlterBrokerConfigsState(s, []kadm.AlterConfig{{Name: "log.cleaner.threads", Value: kadm.StringPtr("1")}}, broker)
	must(err, "validate a broker's whole state")
	must(checked[0].Err, "validate a broker's whole state")
	if _, incremental := version.LookupMaxKeyVersion(44); incremental {
		checked, err = admin.ValidateAlterTopicConfigs(s, config, topic)
		must(err, "validate")
		must(checked[0].Err, "validate")
		checked, err = admin.ValidateAlterTopicConfigs(s, invalid, topic)
		must(err, "validate what is invalid")
		equal(checked[0].Err != nil, true, "an invalid value is refused")
		equal(shown(), before, "a validated value changes nothing")
		changed, err := admin.AlterTopicConfigs(s, config, topic)
		must(err, "alter")
		must(changed[0].Err, "alter")
		eventually(s, shown, size, "config")
		franzBrokerConfigs(s, admin, broker)
	}
	if _, lists := version.LookupMaxKeyVersion(74); lists {
		listed, err := admin.ListConfigResources(s)
		must(err, "list config resources")
		must(listed.Err, "list config resources")
		topics := listed.FilterTypes(kadm.ConfigResourceTopic)
		if topics != nil { // Versions before 1 list only client metrics.
			equal(strings.Contains(fmt.Sprint(topics), topic), true, "the topic is listed")
		}
	}
}

// franzBrokerConfigs changes a setting of a broker and takes it back.
func franzBrokerConfigs(s session, admin *kadm.Client, broker int32) {
	name, value := "log.cleaner.backoff.ms", "15001"
	shown := func() any {
		configs, err := admin.DescribeBrokerConfigs(s, broker)
		must(err, "describe a broker's configs")
		for _, one := range configs[0].Configs {
			if one.Key == name {
				return one.MaybeValue()
			}
		}
		return "no such config"
	}
	before := fmt.Sprint(shown())
	set := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: &value}}
	checked, err := admin.ValidateAlterBrokerConfigs(s, set, broker)
	must(err, "validate a broker's config")
	must(checked[0].Err, "validate a broker's config")
	changed, err := admin.AlterBrokerConfigs(s, set, broker)
	must(err, "alter a broker's config")
	must(changed[0].Err, "alter a broker's config")
	eventually(s, shown, value, "a broker's config")
	undone, err := admin.AlterBrokerConfigs(s, []kadm.AlterConfig{{Op: kadm.DeleteConfig, Name: name}}, broker)
	must(err, "delete a broker's config")
	must(undone[0].Err, "delete a broker's config")
	eventually(s, shown, before, "a broker's config after its deletion")
}

func franzTopics(s session, version *kversion.Versions) {
	admin := s.franzAdminClient(version)
	defer admin.Close()
	one, two := unique("franz"), unique("franz")
	checked, err := admin.ValidateCreateTopics(s, 1, -1, nil, one, two)
	must(err, "validate topics")
	must(checked.Error(), "validate topics")
	details, err := admin.ListTopicsWithInternal(s)
	must(err, "list topics")
	equal(details.Has(one), false, "a validated topic does not exist")
	created, err := admin.CreateTopics(s, 1, -1, nil, one, two)
	must(err, "create topics")
	must(created.Error(), "create topics")
	partitions := func() any {
		metadata, err := admin.Metadata(s, one, two)
		must(err, "metadata")
		return []int{len(metadata.Topics[one].Partitions), len(metadata.Topics[two].Partitions)}
	}
	eventually(s, partitions, []int{1, 1}, "partitions")
	grown, err := admin.ValidateCreatePartitions(s, 1, one)
	must(err, "validate partitions to add")
	must(grown.Error(), "validate partitions to add")
	grown, err = admin.ValidateUpdatePartitions(s, 3, one)
	must(err, "validate a number of partitions")
	must(grown.Error(), "validate a number of partitions")
	grown, err = admin.CreatePartitions(s, 2, one)
	must(err, "create partitions")
	must(grown.Error(), "create partitions")
	eventually(s, partitions, []int{3, 1}, "partitions after growth")
	topics := kadm.TopicsSet{}
	topics.Add(one, 0)
	if _, elects := version.LookupMaxKeyVersion(43); elects {
		elected, err := admin.ElectLeaders(s, kadm.ElectPreferredReplica, topics)
		must(err, "elect leaders")
		result := elected[one][0]
		equal(result.Err == nil || strings.Contains(result.Err.Error(), "ELECTION_NOT_NEEDED"), true, fmt.Sprint("election: ", result.Err))
	}
	franzReplicas(s, admin, version, one)
	versions, err := admin.ApiVersions(s)
	must(err, "api versions")
	equal(len(versions), s.brokerCount, "brokers with API versions")
	known, err := admin.BrokerMetadata(s)
	must(err, "broker metadata")
	equal(len(known.Brokers), s.brokerCount, "brokers")
	gone, err := admin.DeleteTopics(s, one, two)
	must(err, "delete topics")
	must(gone.Error(), "delete topics")
}

// franzReplicas reassigns a partition to where it is, and names the directory in which it is.
func franzReplicas(s session, admin *kadm.Client, version *kversion.Versions, topic string) {
	metadata, err := admin.Metadata(s, topic)
	must(err, "metadata")
	partition := metadata.Topics[topic].Partitions[0]
	topics := kadm.TopicsSet{}
	topics.Add(topic, 0)
	if _, reassigns := version.LookupMaxKeyVersion(45); reassigns {
		plan := kadm.AlterPartitionAssignmentsReq{}
		plan.Assign(topic, 0, partition.Replicas)
		assigned, err := admin.AlterPartitionAssignments(s, plan)
		must(err, "reassign")
		must(assigned.Error(), "reassign")
		_, err = admin.ListPartitionReassignments(s, topics)
		must(err, "list reassignments")
	}
	described, err := admin.DescribeBrokerLogDirs(s, partition.Leader, topics)
	must(err, "describe log dirs of a broker")
	for folder := range described {
		move := kadm.AlterReplicaLogDirsReq{}
		move.Add(folder, topics)
		moved, err := admin.AlterBrokerReplicaLogDirs(s, partition.Leader, move)
		must(err, "move on a broker")
		moved.Each(func(one kadm.AlterReplicaLogDirsResponse) { must(one.Err, "move on a broker") })
		break
	}
	move := kadm.AlterReplicaLogDirsReq{}
	move.Add("/no/such/directory", topics)
	refused, err := admin.AlterAllReplicaLogDirs(s, move)
	must(err, "move on all brokers")
	refused.Each(func(one kadm.AlterReplicaLogDirsResponse) {
		equal(strings.Contains(fmt.Sprint(one.Err), "LOG_DIR_NOT_FOUND"), true, fmt.Sprint("unknown directory: ", one.Err))
	})
}

func franzGroupAdmin(s session, version *kversion.Versions) {
	topic, group, admin := franzTopic(s, version, 2), unique("group"), s.franzAdminClient(version)
	defer admin.Close()
	franzFill(s, topic, version)
	offsets := kadm.Offsets{}
	offsets.Add(kadm.Offset{Topic: topic, Partition: 0, At: 3, LeaderEpoch: -1, Metadata: "note"})
	offsets.Add(kadm.Offset{Topic: topic, Partition: 1, At: 4, LeaderEpoch: -1})
	committed, err := admin.CommitOffsets(s, group, offsets)
	must(err, "commit")
	must(committed.Error(), "commit")
	fetched, err := admin.FetchOffsetsForTopics(s, group, topic)
	must(err, "fetch offsets for topics")
	at, _ := fetched.Lookup(topic, 0)
	equal([]any{at.At, at.Metadata}, []any{3, "note"}, "committed")
	many := admin.FetchManyOffsets(s, group, unique("other"))
	must(many.Error(), "fetch offsets of many")
	equal(len(many[group].Fetched[topic]), 2, "offsets of one of many")
	coordinators := admin.FindGroupCoordinators(s, group)
	must(coordinators.Error(), "coordinators")
	listed, err := admin.ListGroups(s)
	must(err, "list groups")
	equal(listed[group].ProtocolType, "", "protocol type of a group without members")
	partitions := kadm.TopicsSet{}
	partitions.Add(topic, 0)
	if _, deletes := version.LookupMaxKeyVersion(47); deletes {
		deleted, err := admin.DeleteOffsets(s, group, partitions)
		must(err, "delete offsets")
		must(deleted.Error(), "delete offsets")
		left, err := admin.FetchOffsets(s, group)
		must(err, "fetch offsets")
		equal(len(left[topic]), 1, "offsets after the deletion of one")
	}
	if _, exists := version.LookupMaxKeyVersion(68); exists {
		byType, err := admin.ListGroupsByType(s, []string{"classic"}, "Empty")
		must(err, "list groups by type")
		_, has := byType[group]
		equal(has, true, "the group is listed as classic")
		byType, err = admin.ListGroupsByType(s, []string{"share"})
		must(err, "list share groups")
		_, has = byType[group]
		equal(has, false, "the group is not a share group")
	}
	gone, err := admin.DeleteGroups(s, group)
	must(err, "delete groups")
	must(gone[group].Err, "delete groups")
	franzStaticMember(s, admin, version, topic)
}

// franzStaticMember: an administrator removes a member by its instance id.
func franzStaticMember(s session, admin *kadm.Client, version *kversion.Versions, topic string) {
	if max, _ := version.LookupMaxKeyVersion(13); max < 3 { // LeaveGroup with several members
		return
	}
	group, instance := unique("group"), unique("instance")
	member := s.franzClient(version, kgo.ConsumeTopics(topic), kgo.ConsumerGroup(group), kgo.InstanceID(instance))
	equal(sorted(franzRead(s, member)), values(count), "values")
	member.CloseAllowingRebalance() // A static member does not leave.
	described, err := admin.DescribeGroups(s, group)
	must(err, "describe groups")
	equal(len(described[group].Members), 1, "members before the removal")
	removed, err := admin.LeaveGroup(s, kadm.LeaveGroup(group).InstanceIDs(instance).Reason("gone"))
	must(err, "leave group")
	must(removed.Error(), "leave group")
	described, err = admin.DescribeGroups(s, group)
	must(err, "describe groups")
	equal(len(described[group].Members), 0, "members after the removal")
}

func franzListOffsets(s session, version *kversion.Versions) {
	topic, admin := franzTopic(s, version, 1), s.franzAdminClient(version)
	defer admin.Close()
	franzFill(s, topic, version)
	max, _ := version.LookupMaxKeyVersion(2)
	expect := func(listed kadm.ListedOffsets, err error, offset int64, what string) {
		must(err, what)
		found, _ := listed.Lookup(topic, 0)
		must(found.Err, what)
		equal(found.Offset, offset, what)
	}
	if max >= 7 {
		listed, err := admin.ListMaxTimestampOffsets(s, topic)
		expect(listed, err, count-1, "offset of the largest timestamp")
	}
	if max >= 8 {
		listed, err := admin.ListLocalLogStartOffsets(s, topic)
		expect(listed, err, 0, "local log start")
	}
	if max >= 9 {
		listed, err := admin.ListLatestRemoteOffsets(s, topic)
		expect(listed, err, -1, "latest remote offset without tiered storage")
	}
	request := kadm.OffsetForLeaderEpochRequest{}
	request.Add(topic, 0, 0)
	epochs, err := admin.OffsetForLeaderEpoch(s, request)
	must(err, "offset for leader epoch")
	must(epochs[topic][0].Err, "offset for leader epoch")
	equal(epochs[topic][0].EndOffset, count, "end of the first epoch")
}

func franzQuotas(s session, version *kversion.Versions) {
	admin, client := s.franzAdminClient(version), unique("client")
	defer admin.Close()
	entity := kadm.ClientQuotaEntity{{Type: "client-id", Name: &client}}
	set := []kadm.AlterClientQuotaEntry{{Entity: entity, Ops: []kadm.AlterClientQuotaOp{{Key: "producer_byte_rate", Value: 1e6}}}}
	exact := []kadm.DescribeClientQuotaComponent{{Type: "client-id", MatchName: &client}}
	shown := func() any {
		described, err := admin.DescribeClientQuotas(s, true, exact)
		must(err, "describe quotas")
		if len(described) == 0 {
			return "none"
		}
		return fmt.Sprint(described[0].Values[0].Key, "=", described[0].Values[0].Value)
	}
	checked, err := admin.ValidateAlterClientQuotas(s, set)
	must(err, "validate quotas")
	must(checked[0].Err, "validate quotas")
	equal(shown(), "none", "a validated quota")
	changed, err := admin.AlterClientQuotas(s, set)
	must(err, "alter quotas")
	must(changed[0].Err, "alter quotas")
	eventually(s, shown, "producer_byte_rate=1e+06", "quota")
	set[0].Ops[0] = kadm.AlterClientQuotaOp{Key: "producer_byte_rate", Remove: true}
	changed, err = admin.AlterClientQuotas(s, set)
	must(err, "remove a quota")
	must(changed[0].Err, "remove a quota")
	eventually(s, shown, "none", "quota after its removal")
	set[0].Ops[0] = kadm.AlterClientQuotaOp{Key: "no_such_quota", Value: 1}
	changed, err = admin.AlterClientQuotas(s, set)
	must(err, "alter an unknown quota")
	equal(changed[0].Err != nil, true, "an unknown quota is refused")
}

func franzScram(s session, version *kversion.Versions) {
	admin, user := s.franzAdminClient(version), unique("user")
	defer admin.Close()
	shown := func() any {
		described, err := admin.DescribeUserSCRAMs(s, user)
		must(err, "describe users")
		infos := []string{}
		for _, one := range described[user].CredInfos {
			infos = append(infos, one.String())
		}
		return fmt.Sprint(sorted(infos), described[user].Err != nil)
	}
	equal(shown(), "[] true", "a user that does not exist")
	mechanisms := []kadm.ScramMechanism{kadm.ScramSha256, kadm.ScramSha512}
	for _, mechanism := range mechanisms {
		changed, err := admin.AlterUserSCRAMs(s, nil, []kadm.UpsertSCRAM{
			{User: user, Mechanism: mechanism, Iterations: 4096 * int32(mechanism), Password: "secret"},
		})
		must(err, "create a credential")
		must(changed[user].Err, "create a credential")
	}
	eventually(s, shown, "[SCRAM-SHA-256=iterations=4096 SCRAM-SHA-512=iterations=8192] false", "credentials")
	for _, mechanism := range mechanisms {
		changed, err := admin.AlterUserSCRAMs(s, []kadm.DeleteSCRAM{{User: user, Mechanism: mechanism}}, nil)
		must(err, "delete a credential")
		must(changed[user].Err, "delete a credential")
	}
	eventually(s, shown, "[] true", "credentials after their deletion")
}

func franzFeatures(s session, version *kversion.Versions) {
	admin := s.franzAdminClient(version)
	defer admin.Close()
	unknown := kadm.FeatureUpdate{Feature: "no.such.feature", MaxVersionLevel: 1, UpgradeType: 1}
	updated, err := admin.UpdateFeatures(s, true, unknown)
	refused := err != nil
	for _, one := range updated {
		refused = refused || one.Err != nil
	}
	equal(refused, true, "an unknown feature is refused")
}

func franzConsumerGroups(s session, version *kversion.Versions) {
	topic, group, admin := franzTopic(s, version, 2), unique("group"), s.franzAdminClient(version)
	defer admin.Close()
	franzFill(s, topic, version)
	member := s.franzClient(version, kgo.ServerSideBalancer(), kgo.ConsumeTopics(topic), kgo.ConsumerGroup(group))
	equal(sorted(franzRead(s, member)), values(count), "values")
	must(member.CommitUncommittedOffsets(s), "commit")
	described, err := admin.DescribeConsumerGroups(s, group)
	must(err, "describe consumer groups")
	must(described[group].Err, "describe consumer groups")
	equal([]any{described[group].State, len(described[group].Members)}, []any{"Stable", 1}, "group")
	member.Close()
	if max, _ := version.LookupMaxKeyVersion(8); max >= 10 {
		metadata, err := admin.Metadata(s, topic)
		must(err, "metadata")
		id := metadata.Topics[topic].ID
		fetched, err := admin.FetchOffsetsByID(s, group)
		must(err, "fetch offsets by id")
		total := int64(0)
		for _, one := range fetched[id] {
			total += one.At
		}
		equal(total, count, "offsets by id")
		offsets := kadm.OffsetsByID{id: {0: {TopicID: id, At: 1, LeaderEpoch: -1}}}
		committed, err := admin.CommitOffsetsByID(s, group, offsets)
		must(err, "commit by id")
		must(committed[id][0].Err, "commit by id")
		must(admin.CommitAllOffsetsByID(s, group, offsets), "commit all by id")
		again, err := admin.FetchOffsets(s, group)
		must(err, "fetch offsets")
		at, _ := again.Lookup(topic, 0)
		equal(at.At, 1, "committed by id")
	}
}

func franzShareGroups(s session, version *kversion.Versions) {
	topic, group, admin := franzTopic(s, version, 1), unique("group"), s.franzAdminClient(version)
	defer admin.Close()
	franzFill(s, topic, version)
	offsets := kadm.Offsets{}
	offsets.Add(kadm.Offset{Topic: topic, Partition: 0, At: 5})
	member := s.franzClient(version, kgo.ConsumeTopics(topic), kgo.ShareGroup(group))
	for state := ""; state != "Stable"; {
		polling, cancel := context.WithTimeout(s, 100*time.Millisecond)
		member.PollFetches(polling)
		cancel()
		described, err := admin.DescribeShareGroups(s, group)
		must(err, "describe share groups")
		state = described[group].GroupState
		must(s.Err(), "state "+state)
	}
	refused, err := admin.AlterShareGroupOffsets(s, group, offsets)
	equal(err != nil || refused.Error() != nil, true, "offsets of a group with members cannot be changed")
	member.Close()
	metadata, err := admin.Metadata(s, topic)
	must(err, "metadata")
	id := metadata.Topics[topic].ID
	partition := fmt.Sprint(group, ":", base64.RawURLEncoding.EncodeToString(id[:]), ":0")
	must(admin.FindShareCoordinators(s, partition)[partition].Err, "find share coordinator")
	eventually(s, func() any {
		altered, err := admin.AlterShareGroupOffsets(s, group, offsets)
		return fmt.Sprint(err, altered.Error())
	}, "<nil> <nil>", "alter share offsets")
	eventually(s, func() any {
		described, err := admin.DescribeShareGroupOffsets(s, group)
		must(err, "describe share offsets")
		found, _ := described[group].Offsets.Lookup(topic, 0)
		return found.StartOffset
	}, 5, "start of the share group")
	deleted, err := admin.DeleteShareGroupOffsets(s, group, topic)
	must(err, "delete share offsets")
	must(deleted.Error(), "delete share offsets")
}
