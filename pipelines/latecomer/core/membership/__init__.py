"""Memberships: the cuckoo filter that answers whether an element may occur in a window."""
