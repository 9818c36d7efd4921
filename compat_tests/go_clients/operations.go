package main

import (
	"fmt"
	"reflect"

	"github.com/IBM/sarama"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kadm"
)

// printOperations lists what the libraries can ask a broker for: "library/Type.Method", one a line.
func printOperations() {
	for library, types := range map[string][]reflect.Type{
		"kafka-go": {reflect.TypeFor[*kafka.Client]()},
		"sarama": {
			reflect.TypeFor[sarama.ClusterAdmin](), reflect.TypeFor[sarama.SyncProducer](),
			reflect.TypeFor[sarama.ConsumerGroup](),
		},
		"franz": {reflect.TypeFor[*kadm.Client]()},
	} {
		for _, one := range types {
			name := one.Name()
			if one.Kind() == reflect.Pointer {
				name = one.Elem().Name()
			}
			for n := range one.NumMethod() {
				fmt.Printf("%s/%s.%s\n", library, name, one.Method(n).Name)
			}
		}
	}
}
