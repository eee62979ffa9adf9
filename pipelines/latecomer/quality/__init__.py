"""Recall and completeness: the ledger as people read it, expectation suites, reports."""
