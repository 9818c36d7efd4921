package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

func kafkaGoAdmins() map[string]func(session) {
	return map[string]func(session){
		"kafka-go/requests": kafkaGoRequests,
		"kafka-go/member":   kafkaGoMember,
		"kafka-go/quotas":   kafkaGoQuotas,
		"kafka-go/scram":    kafkaGoScram,
	}
}

// kafkaGoRequests sends single Produce and Fetch requests, and reassigns a partition to where it is.
func kafkaGoRequests(s session) {
	client, topic := s.kafkaGoClient(), s.kafkaGoTopic(1)
	records := func() kafka.RecordReader {
		return kafka.NewRecordReader(
			kafka.Record{Time: time.UnixMilli(1_600_000_000_000), Value: kafka.NewBytes([]byte("one"))},
			kafka.Record{Time: time.UnixMilli(1_600_000_000_001), Value: kafka.NewBytes([]byte("two"))},
		)
	}
	for turn, codec := range kafkaGoCodecs {
		produced, err := client.Produce(s, &kafka.ProduceRequest{
			Topic: topic, RequiredAcks: kafka.RequireAll, Records: records(), Compression: codec,
		})
		must(err, "produce")
		must(produced.Error, "produce")
		equal(produced.BaseOffset, 4*turn, "base offset")
		raw, err := client.RawProduce(s, &kafka.RawProduceRequest{
			Topic: topic, RequiredAcks: kafka.RequireOne, RawRecords: kafkaGoRaw(records()),
		})
		must(err, "produce raw records")
		must(raw.Error, "produce raw records")
	}
	fetched, err := client.Fetch(s, &kafka.FetchRequest{Topic: topic, Offset: 3, MaxBytes: 1e6})
	must(err, "fetch")
	must(fetched.Error, "fetch")
	equal([]int64{fetched.HighWatermark, fetched.LogStartOffset}, []int64{20, 0}, "high watermark and start")
	// The whole batch of the offset is sent; clients skip what is before it.
	values := map[int64]string{}
	for {
		record, err := fetched.Records.ReadRecord()
		if errors.Is(err, io.EOF) {
			break
		}
		must(err, "read a record")
		content, err := io.ReadAll(record.Value)
		must(err, "read a value")
		values[record.Offset] = string(content)
	}
	equal([]string{values[3], values[19]}, []string{"two", "two"}, "values")
	metadata, err := client.Metadata(s, &kafka.MetadataRequest{Topics: []string{topic}})
	must(err, "metadata")
	brokers := []int{}
	for _, replica := range metadata.Topics[0].Partitions[0].Replicas {
		brokers = append(brokers, replica.ID)
	}
	assigned, err := client.AlterPartitionReassignments(s, &kafka.AlterPartitionReassignmentsRequest{
		Topic: topic, Timeout: 20 * time.Second,
		Assignments: []kafka.AlterPartitionReassignmentsRequestAssignment{{PartitionID: 0, BrokerIDs: brokers}},
	})
	must(err, "reassign")
	must(assigned.Error, "reassign")
	must(assigned.PartitionResults[0].Error, "reassign the partition")
}

// kafkaGoRaw encodes records as the client would; Produce requests then take them as they are.
func kafkaGoRaw(records kafka.RecordReader) protocol.RawRecordSet {
	encoded := bytes.Buffer{}
	_, err := (&protocol.RecordSet{Version: 2, Records: records}).WriteTo(&encoded)
	must(err, "encode")
	return protocol.RawRecordSet{Reader: &encoded}
}

