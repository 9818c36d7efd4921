"""One module per API, with the API's name, and one per internal topic for its records."""
