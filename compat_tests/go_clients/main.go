// Command go_clients runs what users of Go's Kafka clients do against a broker or a cluster:
//
//	go_clients ADDRESS[,ADDRESS]... [SCENARIO]...
//	go_clients scenarios|operations|attempts
//	go_clients load FILE
//
// It prints "PASS name" or "FAIL name: reason" for each scenario, in which every client library
// creates topics of its own, so that scenarios may run in any order and on a broker that is in use.
// With "attempts" it tries the logins that it reads from standard input (attempts.go). With "load" it writes and reads
// as a user until the file exists (load.go).
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"sort"
	"strings"
	"time"
)

const (
	deadline = 60 * time.Second
	count    = 60
)

// session is what a scenario works with.
type session struct {
	context.Context
	address     string // the first broker's: clients learn of the others from it
	brokerCount int
}

type failure string

// must fails the scenario when err is set.
func must(err error, doing string) {
	if err != nil {
		panic(failure(fmt.Sprintf("%s: %v", doing, err)))
	}
}

// equal fails the scenario when the broker said something else.
func equal(got, wanted any, what string) {
	if fmt.Sprint(got) != fmt.Sprint(wanted) {
		panic(failure(fmt.Sprintf("%s: got %v, wanted %v", what, got, wanted)))
	}
}

// eventually asks until the answer is the wanted one: a broker may show a change a moment later.
func eventually(s session, ask func() any, wanted any, what string) {
	for fmt.Sprint(ask()) != fmt.Sprint(wanted) {
		select {
		case <-s.Done():
			equal(ask(), wanted, what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// unique is a name that no other scenario and no earlier run has used.
func unique(role string) string {
	random := make([]byte, 5)
	rand.Read(random)
	return role + "-" + hex.EncodeToString(random)
}

// value is the content of record n; long enough for compression to pay.
func value(n int) string {
	return fmt.Sprintf("value-%04d-%s", n, "abcdefghijklmnopqrstuvwxyz")
}

func values(n int) []string {
	made := make([]string, n)
	for i := range made {
		made[i] = value(i)
	}
	return made
}

// sorted is a sorted copy: partitions are read in any order.
func sorted(found []string) []string {
	copied := slices.Clone(found)
	sort.Strings(copied)
	return copied
}

func run(addresses []string, name string, scenario func(session)) (passed bool) {
	bounded, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	ended := make(chan string, 1)
	go func() {
		defer func() {
			problem := recover()
			if problem == nil {
				ended <- ""
			} else {
				ended <- fmt.Sprint(problem)
			}
		}()
		scenario(session{bounded, addresses[0], len(addresses)})
	}()
	var reason string
	select {
	case reason = <-ended:
	case <-time.After(deadline + 5*time.Second):
		reason = "hangs"
	}
	if reason != "" {
		fmt.Printf("FAIL %s: %s\n", name, reason)
		return false
	}
	fmt.Printf("PASS %s\n", name)
	return true
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "go_clients ADDRESS[,ADDRESS]... [SCENARIO]...")
		os.Exit(2)
	}
	scenarios := map[string]func(session){}
	for _, some := range []map[string]func(session){kafkaGo(), saramas(), franz(), logIns()} {
		for name, scenario := range some {
			scenarios[name] = scenario
		}
	}
	names := os.Args[2:]
	if len(names) == 0 {
		for name := range scenarios {
			names = append(names, name)
		}
		sort.Strings(names)
	}
	switch os.Args[1] {
	case "scenarios":
		for _, name := range names {
			fmt.Println(name)
		}
		return
	case "operations":
		printOperations()
		return
	case "attempts":
		makeAttempts()
		return
	case "load":
		runLoad(os.Args[2])
		return
	}
	failed := false
	for _, name := range names {
		scenario, known := scenarios[name]
		if !known {
			fmt.Printf("FAIL %s: no such scenario\n", name)
			failed = true
			continue
		}
		failed = !run(strings.Split(os.Args[1], ","), name, scenario) || failed
	}
	if failed {
		os.Exit(1)
	}
}
