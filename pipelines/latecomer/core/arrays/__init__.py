"""Arrays that several query kinds share: composite keys, sparse counts, the cells of a knob, hashes."""
