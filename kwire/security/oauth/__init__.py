"""Access tokens: the mechanism OAUTHBEARER. Loaded only where a listener has it."""
