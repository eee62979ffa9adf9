"""The algorithms: pure functions and small state machines over NumPy arrays.

They use no Spark, Delta, Airflow, clock or file.
"""
