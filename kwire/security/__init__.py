"""The identity of clients (SASL) and their permissions (ACLs), as pure logic."""
