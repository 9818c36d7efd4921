package main

import (
	"fmt"
	"maps"
	"strings"
)

// The user whom the brokers of these scenarios know, by every mechanism.
const user, password = "alice", "alice-secret"

var mechanisms = []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}

// logIns are the scenarios whose clients log in.
func logIns() map[string]func(session) {
	scenarios := map[string]func(session){"kafka-go/log-in": kafkaGoLogIn}
	for name, version := range saramaVersions {
		scenarios["sarama-"+name+"/log-in"] = func(s session) { saramaLogIn(s, version) }
	}
	for name, version := range franzVersions {
		maps.Copy(scenarios, map[string]func(session){
			"franz-" + name + "/log-in":            func(s session) { franzLogIn(s, version) },
			"franz-" + name + "/delegation-tokens": func(s session) { franzTokens(s, version) },
		})
	}
	return scenarios
}

// refused fails the scenario unless a wrong password was refused as such.
func refused(err error, mechanism string) {
	text := strings.ToLower(fmt.Sprint(err))
	if !strings.Contains(text, "sasl") || !strings.Contains(text, "authentication") {
		equal(err, "an error about authentication", "a wrong password with "+mechanism)
	}
}
