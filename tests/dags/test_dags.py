"""The DAG folder as Airflow parses it: the DAGs of each query file, the cost of a bad file, the time of parsing."""

import json
import subprocess
import sys

import pytest

from tests.dags.support import ALL_QUERIES as QUERIES
from tests.dags.support import ROOT, Project

PARSE = """
import json, os, sys, time
sys.path.insert(0, os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization
started = time.process_time()
bag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
seconds = time.process_time() - started
heavy = [m for m in ("pyspark", "pandas", "numpy", "pyarrow", "deltalake") if m in sys.modules]
for dag in bag.dags.values():
    DagSerialization.serialize_dag(dag)
from airflow.sdk.exceptions import AirflowSkipException
from latecomer.specs.loading import load_query
def prepared(dag, task, run_type="manual", **params):
    task = bag.dags[dag].task_dict[task]
    task.lake = os.environ["LATECOMER_LAKE"]
    context = {"dag_run": type("Run", (), {"run_type": run_type}), "params": params}
    try:
        return task.prepare(context, load_query(task.query))
    except AirflowSkipException as error:
        return str(error)
tasks = [t for dag in bag.dags.values() for t in dag.tasks]
print(json.dumps({
    "errors": {path.rsplit("/", 1)[-1]: text for path, text in bag.import_errors.items()},
    "dags": {name: {t.task_id: sorted(t.downstream_task_ids) for t in dag.tasks} for name, dag in bag.dags.items()},
    "schedules": {name: type(dag.timetable).__name__ for name, dag in bag.dags.items()},
    "by": {name: type(getattr(dag.timetable, "asset_condition", None)).__name__ for name, dag in bag.dags.items()},
    "times": {name: type(getattr(dag.timetable, "timetable", None)).__name__ for name, dag in bag.dags.items()},
    "active": sorted({dag.max_active_runs for dag in bag.dags.values()}),
    "each": sorted({t.max_active_tis_per_dag for t in tasks}),
    "catchup": sorted({dag.catchup for dag in bag.dags.values()}),
    "connections": sorted({t.conn_id for t in tasks if hasattr(t, "conn_id")}),
    "arguments": {f"{t.dag_id}.{t.task_id}": t.arguments for t in tasks if hasattr(t, "arguments")},
    "links": {name: [type(link).__name__ for link in t.operator_extra_links] for t in tasks for name in [t.task_id]},
    "inlets": {f"{t.dag_id}.{t.task_id}": [a.uri for a in t.inlets] for t in tasks if t.inlets},
    "outlets": {f"{t.dag_id}.{t.task_id}": [a.uri for a in t.outlets] for t in tasks if t.outlets},
    "docs": {name: dag.doc_md for name, dag in bag.dags.items()},
    "heavy": heavy,
    "by_hand": {
        name: prepared("pairs__backfill", "backfill", name)
        for name in ("scheduled", "backfill")
        if "pairs__backfill" in bag.dags
    },
    "seconds": seconds,
}))
"""
ADVANCE: dict[str, list[str]] = {"advance": []}
RUN, REPAIR, BACKFILL = (
    {command: ["check"], "check": ["publish"], "publish": []} for command in ("run", "repair", "backfill")
)


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path / "project").write(tuple(QUERIES))


def test_a_backfill_without_an_interval_is_for_runs_by_hand(tmp_path):
    project = Project(tmp_path / "project").write(("pairs",))
    assert "has not been run" in project.python(PARSE)["by_hand"]["scheduled"]
    (query,) = project.queries.glob("pairs*")
    lines = query.read_text().splitlines(keepends=True)
    query.write_text("".join(line for line in lines if not line.startswith("schedule")))
    parsed = project.python(PARSE)
    assert "schedule.interval" in parsed["by_hand"]["scheduled"]
    assert "streams a, b have no row yet" in parsed["by_hand"]["backfill"]


