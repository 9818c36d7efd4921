"""Authorization by ACLs: every API with and without its permissions, and the tools for ACLs."""
