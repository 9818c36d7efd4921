"""Programs in Go as users write them: kafka-go, sarama and franz-go at pinned versions."""
