"""Arrays that several kinds share: composite keys, sparse counts, cells of a knob, xxHash."""
