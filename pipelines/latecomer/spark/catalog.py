"""Spark's catalog: the tables of a query's answers and verdicts by name, as external tables.

``LATECOMER_CATALOG=schema`` (or ``catalog.schema``) asks for it. Which metastore that is, a deployment says by Spark's
own settings: Hive's, or another one that Spark reaches. A catalog holds names and places. The comments and properties
of a table are those of its Delta log, which every engine reads, so nothing is written to the table through the catalog.

The table of results remembers where it is registered, in its property `REGISTERED`. So Spark is started only where a
table is new to the catalog.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from latecomer.lake.delta import Table
from latecomer.lake.errors import InputError
from latecomer.lake.lake import Lake
from latecomer.lake.lease import Lease
from latecomer.lake.storage import lake_uri

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VARIABLE = "LATECOMER_CATALOG"
REGISTERED = "latecomer.catalog"
"""Property of ``results/<query>``: its names in catalogs and the places they stand for, as JSON."""
_HIVE = {"spark.sql.catalogImplementation": "hive"}


def schema() -> str | None:
    """Return the schema that ``LATECOMER_CATALOG`` names, quoted for SQL; None where it is not set.

    Raises
    ------
    InputError
        It is no name of a schema.
    """
    name = os.environ.get(VARIABLE, "").strip()
    if not name:
        return None
    parts = name.split(".")
    if len(parts) > 2 or not all(part.replace("_", "").replace("-", "").isalnum() for part in parts):
        raise InputError(VARIABLE, name, "is no name of a schema", "write SCHEMA or CATALOG.SCHEMA")
    return ".".join(f"`{part}`" for part in parts)


def registered(lake: Lake, query: str) -> dict[str, str]:
    """Return the names of a query's tables in catalogs, and the places they stand for; from its table of results."""
    opened = lake.table("results", query).open()
    stated = None if opened is None else opened.metadata().configuration.get(REGISTERED)
    return {} if stated is None else dict(json.loads(stated))


def register(lake: Lake, query: str) -> list[str]:
    """Register the tables of a query that are new to the catalog, and return their names; twice is once.

    Raises
    ------
    InputError
        The variable names no schema, or the catalog has another table of that name.
    """
    place = schema()
    if place is None or not lake.table("results", query).exists():
        return []
    tables = {f"{place}.`{query}`": lake.table("results", query)}
    verdicts = lake.table("verdicts", query)
    tables |= {f"{place}.`{query}__verdicts`": verdicts} if verdicts.exists() else {}
    known = registered(lake, query)
    new = {name: table for name, table in tables.items() if known.get(name) != table.uri}
    if new:
        spark = _session(lake)
        if not spark.catalog.databaseExists(place.replace("`", "")):
            spark.sql(f"create schema {place}")
        for name, table in new.items():
            _create(spark, name, table)
        with Lease(lake, f"publish-{query}"):
            names = known | {name: table.uri for name, table in new.items()}
            opened = lake.table("results", query).open_version()
            opened.alter.set_table_properties({REGISTERED: json.dumps(names)}, raise_if_not_exists=False)
    return list(new)


def unregister(lake: Lake, query: str) -> list[str]:
    """Remove a query's tables from the catalog, and return their names; the tables themselves stay where they lie.

    A name that stands for another place by now is left alone.
    """
    names = registered(lake, query)
    spark = _session(lake) if names else None
    removed = []
    for name, uri in names.items():
        if spark is not None and spark.catalog.tableExists(name) and _location(spark, name) == uri:
            spark.sql(f"drop table {name}")
            removed.append(name)
    return removed


def settings() -> dict[str, str]:
    """Return the settings that only the start of Spark can make, and without which no table can be registered."""
    return dict(_HIVE) if os.environ.get(VARIABLE) else {}


def _session(lake: Lake) -> SparkSession:
    """Return the session, whose tables outlive it.

    Raises
    ------
    ServerError
        A Spark Connect server would forget them: it has a catalog in memory.
    """
    from latecomer.spark.engine import connect
    from latecomer.spark.engine.server_file import ServerError
    from latecomer.spark.engine.session import session

    spark = session(lake, more=_HIVE)
    server = connect.named()
    name = "spark.sql.catalogImplementation"
    if server is not None and "." not in (schema() or ".") and spark.conf.get(name, "in-memory") != "hive":
        problem = f"was started without a metastore ({name} is not hive), and would forget what {VARIABLE} registers"
        raise ServerError(server.address, problem, f"start it with {VARIABLE} set, or with that setting")
    return spark


def _create(spark: SparkSession, name: str, table: Table) -> None:
    if spark.catalog.tableExists(name):
        other = _location(spark, name)
        if other != table.uri:
            problem = f"is the name of a table at {other}"
            raise InputError(VARIABLE, name.replace("`", ""), problem, "choose another schema, or drop that table")
        return
    path = table.spark_path.replace("'", "\\'")
    spark.sql(f"create table {name} using delta location '{path}'")


def _location(spark: SparkSession, name: str) -> str:
    """Return the place of a table of the catalog as lakes name places."""
    return lake_uri(str(spark.sql(f"describe detail {name}").collect()[0]["location"]))
