"""The published rivals, behind the same interfaces as the algorithms of :mod:`latecomer.core`."""
