"""One module per API, named as the API is; the records of internal topics by topic."""
