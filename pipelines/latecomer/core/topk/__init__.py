"""Top-k: the adaptive wait, and the waits that the members of an answer required."""
