"""Tables of answers in Spark's own metastore, by the commands as a deployment runs them."""

import json
import os

import latecomer as lc
import pytest
from latecomer.jobs import init_project
from latecomer.lake.lake import Lake
from latecomer.spark import catalog

from tests.support import commands

TABLES = """
import json, sys
from latecomer.lake.lake import Lake
from latecomer.spark import catalog
spark = catalog._session(Lake(sys.argv[1]))
tables = {}
if spark.catalog.databaseExists("answers"):
    for row in spark.sql("show tables in answers").collect():
        name = f"answers.{row['tableName']}"
        properties = {r["key"]: r["value"] for r in spark.sql(f"show tblproperties {name}").collect()}
        comments = {r["col_name"]: r["comment"] for r in spark.sql(f"describe {name}").collect()}
        detail = spark.sql(f"describe detail {name}").collect()[0]
        tables[row["tableName"]] = {
            "rows": spark.table(name).count(), "properties": properties, "comments": comments,
            "description": detail["description"], "location": detail["location"],
        }
print(json.dumps(tables))
spark.stop()
"""


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Run a command with a metastore in a folder of the test, and return its output as JSON, and its errors."""
    store = f"jdbc:derby:;databaseName={tmp_path}/metastore;create=true"
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(
        f"spark.hadoop.javax.jdo.option.ConnectionURL {store}\nspark.sql.warehouse.dir {tmp_path}/warehouse\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    monkeypatch.setenv("LATECOMER_JAVA_OPTIONS", f"-Dderby.stream.error.file={tmp_path}/derby.log")
    monkeypatch.setenv("LATECOMER_CATALOG", "answers")
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        done = commands.call(*arguments, "--lake", "lake", "--json", timeout=400)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), done.stderr

    return run


def registered_tables(lake):
    """The tables of the catalog, by a process of its own, since an embedded metastore has one user at a time."""
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-c", TABLES, lake], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_tables_are_registered_once_and_forgotten(call, tmp_path, monkeypatch):
    init_project.make(tmp_path / "shop", True)
    query = "shop/queries/join.yaml"
    call("ingest", "--by", "stream", "shop/landing/_by_stream")
    call("run", query, "--until-seq", "1500")
    call("check", query)
    first, _ = call("publish", query)
    place = "`answers`.`clicks_after_views"
    assert first["registered"] == [f"{place}`", f"{place}__verdicts`"] and first["rows"] > 0
    tables = registered_tables("lake")
    assert set(tables) == {"clicks_after_views", "clicks_after_views__verdicts"}
    table = tables["clicks_after_views"]
    assert table["rows"] == first["rows"] and table["location"] == f"file:{tmp_path}/lake/results/clicks_after_views"
    assert table["properties"]["latecomer.promise"] == "recall 0.95 per 1 h"
    assert table["properties"]["latecomer.query_file"] == "join.yaml"
    assert table["comments"]["published_at"] == "when the row was written to this table, in UTC"
    assert table["description"].startswith("The answers of the query clicks_after_views")

    # the next publication writes to the same table and starts no Spark, which could not start here
    call("run", query, "--flush")
    call("check", query)
    with monkeypatch.context() as without:
        without.setenv("JAVA_HOME", "/nowhere")
        second, _ = call("publish", query)
    assert second["registered"] == [] and second["inserted"] > 0
    assert registered_tables("lake")["clicks_after_views"]["rows"] == second["rows"] > first["rows"]

    # what the query file says of itself is brought up to date
    query = str((tmp_path / query).rename(tmp_path / "moved.yaml"))
    call("repair", query, "--flush")
    call("check", query)
    assert call("publish", query)[0]["registered"] == []
    assert registered_tables("lake")["clicks_after_views"]["properties"]["latecomer.query_file"] == "moved.yaml"

    forgotten, _ = call("forget", query, "--yes")
    assert forgotten["unregistered"] == [f"{place}`", f"{place}__verdicts`"] and registered_tables("lake") == {}


def test_a_name_that_is_taken_is_left_alone(call, tmp_path):
    init_project.make(tmp_path / "shop", True)
    query = "shop/queries/aggregate.yaml"
    for lake in ("other", "lake"):
        for arguments in (["ingest", "--by", "stream", "shop/landing/_by_stream"], ["run", query, "--until-seq", 1500]):
            done = commands.call(*arguments, "--lake", lake)
            assert done.returncode == 0, done.stderr
    done = commands.call("publish", query, "--unchecked", "--lake", "other")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    published, said = call("publish", query, "--unchecked")
    assert published["inserted"] > 0 and published["registered"] == []
    assert (
        "published, but not registered in the catalog (LATECOMER_CATALOG: 'answers.views_per_page': is the name" in said
    )
    assert f"of a table at {tmp_path}/other/results/views_per_page" in said and len(said.splitlines()) == 1
    done, _ = call("forget", query, "--yes")
    assert done["unregistered"] == [] and list(registered_tables("other")) == ["views_per_page"]


@pytest.mark.parametrize("name", ["a.b.c", "a;b", "a b", ".a"])
def test_a_variable_that_names_no_schema_is_refused(monkeypatch, name):
    monkeypatch.setenv("LATECOMER_CATALOG", name)
    with pytest.raises(Exception, match="is no name of a schema"):
        catalog.schema()


def test_the_api_warns(monkeypatch, tmp_path, spark):
    """The name of the schema is wrong; the answers are published."""
    monkeypatch.setenv("LATECOMER_CATALOG", "a b")
    init_project.make(tmp_path / "shop", True)
    lake = lc.Lake(tmp_path / "lake")
    lake.ingest(by="stream", paths=tmp_path / "shop" / "landing" / "_by_stream")
    query = lc.Query.load(tmp_path / "shop" / "queries" / "aggregate.yaml")
    lake.run(query)
    with pytest.warns(
        UserWarning, match="published, but not registered in the catalog .*'a b': is no name of a schema"
    ):
        published = lake.publish(query, unchecked=True)
    assert published.inserted > 0 and published.registered == []


def test_without_the_variable_nothing_is_registered(monkeypatch, tmp_path):
    monkeypatch.delenv("LATECOMER_CATALOG", raising=False)
    assert catalog.register(Lake(tmp_path / "lake"), "q") == [] and "PATH" in os.environ
