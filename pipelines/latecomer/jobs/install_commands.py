"""`latecomer jars` and `latecomer doctor`: install what Spark needs, and examine an installation."""

from __future__ import annotations

from pathlib import Path

import click

from latecomer.jobs.command_options import JSON, show_result
from latecomer.specs.errors import quantity


@click.group()
def jars() -> None:
    """Fetch or list the jars that Spark needs beside its own (Delta Lake, S3, Kafka, Avro).

    They are looked for in the folder that LATECOMER_JARS names, else in a folder of the user's cache. A checkout
    has its own in .jvm/jars.
    """


def _all_sets(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str | None, ...]:
    """Return the sets of jars: the one that everybody needs, which has no name, and every named one."""
    return (None, *dict.fromkeys(names))


SETS = click.option(
    "--with",
    "sets",
    type=click.Choice(["azure", "gcs"]),
    multiple=True,
    callback=_all_sets,
    help="Also those of a store: azure for abfss://, gcs for gs://.",
)


@jars.command()
@click.option(
    "--to",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Put them here, and name the folder in LATECOMER_JARS.  [default: where they are looked for]",
)
@SETS
@click.option("--archive/--no-archive", default=True, help="Also make an archive of classes.")
@JSON
def fetch(to: Path | None, sets: tuple[str | None, ...], archive: bool, as_json: bool) -> None:
    """Fetch the jars from Maven Central, or from the mirror that DEFAULT_ARTIFACT_REPOSITORY names.

    Every file is compared to the SHA-256 hash that this version of the package knows. What is there already is not
    fetched again. An archive of classes is made beside them, with which Spark starts about three times faster.
    """
    from latecomer.lake.errors import InputError
    from latecomer.spark.engine import jars as engine_jars

    place = to.absolute() if to is not None else engine_jars.folder()
    if place is None:
        problem = "is empty, which says that Spark's class path has the jars"
        raise InputError("LATECOMER_JARS", "", problem, "unset it, or name a folder with --to")
    new = [file for jar_set in sets for file in engine_jars.fetch(place, jar_set)]
    count = sum(len(engine_jars.lock(jar_set)) for jar_set in sets)
    archived = archive and engine_jars.make_archive(place)
    line = f"{quantity(len(new), 'jar')} fetched into {place}, {count - len(new)} were there"
    if archive:
        slower = "no class archive could be made: everything works without it, Spark starts slower"
        line += f"; {'with a class archive' if archived else slower}"
    counts = {"folder": str(place), "fetched": len(new), "jars": count, "class_archive": archived}
    show_result(as_json, counts, line)


@jars.command("list")
@SETS
@JSON
def list_(sets: tuple[str | None, ...], as_json: bool) -> None:
    """List the jars with their SHA-256 hashes, in the format of `sha256sum --check`."""
    from latecomer.spark.engine import jars as engine_jars

    files = {name: digest for jar_set in sets for name, digest in engine_jars.lock(jar_set).items()}
    artifacts = [artifact for jar_set in sets for artifact in engine_jars.coordinates(engine_jars.listing(jar_set))[0]]
    lines = [f"{digest}  {name}" for name, digest in sorted(files.items())]
    show_result(as_json, {"artifacts": artifacts, "jars": files}, "\n".join(lines))


@click.command()
@click.option(
    "--lake", "lake_uri", envvar="LATECOMER_LAKE", show_envvar=True, metavar="URI", help="Also examine a lake."
)
@click.option("--spark/--no-spark", default=True, help="Start Spark, and write and read a table.")
@JSON
def doctor(lake_uri: str | None, spark: bool, as_json: bool) -> None:
    """Examine Python, Java, jars, memory, disks, Spark and a lake's place, and say what to do.

    In the lake, writers race for one commit, as leases do, in a table that is removed again. An object store is
    examined by the MinIO client (install latecomer[s3]). The exit code is 2 if something is wrong.
    """
    from dataclasses import asdict

    from latecomer.jobs import doctor as job

    findings = []
    for finding in job.examine(lake_uri, spark=spark):
        findings.append(finding)
        if not as_json:
            remedy = f"; {finding.remedy}" if finding.remedy else ""
            click.echo(f"{finding.state:<8} {finding.subject}: {finding.says}{remedy}")
    if as_json:
        show_result(as_json, {"findings": [asdict(finding) for finding in findings]}, "")
    if any(finding.state == job.WRONG for finding in findings):
        raise SystemExit(2)
