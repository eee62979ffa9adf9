"""Tuple-at-a-time and brute-force oracles: short, slow, obviously right; for tests only."""
