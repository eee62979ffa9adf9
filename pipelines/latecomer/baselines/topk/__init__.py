"""The published rivals of the adaptive wait: modified MinTopk, its pool of rows, and the methods that answer at once."""
