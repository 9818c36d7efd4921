"""The last 24 hours of a pipeline: its history, the figures, and a page that shows them."""