def test_every_kind_has_its_dags(project):
    for name in ("clicks", "_by_kind", ".git", "lost+found", "not a stream", "_tmp", "_archive", "_by_", "_unknown"):
        (project.landing / name).mkdir()
    parsed = project.python(PARSE)
    assert parsed["errors"] == {}
    expected = dict.fromkeys(QUERIES, ADVANCE) | {"pairs": RUN} | {f"{name}__repair": REPAIR for name in QUERIES}
    expected |= {f"{name}__adapt": {"adapt": []} for name in ("near", "sums", "best", "both")}
    expected |= {f"{name}__backfill": BACKFILL for name in ("sums", "best", "pairs", "both")}
    expected |= {"pairs__audit": {"audit": []}}
    expected |= {
        "latecomer_ingest": {
            "ingest__by_kind": ["every_folder", "ingest_clicks"],
            "ingest_clicks": ["every_folder"],
            "every_folder": [],
        }
    }
    assert parsed["dags"] == expected
    assert parsed["connections"] == ["latecomer_spark"]
    assert {parsed["schedules"][name] for name in [*QUERIES, "pairs__repair"]} == {"AssetOrTimeSchedule"}
    assert parsed["schedules"]["near__repair"] == "CronTriggerTimetable", "advance has repaired what is due"
    assert parsed["by"]["near"] == "AssetAny"
    assert parsed["times"]["near"] == parsed["times"]["pairs__repair"] == "CronTriggerTimetable"
    assert parsed["times"]["pairs"] == "OnceTimetable"
    assert parsed["schedules"]["pairs__backfill"] == "CronDataIntervalTimetable"
    assert parsed["active"] == [1] and parsed["each"] == [1] and parsed["catchup"] == [False]
    assert parsed["outlets"]["pairs.run"] == ["latecomer://on_time/pairs"]
    assert parsed["outlets"]["near.advance"] == [
        "latecomer://on_time/near",
        "latecomer://results/near",
        "latecomer://results/near/periods",
    ]
    for dag in ("pairs", "near__repair", "sums__backfill"):
        assert parsed["outlets"][f"{dag}.publish"] == [
            f"latecomer://results/{dag.partition('__')[0]}{of}" for of in ("", "/periods")
        ]
    assert parsed["outlets"]["latecomer_ingest.ingest__by_kind"] == ["latecomer://events/a", "latecomer://events/b"]
    assert parsed["arguments"]["pairs__backfill.backfill"][::2] == ["--from", "--to"]
    assert parsed["inlets"]["near.advance"] == ["latecomer://events/a", "latecomer://events/b"]
    assert parsed["links"]["run"] == ["ReportLink", "SparkUiLink"] and parsed["links"]["every_folder"] == []


def test_a_query_that_publishes_always_does_not_wait_for_its_check(tmp_path):
    project = Project(tmp_path / "project").write(("near",))
    file = project.queries / "near.yaml"
    file.write_text(file.read_text() + "publish: {when: always}\n")
    assert project.python(PARSE)["dags"]["near"] == {"run": ["check", "publish"], "check": [], "publish": []}


def test_a_dags_page_opens_with_its_purpose(project):
    docs = project.python(PARSE)["docs"]
    opens = {name: text.split("\n\n")[0] for name, text in docs.items()}
    assert len(set(opens.values())) >= 5 and all(len(first) < 400 for first in opens.values())
    for name, message in {
        "near": "more than 5 s (`gamma`), and checks what was promised",
        "near__repair": "on its schedule (`@hourly`) or by hand all that are pending",
        "pairs__repair": "(`gamma`), on its schedule (`@hourly`)",
        "near__adapt": "how long to wait",
        "pairs__audit": "(`@weekly`)",
        "pairs__backfill": "both included, unlike `latecomer backfill --to`",
    }.items():
        assert message in opens[name], opens[name]
    assert "per 20 s: 50% of the pairs." in docs["near__adapt"]
    assert "per 20 s: less than 30% off with probability 0.5." in docs["sums"]
    assert "per 20 s: 50% of the 3 best rows." in docs["best"]
    assert "per 1 min: 50% of the results." in docs["both__adapt"]
    assert "Promised" not in docs["pairs"] and "Exact after repair" in docs["pairs"]


REPAIRS = """
import json
from latecomer.airflow import LatecomerOperator
def flushes(how, chosen, stated):
    task = LatecomerOperator(task_id="repair", action="repair", query="q.yaml", flush=stated)
    return task._flushes({"params": {"flush": chosen}}, how)
kinds = ("asset_triggered", "scheduled", "manual")
print(json.dumps({
    f"{how}/{chosen}/{stated}": flushes(how, chosen, stated)
    for how in kinds for chosen in (None, True, False) for stated in (None, True, False)
}))
"""


