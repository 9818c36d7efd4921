"""What the compatibility tests share: the broker under test, Java tools, small helpers."""
