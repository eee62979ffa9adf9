"""The stage of the windowed kinds on Spark: rows, observation, closing, repair."""
