"""An example: one file of answers per period, written again for the periods alone whose answers have changed.

Copy it into the folder of Latecomer's DAG files. The partitions of the asset ``latecomer.<query>.periods`` are the
starts of the periods whose answers a publication has brought or corrected, so Airflow makes one run per such period,
also for a day of last month that a repair has corrected today. ``LATECOMER_REPORT_OF`` names the query, of a kind with
windows, and ``LATECOMER_QUERIES`` the folder of its file. The CSV files lie in the folder of reports.
"""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import DAG, PartitionedAssetTimetable, get_current_context, task
from latecomer.airflow import periods_asset
from latecomer.airflow.settings import place, setting

BESIDE = Path(__file__).parent / "queries"  # where this file was copied; a link leads back to the folder of the project
QUERIES = setting("queries") or (BESIDE if BESIDE.is_dir() else Path(__file__).resolve().parents[1] / "queries")
QUERY = os.environ.get("LATECOMER_REPORT_OF") or "departures_by_airport"

with DAG(
    dag_id=f"report_of_{QUERY}",
    schedule=PartitionedAssetTimetable(assets=periods_asset(QUERY)),
    catchup=False,
    max_active_runs=4,
    tags=["latecomer"],
    doc_md=__doc__,
):

    @task
    def write_report() -> str:
        """Write the answers of the run's period to a file, and return its path."""
        from datetime import datetime, timedelta

        import latecomer as lc
        import pyarrow.csv

        start = datetime.fromisoformat(str(get_current_context()["dag_run"].partition_key))
        end = start + timedelta(microseconds=lc.Query.load(Path(QUERIES, f"{QUERY}.yaml")).spec.period_us)
        # a window belongs to the period in which its last moment lies
        rows = lc.Lake(place("lake")).sql(
            f"from results.{QUERY} where window_end > timestamptz '{start}Z' and window_end <= timestamptz '{end}Z' "
            "order by all"
        )
        file = Path(place("reports"), QUERY, f"{start:%Y-%m-%dT%H%M%S}.csv")
        file.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.csv.write_csv(rows, file)
        return f"{rows.num_rows} answers in {file}"

    write_report()
