package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/testcontainers/testcontainers-go/modules/kafka"
)

// Start a container with testcontainers for Go; stop it when standard input ends.
func main() {
	began := time.Now()
	ctx := context.Background()
	container, err := kafka.Run(ctx, os.Args[1])
	if err != nil {
		panic(err)
	}
	brokers, err := container.Brokers(ctx)
	if err != nil {
		panic(err)
	}
	fmt.Printf("ready %.1f %s\n", time.Since(began).Seconds(), brokers[0])
	io.ReadAll(os.Stdin)
	if err := container.Terminate(ctx); err != nil {
		panic(err)
	}
}