def test_repair_flushes_unless_a_run_started_it(project):
    flushes = project.python(REPAIRS)
    by_params = {how.removesuffix("/None") for how, flush in flushes.items() if flush and how.endswith("/None")}
    assert by_params == {"scheduled/None", "manual/None", "scheduled/True", "manual/True", "asset_triggered/True"}
    assert all(flush == how.endswith("/True") for how, flush in flushes.items() if not how.endswith("/None"))


TRIES = """
import json, sys
from airflow.sdk.exceptions import AirflowFailException
from latecomer.airflow.submit import ending, outcome_of_hook
permanent = ("/q/near.yaml:", "query near:", "stream ")
def kind(message):
    outcome = outcome_of_hook(RuntimeError(message))
    if outcome is None:
        return "other"
    error = ending(*outcome, query="near", permanent=permanent)
    return "done" if error is None else "fail" if isinstance(error, AirflowFailException) else "retry"
print(json.dumps([kind(message) for message in sys.argv[1:]]))
"""


def test_transient_errors_are_tried_again(project):
    command = "spark-submit submit.py run /q/near.yaml --lake s3://b/l"
    message = f"Cannot execute: {command}. Error code is: {{}}.\nLast spark-submit output:\n{{}}".format
    of_kubernetes = message(1, "/q/near.yaml:4: no column").replace("is: 1.", "is: 1. Kubernetes spark exit code is: 2")
    ends = {
        message(2, "WARN of Java\n/q/near.yaml:4: keys: 'v': its stream has no such column"): "fail",
        message(2, "query near: has changed since it ran"): "fail",
        message(2, "stream views: 60 of 100 rows cannot be used, and max_quarantined allows 5"): "fail",
        of_kubernetes: "fail",
        message(1, "near: FAILED a pair is missing"): "fail",
        message(2, "/landing/views/a.csv: column v: holds text, and was a number before"): "retry",
        message(2, "lake s3://b/l: the object store cannot be used"): "retry",
        message(3, "lease 'run near': held by 12@host for 7 s"): "retry",
        message(4, "latecomer: Spark's Java process ended"): "retry",
        message(1, "/q/near.yaml: Java said this, and ended"): "retry",
        "the worker has lost its process": "other",
    }
    assert project.python(TRIES, *ends) == list(ends.values())


def test_parsing_is_light(project):
    parsed = project.python(PARSE)
    assert parsed["heavy"] == [] and parsed["seconds"] < 2.0


