"""The DAGs of this checkout: query files and stream files of ``include/``, unless the settings name others."""

from latecomer.airflow import latecomer_dags

globals().update(latecomer_dags(files="../include", show_problems=False))  # latecomer_query_errors.py shows them
