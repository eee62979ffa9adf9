"""Shows query files and stream files that are wrong as an import error in Airflow; it defines no DAG."""

from latecomer.airflow import raise_problems

raise_problems(files="../include")
