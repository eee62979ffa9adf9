"""Three DAGs from each query file: ``<query>`` (run, repair, check), ``<query>__repair``, ``<query>__adapt``.

``<query>`` is scheduled by the assets of its streams. Its repair task is cheap where nothing is due: `latecomer repair`
itself applies the Gamma rule to what is pending. ``<query>__repair`` flushes what stays below Gamma, on the query's own
schedule. A broken query file costs its own DAGs only; ``latecomer_query_errors.py`` shows it as an import error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG
from latecomer.specs.common import SpecError
from latecomer.specs.loading import load_query
from latecomer_common import LAKE, REPORTS, SETTINGS, query_files, spark_task, stream_asset


def check_task(path: Path) -> BashOperator:
    """`check` reads small tables only and starts no Spark, so it is a plain process."""
    return BashOperator(
        task_id="check",
        bash_command='exec latecomer check "$QUERY" --lake "$LAKE" --report "$REPORTS"',
        env={"QUERY": str(path), "LAKE": LAKE, "REPORTS": REPORTS},
        append_env=True,
        retries=0,
    )


def build(path: Path, spec: Any) -> list[DAG]:
    """The DAGs of one query."""
    about = f"{spec.description or spec.name}\n\nTarget {spec.target:g}.\n\n```yaml\n{path.read_text(encoding='utf-8')}\n```"
    common = SETTINGS | {"tags": ["latecomer", spec.kind], "doc_md": about}
    assets = [stream_asset(stream) for stream in dict.fromkeys(stream for _, stream in spec.streams)]
    with DAG(dag_id=spec.name, schedule=assets, **common) as main:
        run = spark_task("run", "run", str(path), "--lake", LAKE)
        repair = spark_task("repair", "repair", str(path), "--lake", LAKE)
        run >> repair >> check_task(path)
    with DAG(dag_id=f"{spec.name}__repair", schedule=spec.schedule.repair, **common) as flush:
        spark_task("repair", "repair", str(path), "--lake", LAKE, "--flush") >> check_task(path)
    with DAG(dag_id=f"{spec.name}__adapt", schedule=spec.schedule.adapt, **common) as adapt:
        spark_task("adapt", "adapt", str(path), "--lake", LAKE)
    return [main, flush, adapt]


for _path in query_files():
    try:
        _spec = load_query(_path)
    except SpecError:
        continue
    for _dag in build(_path, _spec):
        globals()[_dag.dag_id] = _dag
