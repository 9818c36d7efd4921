"""Parts that tests share; no tests."""
