"""The published rivals of the multiple cuckoo filters, and that algorithm itself tuple by tuple."""
