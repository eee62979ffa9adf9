"""The ``latecomer`` command: what spark-submit, the DAGs and a person at a shell all run."""
