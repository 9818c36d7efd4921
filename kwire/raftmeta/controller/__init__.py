"""The active controller: requests in, metadata records and answers out."""
