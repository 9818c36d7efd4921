"""Log-ins with access tokens: the mechanism OAUTHBEARER. Loaded only where a listener has it."""
