"""TLS for connections: certificates, contexts, handshakes and encrypted sockets."""
