"""Query files as frozen, typed, validated specs. DAG files import no other layer, so nothing here imports a heavy package."""
