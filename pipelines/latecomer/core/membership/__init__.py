"""Memberships: the cuckoo filter."""
