"""The multiple cuckoo filters of the paper, tuple by tuple, and their published rivals."""
