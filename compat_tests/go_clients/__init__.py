"""Users' programs in Go: kafka-go, sarama and franz-go at versions pinned by their users."""
