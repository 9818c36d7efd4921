"""franz-go's own client tests."""
