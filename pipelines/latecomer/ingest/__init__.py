"""Ingest files of events: find them, parse them, validate their rows, and write them as streams of the lake."""
