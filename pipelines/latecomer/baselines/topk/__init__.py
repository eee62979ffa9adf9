"""The published rivals of the adaptive wait: modified MinTopk, its pool of rows, and methods without a wait."""
