"""kafka-go's own tests, against a broker at the addresses that they contain."""
