"""The join on Spark."""
