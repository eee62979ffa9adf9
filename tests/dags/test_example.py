"""The example DAG of the documentation: a publication starts one run per period that changed, and no other."""

import csv
from datetime import datetime, timedelta

import pytest

from tests.dags.support import ROOT, Project
from tests.support import events

DAG = "report_of_pairs"
CREATE = """
import json
from airflow.jobs.job import Job
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
with create_session() as session:
    known = {run.run_id for run in session.query(DagRun)}
    SchedulerJobRunner(job=Job())._create_dagruns_for_partitioned_asset_dags(session)
with create_session() as session:
    runs = [run for run in session.query(DagRun) if run.run_id not in known]
    print(json.dumps(sorted([run.partition_key, run.dag_id, run.run_id] for run in runs)))
"""
"""The step of the scheduler's loop that makes runs of partitions."""


class WithExample(Project):
    """A project whose folder of DAG files has the example too."""

    @property
    def settings(self):
        return super().settings | {
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.folder / "dags"),
            "LATECOMER_REPORT_OF": "pairs",
        }


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    made = WithExample(tmp_path_factory.mktemp("example") / "project").write(("pairs",))
    (made.folder / "dags").mkdir()
    for file in [*(ROOT / "dags").glob("*.py"), *(ROOT / "include" / "dags").glob("*.py")]:
        (made.folder / "dags" / file.name).symlink_to(file)
    (made.landing / "_by_stream").mkdir()
    return made.migrate()


def reports(project):
    """The rows of the files of reports, by the starts of their periods."""
    files = sorted((project.folder / "reports" / "pairs").glob("*.csv"))
    return {datetime.strptime(file.stem, "%Y-%m-%dT%H%M%S"): list(csv.DictReader(open(file))) for file in files}


def report(project):
    """Let the scheduler make the runs of changed periods, run their task, and return the periods."""
    runs = project.python(CREATE)
    assert {dag for _, dag, _ in runs} <= {DAG}
    for _, _, run in runs:
        project.call("airflow", "tasks", "test", DAG, "write_report", run)
    return [datetime.fromisoformat(period) for period, _, _ in runs]


def answers(project):
    """The published answers by the period of their window's last moment, as :func:`reports` has them."""
    by_period = {}
    for row in project.stored("results", "pairs"):
        last = row["window_end"].replace(tzinfo=None) - timedelta(microseconds=1)
        start = datetime(1970, 1, 1) + (last - datetime(1970, 1, 1)) // timedelta(seconds=20) * timedelta(seconds=20)
        by_period.setdefault(start, []).append((str(row["r_seq"]), str(row["s_seq"]), row["provenance"]))
    return {start: sorted(rows) for start, rows in by_period.items()}


def reported(project):
    of = reports(project)
    return {
        start: sorted((row["r_seq"], row["s_seq"], row["provenance"]) for row in rows) for start, rows in of.items()
    }


def test_only_the_periods_that_changed_are_reported_again(project):
    table = events.disordered(11, rows=300).drop_columns(["seq"])
    events.write(table, project.landing / "_by_stream" / "rows.parquet")
    done, _ = project.run_dags("latecomer_ingest", "pairs")
    assert [state for _, state, _ in done] == ["success", "success"], done
    first = report(project)
    assert len(first) >= 3 and set(first) == set(reported(project))
    assert reported(project) == answers(project)
    assert report(project) == [], "nothing has changed since"

    before = answers(project)
    done, _ = project.run_dags("pairs__repair")
    assert done[0][1] == "success", done
    changed = [start for start, rows in answers(project).items() if rows != before.get(start)]
    again = report(project)
    assert sorted(again) == sorted(changed) and changed
    assert reported(project) == answers(project)
