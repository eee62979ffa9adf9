"""Query files as frozen, typed, validated specs. DAG files import this layer alone, so it imports no heavy package."""
