"""An example: a DAG that answers a query, whose Spark jobs Livy submits.

Copy it into the folder of Latecomer's DAG files, where pip has installed ``apache-airflow-providers-apache-livy``. The
connection ``latecomer_livy`` has the type ``livy``. ``LATECOMER_LIVY_FILE`` is the path, on the machines of Livy's
cluster, of the module ``latecomer.jobs.submit``; the package and its jars are installed there (docs/cluster.md).
``LATECOMER_LIVY_QUERY`` is the query file, at one path on Livy's machines and on Airflow's. Livy says only that a batch
has ended well or not, so what failed is told from its log.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from airflow.sdk import DAG
from latecomer.airflow import LatecomerOperator, answers_asset, periods_asset, run_asset, stream_asset
from latecomer.airflow.submit import application, ending

LINES = 100
"""Lines of a batch's log that are asked for at a time."""


class LivyLatecomerOperator(LatecomerOperator):
    """Take a step of a query, or ingest, by a batch of Livy; `check` and `publish` run in the task, without Spark."""

    submit_types = ("livy",)
    poll_s = 2.0
    """Seconds between two questions about the state of a batch."""

    def submit(self, arguments: list[str], memory: str, permanent: tuple[str, ...]) -> None:
        """Submit the command to Livy, wait for its end, and log its lines."""
        from airflow.providers.apache.livy.hooks.livy import BatchState, LivyHook

        hook = LivyHook(livy_conn_id=str(self.conn_id))
        batch = hook.post_batch(
            file=os.environ.get("LATECOMER_LIVY_FILE") or application(),
            args=arguments,
            name=f"latecomer-{self.dag_id}-{self.task_id}-{time.time_ns()}",  # Livy takes a name once
            driver_memory=memory or None,
        )
        self._running = lambda: hook.delete_batch(batch)
        try:
            while (state := hook.get_batch_state(batch)) not in hook.TERMINAL_STATES:
                time.sleep(self.poll_s)
        finally:
            self._running = None
        lines = self._lines(hook, batch)
        for line in lines:
            self.log.info("%s", line)
        if state is BatchState.SUCCESS:
            return
        # Livy knows no exit code: 2 is for a line that another try would repeat, 1 for a failed check, else 4
        failed = any(line.startswith(f"{self.query_name}: FAILED ") for line in lines)
        code = 2 if any(line.startswith(permanent) for line in lines) else 1 if failed else 4
        raise ending(code, lines, query=self.query_name, permanent=permanent) or RuntimeError(str(state))

    @staticmethod
    def _lines(hook: Any, batch: int) -> list[str]:
        """Return the lines of a batch's log."""
        lines: list[str] = []
        while True:
            page = hook.get_batch_logs(batch, len(lines), LINES)
            lines += page["log"]
            if not page["log"] or len(lines) >= page["total"]:
                return [line.removeprefix("latecomer: ") for line in lines]


if QUERY := os.environ.get("LATECOMER_LIVY_QUERY"):
    from latecomer.specs.loading import load_query

    SPEC = load_query(Path(QUERY))
    with DAG(
        dag_id=f"{SPEC.name}_by_livy",
        schedule=[stream_asset(stream) for stream in SPEC.stream_names],
        catchup=False,
        max_active_runs=1,
        tags=["latecomer"],
        doc_md=__doc__,
    ):
        LivyLatecomerOperator(
            task_id="advance",
            action="advance",
            query=QUERY,
            conn_id="latecomer_livy",
            outlets=[run_asset(SPEC.name), answers_asset(SPEC.name), periods_asset(SPEC.name)],
        )
