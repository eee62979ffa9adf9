"""The algorithms: pure functions and small state machines over NumPy arrays. No Spark, Delta, Airflow, clock or file."""