// kafkaGoMember is a member of a group, request by request.
func kafkaGoMember(s session) {
	client, topic, group := s.kafkaGoClient(), s.kafkaGoTopic(2), unique("group")
	eventually(s, func() any {
		coordinator, err := client.FindCoordinator(s, &kafka.FindCoordinatorRequest{
			Key: group, KeyType: kafka.CoordinatorKeyTypeConsumer,
		})
		must(err, "find coordinator")
		return coordinator.Error
	}, nil, "coordinator")
	var joined *kafka.JoinGroupResponse
	join := kafka.JoinGroupRequest{
		GroupID: group, SessionTimeout: 10 * time.Second, RebalanceTimeout: 10 * time.Second,
		ProtocolType: "consumer",
		Protocols:    []kafka.GroupProtocol{{Name: "range", Metadata: kafka.GroupProtocolSubscription{Topics: []string{topic}}}},
	}
	eventually(s, func() any { // The first answer may be an id to join with, or that the group loads.
		var err error
		joined, err = client.JoinGroup(s, &join)
		must(err, "join group")
		join.MemberID = joined.MemberID
		return joined.Error
	}, nil, "join")
	equal([]any{joined.GenerationID, joined.LeaderID}, []any{1, joined.MemberID}, "generation and leader")
	synced, err := client.SyncGroup(s, &kafka.SyncGroupRequest{
		GroupID: group, GenerationID: joined.GenerationID, MemberID: joined.MemberID,
		ProtocolType: "consumer", ProtocolName: "range",
		Assignments: []kafka.SyncGroupRequestAssignment{{
			MemberID:   joined.MemberID,
			Assignment: kafka.GroupProtocolAssignment{AssignedPartitions: map[string][]int{topic: {0, 1}}},
		}},
	})
	must(err, "sync group")
	must(synced.Error, "sync group")
	equal(synced.Assignment.AssignedPartitions[topic], []int{0, 1}, "assignment")
	beat, err := client.Heartbeat(s, &kafka.HeartbeatRequest{
		GroupID: group, GenerationID: int32(joined.GenerationID), MemberID: joined.MemberID,
	})
	must(err, "heartbeat")
	must(beat.Error, "heartbeat") // The client reads the throttle time in place of the error.
	commit := func(generation int) error {
		answer, err := client.OffsetCommit(s, &kafka.OffsetCommitRequest{
			GroupID: group, GenerationID: generation, MemberID: joined.MemberID,
			Topics: map[string][]kafka.OffsetCommit{topic: {{Partition: 0, Offset: 7, Metadata: "note"}}},
		})
		must(err, "offset commit")
		return answer.Topics[topic][0].Error
	}
	must(commit(joined.GenerationID), "offset commit")
	equal(commit(joined.GenerationID+1), kafka.IllegalGeneration, "a commit of another generation")
	left, err := client.LeaveGroup(s, &kafka.LeaveGroupRequest{
		GroupID: group, Members: []kafka.LeaveGroupRequestMember{{ID: joined.MemberID}},
	})
	must(err, "leave group")
	must(left.Error, "leave group")
	equal(commit(joined.GenerationID), kafka.UnknownMemberId, "a commit of a member that has left")
}

func kafkaGoQuotas(s session) {
	client, name := s.kafkaGoClient(), unique("client")
	alter := func(op kafka.AlterClientQuotaOps) error {
		answer, err := client.AlterClientQuotas(s, &kafka.AlterClientQuotasRequest{
			Entries: []kafka.AlterClientQuotaEntry{{
				Entities: []kafka.AlterClientQuotaEntity{{EntityType: "client-id", EntityName: name}},
				Ops:      []kafka.AlterClientQuotaOps{op},
			}},
		})
		must(err, "alter client quotas")
		return answer.Entries[0].Error
	}
	shown := func() any {
		answer, err := client.DescribeClientQuotas(s, &kafka.DescribeClientQuotasRequest{
			Components: []kafka.DescribeClientQuotasRequestComponent{{EntityType: "client-id", Match: name}},
		})
		must(err, "describe client quotas")
		must(answer.Error, "describe client quotas")
		if len(answer.Entries) == 0 {
			return "none"
		}
		return fmt.Sprint(answer.Entries[0].Values[0].Key, "=", answer.Entries[0].Values[0].Value)
	}
	must(alter(kafka.AlterClientQuotaOps{Key: "consumer_byte_rate", Value: 5e5}), "set")
	eventually(s, shown, "consumer_byte_rate=500000", "quota")
	must(alter(kafka.AlterClientQuotaOps{Key: "consumer_byte_rate", Remove: true}), "remove")
	eventually(s, shown, "none", "quota after its removal")
	equal(alter(kafka.AlterClientQuotaOps{Key: "no_such_quota", Value: 1}) != nil, true, "an unknown quota is refused")
}

func kafkaGoScram(s session) {
	client, user := s.kafkaGoClient(), unique("user")
	shown := func() any {
		answer, err := client.DescribeUserScramCredentials(s, &kafka.DescribeUserScramCredentialsRequest{
			Users: []kafka.UserScramCredentialsUser{{Name: user}},
		})
		must(err, "describe users")
		infos := []string{}
		for _, one := range answer.Results[0].CredentialInfos {
			infos = append(infos, fmt.Sprint(one.Mechanism, " ", one.Iterations))
		}
		return infos
	}
	created, err := client.AlterUserScramCredentials(s, &kafka.AlterUserScramCredentialsRequest{
		Upsertions: []kafka.UserScramCredentialsUpsertion{{
			Name: user, Mechanism: kafka.ScramMechanismSha512, Iterations: 15000,
			Salt: []byte("my-salt"), SaltedPassword: []byte("my-salted-password"),
		}},
	})
	must(err, "create a user")
	must(created.Results[0].Error, "create a user")
	eventually(s, shown, []string{"2 15000"}, "credentials")
	deleted, err := client.AlterUserScramCredentials(s, &kafka.AlterUserScramCredentialsRequest{
		Deletions: []kafka.UserScramCredentialsDeletion{{Name: user, Mechanism: kafka.ScramMechanismSha512}},
	})
	must(err, "delete a user")
	must(deleted.Results[0].Error, "delete a user")
	eventually(s, shown, []string{}, "credentials after their deletion")
}
