"""Installing kwire as a user does."""
