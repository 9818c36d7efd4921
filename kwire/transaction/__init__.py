"""Transactions: the coordinator of transactional ids, from requests to markers."""
