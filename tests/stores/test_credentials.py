"""No credential of an object store is shown by output, logs, lists of processes, settings of Spark, reports or lake."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import psutil
from minio import Minio

from tests.stores.conftest import BUCKET, QUERY
from tests.support import events
from tests.support.object_store import PASSWORD, Store

LAKE = f"s3://{BUCKET}/secret/lake"
# prints what Spark shows of a session: its page of the environment, its settings and those of Java, the plan of a read
COMMANDS = """
import json, os, sys
from latecomer.jobs.cli import main
for arguments in json.load(sys.stdin):
    code = main(arguments, prog_name="latecomer", standalone_mode=False)
    if code:
        sys.exit(f"{arguments}: {code}")
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr
spark = SparkSession.getActiveSession()
context = spark.sparkContext
print("SETTINGS", sorted(context.getConf().getAll()), spark.sql("set -v").collect())
import urllib.request
for place in ("environment/", f"api/v1/applications/{context.applicationId}/environment"):
    print("PAGE", urllib.request.urlopen(f"{context.uiWebUrl}/{place}").read().decode())
print("JAVA", context._jvm.java.lang.System.getProperties().toString())
java = context._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
print("ARGUMENTS", java.getInputArguments().toString())
spark.read.format("delta").load(sys.argv[1].replace("s3:", "s3a:") + "/events/a").explain("formatted")
spark.stop()
sys.stdout.flush()
os._exit(0)
"""


class ProcessList(threading.Thread):
    """A watch over the command lines of a process and all that it starts."""

    def __init__(self, number: int) -> None:
        super().__init__(daemon=True)
        self.root, self.lines, self.ended = psutil.Process(number), set[str](), threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.1):
            try:
                for process in (self.root, *self.root.children(recursive=True)):
                    self.lines.add(" ".join(process.cmdline()))
            except psutil.Error:
                continue


def test_no_credential_is_shown(server: Store, store: Minio, tmp_path: Path):
    rows, query, report = tmp_path / "rows.parquet", tmp_path / "pairs.yaml", tmp_path / "report"
    events.write(events.disordered(7), rows)
    query.write_text(QUERY)
    of_query = [str(query), "--lake", LAKE]
    calls = [
        ["ingest", "--lake", LAKE, "--by", "stream", str(rows)],
        ["run", *of_query, "--flush"],
        ["repair", *of_query, "--flush"],
        ["check", *of_query, "--report", str(report)],
        ["publish", *of_query, "--unchecked"],
        ["status", "--lake", LAKE],
        ["explain", *of_query],
    ]
    (tmp_path / "spark-defaults.conf").write_text("spark.ui.enabled true\nspark.ui.port 0\n", encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-c", COMMANDS, LAKE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"LATECOMER_SPARK_LOG": "INFO", "LATECOMER_DEBUG": "1", "SPARK_CONF_DIR": str(tmp_path)},
    )
    watch = ProcessList(process.pid)
    watch.start()
    output, _ = process.communicate(json.dumps(calls), timeout=400)
    watch.ended.set()
    watch.join()
    assert process.returncode == 0, output[-3000:]

    for title in ("SETTINGS", "fs.s3a.secret.key", "JAVA", "ARGUMENTS", "Physical Plan", "INFO"):
        assert title in output, "the output holds what is searched"
    assert server.environment()["AWS_SECRET_ACCESS_KEY"] == PASSWORD
    assert [line[max(line.index(PASSWORD) - 200, 0) :][:400] for line in output.splitlines() if PASSWORD in line] == []
    assert any("java" in line for line in watch.lines)
    assert not [line for line in watch.lines if PASSWORD in line]
    pages = [path for path in report.rglob("*") if path.is_file()]
    assert pages and not [path for path in pages if PASSWORD.encode() in path.read_bytes()]
    names = [item.object_name for item in store.list_objects(BUCKET, "secret/", recursive=True)]
    assert len(names) > 20
    for name in names:
        with store.get_object(BUCKET, name) as answer:
            assert PASSWORD.encode() not in answer.read(), name
