"""What the windowed kinds share on Spark: rows, observation, closing, repair."""
