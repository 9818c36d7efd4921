"""Requests to identity providers, for access tokens (OAUTHBEARER) and the keys that verify them."""
