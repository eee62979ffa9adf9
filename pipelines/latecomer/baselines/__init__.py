"""The published rivals, with the interfaces of the algorithms in :mod:`latecomer.core`."""
