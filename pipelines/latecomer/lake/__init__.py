"""Delta tables of a lake: where they are, small idempotent commits, leases, the batch journal."""
