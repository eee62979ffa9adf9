"""The ledger: period accounts that `run` keeps, and the rows that are read from them.

It needs no Spark.
"""
