"""What the row of a period is made of: accounts that `run` keeps, and the ledger that is read from them.

Needs no Spark.
"""
