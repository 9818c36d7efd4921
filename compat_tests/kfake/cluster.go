// Package kfake stands in for franz-go's simulated cluster: the brokers at KFAKE_SEEDS serve the
// tests. A test gets its topics anew; settings of brokers are those with which they were started.
package kfake

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const patience = 30 * time.Second

// Opt adds topics to those that a test needs.
type Opt func(topics map[string]int32)

// NumBrokers has no effect.
func NumBrokers(int) Opt { return func(map[string]int32) {} }

// BrokerConfigs has no effect: the runner starts brokers with the settings that a test needs.
func BrokerConfigs(map[string]string) Opt { return func(map[string]int32) {} }

// SeedTopics creates topics before the test begins.
func SeedTopics(partitions int32, names ...string) Opt {
	return func(topics map[string]int32) {
		for _, name := range names {
			topics[name] = partitions
		}
	}
}

// Cluster is a connection to the brokers.
type Cluster struct {
	client *kgo.Client
	admin  *kadm.Client
}

// NewCluster connects to the brokers, and creates the topics after removing former ones.
func NewCluster(options ...Opt) (*Cluster, error) {
	topics := map[string]int32{}
	for _, option := range options {
		option(topics)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(seeds()...))
	if err != nil {
		return nil, err
	}
	cluster := &Cluster{client, kadm.NewClient(client)}
	bounded, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for name, partitions := range topics {
		if err := cluster.create(bounded, name, partitions); err != nil {
			cluster.Close()
			return nil, fmt.Errorf("cannot create topic %s: %w", name, err)
		}
	}
	return cluster, nil
}

func seeds() []string { return strings.Split(os.Getenv("KFAKE_SEEDS"), ",") }

func (c *Cluster) create(bounded context.Context, name string, partitions int32) error {
	if _, err := c.admin.DeleteTopics(bounded, name); err != nil {
		return err
	}
	for {
		created, err := c.admin.CreateTopic(bounded, partitions, 1, nil, name)
		if err == nil {
			err = created.Err
		}
		if !errors.Is(err, kerr.TopicAlreadyExists) { // Until the deletion is complete.
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Close ends the connection; the brokers go on.
func (c *Cluster) Close() { c.client.Close() }

// ListenAddrs returns the addresses of the brokers.
func (c *Cluster) ListenAddrs() []string { return seeds() }

// ControlKey panics: the answers of real brokers cannot be replaced.
func (c *Cluster) ControlKey(int16, func(kmsg.Request) (kmsg.Response, error, bool)) {
	panic("needs a simulated broker")
}

// Fault describes answers in place of the brokers'.
type Fault struct {
	Keys []kmsg.Key
	Err  error
	When func(kmsg.Request) bool
}

// Fault panics, as ControlKey does.
func (c *Cluster) Fault(Fault) { panic("needs a simulated broker") }

// GroupMember is a member of a group, with its partitions by topic.
type GroupMember struct {
	MemberID         string
	InstanceID       *string
	ClientID         string
	ClientHost       string
	SubscribedTopics []string
	Assignment       map[string][]int32
}

// NumAssigned returns the number of the member's partitions.
func (m *GroupMember) NumAssigned() int {
	count := 0
	for _, partitions := range m.Assignment {
		count += len(partitions)
	}
	return count
}

// GroupCommit is an offset that a group has committed.
type GroupCommit struct {
	Offset      int64
	LeaderEpoch int32
	Metadata    string
	At          time.Time
}

// GroupInfo is a group as its coordinator describes it.
type GroupInfo struct {
	Group   string
	State   string
	Epoch   int32
	Members []GroupMember
	Commits map[string]map[int32]GroupCommit
}

// NumAssigned returns the number of partitions that the members have.
func (g *GroupInfo) NumAssigned() int {
	count := 0
	for n := range g.Members {
		count += g.Members[n].NumAssigned()
	}
	return count
}

// GroupInfo describes a group; nil if there is none.
func (c *Cluster) GroupInfo(group string) *GroupInfo {
	bounded, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	info, err := c.describe(bounded, group)
	if err != nil {
		return nil
	}
	return info
}

// WaitGroupStable waits until a group is stable and has this number of members.
func (c *Cluster) WaitGroupStable(waiting context.Context, group string, members int) (*GroupInfo, error) {
	for {
		info, err := c.describe(waiting, group)
		if err == nil && info.State == "Stable" && len(info.Members) == members {
			return info, nil
		}
		select {
		case <-waiting.Done():
			return nil, waiting.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// describe asks for a group of the consumer protocol first, then for one of the classic protocol.
func (c *Cluster) describe(bounded context.Context, group string) (*GroupInfo, error) {
	info := &GroupInfo{Group: group, Commits: map[string]map[int32]GroupCommit{}}
	described, err := c.admin.DescribeConsumerGroups(bounded, group)
	if err != nil {
		return nil, err
	}
	if found := described[group]; found.Err == nil {
		info.State, info.Epoch = found.State, found.Epoch
		for _, each := range found.Members {
			info.Members = append(info.Members, GroupMember{
				MemberID:         each.MemberID,
				InstanceID:       each.InstanceID,
				ClientID:         each.ClientID,
				ClientHost:       each.ClientHost,
				SubscribedTopics: each.SubscribedTopics,
				Assignment:       partitionsOf(each.Assignment),
			})
		}
	} else if err := c.describeClassic(bounded, info); err != nil {
		return nil, err
	}
	committed, err := c.admin.FetchOffsets(bounded, group)
	if err != nil {
		return nil, err
	}
	committed.Each(func(each kadm.OffsetResponse) {
		if info.Commits[each.Topic] == nil {
			info.Commits[each.Topic] = map[int32]GroupCommit{}
		}
		info.Commits[each.Topic][each.Partition] = GroupCommit{
			Offset: each.At, LeaderEpoch: each.LeaderEpoch, Metadata: each.Metadata,
		}
	})
	return info, nil
}

func (c *Cluster) describeClassic(bounded context.Context, info *GroupInfo) error {
	described, err := c.admin.DescribeGroups(bounded, info.Group)
	if err != nil {
		return err
	}
	found := described[info.Group]
	info.State = found.State
	for _, each := range found.Members {
		member := GroupMember{
			MemberID:   each.MemberID,
			InstanceID: each.InstanceID,
			ClientID:   each.ClientID,
			ClientHost: each.ClientHost,
			Assignment: map[string][]int32{},
		}
		if assigned, ok := each.Assigned.AsConsumer(); ok {
			for _, topic := range assigned.Topics {
				member.Assignment[topic.Topic] = topic.Partitions
			}
		}
		info.Members = append(info.Members, member)
	}
	return found.Err
}

func partitionsOf(topics kadm.TopicsSet) map[string][]int32 {
	assigned := map[string][]int32{}
	for topic, partitions := range topics {
		for partition := range partitions {
			assigned[topic] = append(assigned[topic], partition)
		}
		slices.Sort(assigned[topic])
	}
	return assigned
}
