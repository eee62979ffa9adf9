"""Top-k on Spark."""
