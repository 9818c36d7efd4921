"""Who a client is (SASL) and what it may do (ACLs), as pure logic."""
