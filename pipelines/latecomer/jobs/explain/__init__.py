"""`explain`: what other waits would have given, and what they would have cost."""
