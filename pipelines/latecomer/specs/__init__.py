"""Query files as frozen, typed, validated specs. The only layer that DAG files import: nothing heavy in here."""
