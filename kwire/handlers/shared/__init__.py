"""Parts that several handlers use."""
