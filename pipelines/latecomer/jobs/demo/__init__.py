"""The demo: a year of New York flights through the DAGs."""