def test_the_queries_of_this_checkout_parse(project):
    for path in project.queries.iterdir():
        path.unlink()
    shipped = sorted((ROOT / "include" / "queries").glob("*.yaml"))
    for path in shipped:
        (project.queries / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    parsed = project.python(PARSE)
    assert parsed["errors"] == {} and sum("__" not in name for name in parsed["dags"]) == len(shipped) + 1


BROKEN = {
    "unit": ("window: 2 s", "window: 2 secs", "unknown unit"),
    "suffix": ("name: suffix", "name: near__repair", "'near__repair': is reserved for DAG ids"),
    "ingest": ("name: ingest", "name: latecomer_ingest", "'latecomer_ingest': is reserved for DAG ids"),
    "twice": ("name: twice", "name: near", "'near': is taken by near.yaml"),
    "cron": (
        "quality:",
        'schedule: {repair: "99 * * * *"}\nquality:',
        "schedule.repair: '99 * * * *': is not a valid cron expression",
    ),
    "once": (
        "quality:",
        'schedule: {interval: "@once"}\nquality:',
        "schedule.interval: '@once': is not a cron expression",
    ),
    "audit": (
        "quality:",
        'schedule: {audit: "0 0 31 2 8"}\nquality:',
        "schedule.audit: '0 0 31 2 8': is not a valid cron",
    ),
    "never": (
        "quality:",
        'schedule: {repair: "0 0 30 2 *"}\nquality:',
        "schedule.repair: '0 0 30 2 *': never fires",
    ),
    "yaml": ("kind: join", "kind: [join", "not valid YAML"),
}


def test_a_broken_query_file_costs_its_own_dags_only(project):
    for name, (old, new, _) in BROKEN.items():
        text = f"name: {name}{QUERIES['near']}"
        assert old in text
        (project.queries / f"{name}.yaml").write_text(text.replace(old, new))
    leap = QUERIES["near"].replace("quality:", 'schedule: {repair: "0 0 29 2 *"}\nquality:')
    (project.queries / "leap.yaml").write_text(f"name: leap{leap}")
    (project.queries / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    parsed = project.python(PARSE)
    assert list(parsed["errors"]) == ["latecomer_query_errors.py"]
    lines = [line for line in parsed["errors"]["latecomer_query_errors.py"].splitlines() if ".yaml" in line]
    for name, (_, _, message) in BROKEN.items():
        assert any(f"{name}.yaml" in line and message in line for line in lines), (name, lines)
    assert any("bytes.yaml" in line for line in lines)
    mains = {name for name in parsed["dags"] if "__" not in name}
    assert mains == {*QUERIES, "leap", "latecomer_ingest"} and len(parsed["dags"]) == 2 * len(QUERIES) + 13


def test_a_broken_stream_file_is_an_import_error_and_costs_no_dag(project):
    (project.landing / "a").mkdir()
    (project.landing / "_by_kind").mkdir()
    streams = project.folder / "streams"
    streams.mkdir()
    (streams / "a.yaml").write_text("event_column: ts\ntime_units: ms\n")
    (streams / "_by_kind.yml").write_text("timezone: Mars/Base\n")
    (streams / "b.yaml").write_text("# nothing yet\n")
    (streams / "_by_topic.yaml").write_text("source: kafka\ntopic: t\nservers: broker:9092\n")
    parsed = project.python(PARSE)
    lines = parsed["errors"].pop("latecomer_query_errors.py").splitlines()
    assert [
        line for line in lines if "a.yaml:2: time_units: 'ms': is not a key here; did you mean 'time_unit'?" in line
    ]
    assert [line for line in lines if "_by_kind.yml:1: timezone: 'Mars/Base': is not a time zone" in line]
    assert [line for line in lines if "_by_topic.yaml:1: source: is of one stream" in line]
    assert "ingest__by_topic" not in parsed["dags"]["latecomer_ingest"]
    assert not parsed["errors"] and {*QUERIES} < {*parsed["dags"]}


LOG_IN = """
import json, os, sys
sys.path.insert(0, os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
os.environ |= {"LATECOMER_KAFKA_SASL_USERNAME": "of the environment", "LATECOMER_KAFKA_SSL_CA_LOCATION": "/ca.pem"}
extra = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "bootstrap.servers": "b:1"}
connection = {"conn_type": "kafka", "login": "reader", "password": "s3cret", "extra": extra}
os.environ["AIRFLOW_CONN_KAFKA_PROD"] = json.dumps(connection)
from airflow.dag_processing.dagbag import DagBag
dag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"]).dags["latecomer_ingest"]
from airflow.sdk.exceptions import AirflowSkipException
from latecomer.ingest import stream_sources
stream_sources.new_content = lambda *_: None
task = dag.task_dict["ingest_clicks"]
task.lake = os.environ["LATECOMER_LAKE"]
try:
    task.prepare({}, None)
except AirflowSkipException:
    pass
print(json.dumps({
    "variables": {name: value for name, value in os.environ.items() if name.startswith("LATECOMER_KAFKA_")},
    "task": str({name: getattr(task, name) for name in task.template_fields}),
}))
"""


def test_a_topic_s_login_comes_from_a_connection_when_its_task_runs(project):
    streams = project.folder / "streams"
    streams.mkdir()
    (streams / "clicks.yaml").write_text("source: kafka\ntopic: t\nservers: b:1\nconnection: kafka_prod\n")
    done = project.python(LOG_IN)
    assert done["variables"] == {
        "LATECOMER_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "LATECOMER_KAFKA_SASL_MECHANISM": "PLAIN",
        "LATECOMER_KAFKA_SASL_USERNAME": "reader",
        "LATECOMER_KAFKA_SASL_PASSWORD": "s3cret",
    }
    assert "s3cret" not in done["task"]


PLUGINS = """
import json, sys
from airflow import plugins_manager
plugins, errors = plugins_manager._get_plugins()
print(json.dumps({
    "plugins": [plugin.name for plugin in plugins if plugin.name == "latecomer"],
    "errors": errors,
    "heavy": [name for name in ("pyspark", "pandas", "numpy", "pyarrow") if name in sys.modules],
}))
"""


def test_the_plugin_is_registered_once_and_starts_nothing_heavy(project):
    """Registered by the entry point of the package, or by the file of the checkout, and never by both."""
    done = subprocess.run(
        [sys.executable, "-c", PLUGINS],
        env=project.environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-1500:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"plugins": ["latecomer"], "errors": {}, "heavy": []}
