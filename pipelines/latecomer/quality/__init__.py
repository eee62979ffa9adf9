"""Recall and completeness: checks, their expectations and messages, and reports."""
