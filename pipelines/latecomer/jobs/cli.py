"""The ``latecomer`` command. Heavy imports happen inside the commands that need them: `--help` is instant."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from latecomer import __version__
from latecomer.ingest.options import IngestOptions
from latecomer.jobs import formatting
from latecomer.jobs.exit_codes import Group, end_on_term
from latecomer.specs import streams as stream_specs
from latecomer.specs.errors import SpecError, quantity
from latecomer.specs.membership import MembershipSpec
from latecomer.specs.names import NAME
from latecomer.specs.spec import Spec

QUERY = click.argument("query", type=click.Path(path_type=Path))
LAKE = click.option(
    "--lake",
    "lake_uri",
    required=True,
    envvar="LATECOMER_LAKE",
    show_envvar=True,
    metavar="URI",
    help="The lake: a local folder or s3://BUCKET/PREFIX.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="latecomer")
def main() -> None:
    """Continuous queries over events that arrive out of order.

    State a query and how complete its answers must be. Each answer is published as early as that allows, every late
    row is registered, and repair makes the results exact.

    \b
      latecomer init shop --example && cd shop
      latecomer ingest --lake lake --by stream landing/_by_stream
      latecomer run    queries/NAME.yaml --lake lake
      latecomer repair queries/NAME.yaml --lake lake --flush
      latecomer check  queries/NAME.yaml --lake lake --report report
      latecomer export queries/NAME.yaml --lake lake --table results --to results.parquet

    Exit codes: 0 done; 1 a check failed; 2 the input or the query is wrong; 3 another process is at work on the same
    tables; 4 an internal error or a Java process that died; 130 interrupted; 143 terminated.
    """


@main.command()
@LAKE
@click.option("--stream", metavar="NAME", help="Stream that all rows belong to.")
@click.option("--by", metavar="COLUMN", help="Column that names each row's stream.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(stream_specs.FORMATS),
    help="Format of the files.  [default: by suffix]",
)
@click.option("--event-column", default="event_ts", show_default=True, help="Column that says when the event happened.")
@click.option(
    "--arrival-column",
    default="arrival_ts",
    show_default=True,
    help="Column that says when the row arrived; it may be missing.",
)
@click.option(
    "--timezone", default="UTC", show_default=True, help="Time zone of times that name none, in every column."
)
@click.option(
    "--time-unit",
    type=click.Choice(list(stream_specs.TIME_UNITS)),
    default="us",
    show_default=True,
    help="What numbers in the two time columns count since 1970.",
)
@click.option(
    "--max-future",
    default="1 d",
    show_default=True,
    help="A row whose event time is this much later than its arrival goes to quarantine, and stays there: the same content is not "
    "read again with another bound.",
)
@click.option(
    "--max-quarantined",
    type=click.FloatRange(0, 1),
    default=1.0,
    metavar="SHARE",
    help="Refuse the files, and ingest nothing, where more than this share of a stream's rows in them cannot be used, 0.05 for 5%.  [default: 1, "
    "never]",
)
@click.option(
    "--recursive/--no-recursive",
    help="Also read the files in folders of a folder, all the way down, but not along links.",
)
@click.option(
    "--streams",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="Folder of stream files: DIR/NAME.yaml has these options for stream NAME, DIR/_by_COLUMN.yaml for --by COLUMN. What is said here wins.",
)
@JSON
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.pass_context
def ingest(
    context: click.Context,
    lake_uri: str,
    stream: str | None,
    by: str | None,
    format_: str | None,
    event_column: str,
    arrival_column: str,
    timezone: str,
    time_unit: str,
    max_future: str,
    max_quarantined: float,
    recursive: bool,
    streams: Path | None,
    as_json: bool,
    paths: tuple[str, ...],
) -> None:
    """Read files and store their rows in arrival order.

    A PATH is a file or a folder, or an object or a folder of a bucket (s3://BUCKET/KEY).
    Say which stream they are of: --stream NAME, --by COLUMN, or NAME=PATH for each path, as in
    `views=landing/views buys=landing/buys`. The rows of one call, of all its streams, are ordered by their `seq` column, if they
    have none by arrival time, else as they stand in the
    files; they follow everything ingested before. A file whose content was ingested before is skipped; one that has grown
    since comes in again with all its rows, and is named. Rows that cannot be used go to quarantine.
    """
    from latecomer.ingest import ingest as stage
    from latecomer.lake.lake import Lake
    from latecomer.specs.durations import parse_duration

    options = IngestOptions(
        stream=stream,
        by=by,
        format=format_,
        event_column=event_column,
        arrival_column=arrival_column,
        timezone=timezone,
        time_unit=time_unit,
        max_future_us=parse_duration(max_future, source="ingest", key="--max-future"),
        max_quarantined=max_quarantined,
        recursive=recursive,
    )
    named = list(paths) if stream is not None or by is not None else _by_name(paths)
    said = {
        {"format_": "format", "max_future": "max_future_us"}.get(name, name)
        for name in context.params
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }

    def own(asked: IngestOptions) -> IngestOptions:
        name = f"_by_{asked.by}" if asked.stream is None else asked.stream
        file = None if streams is None else stream_specs.stream_file(streams, name)
        found = {} if file is None else stream_specs.load_stream(file)
        return replace(asked, **{key: value for key, value in found.items() if key not in said})

    done = stage.ingest(Lake(lake_uri), named, options, progress=_progress, with_stream_file=own)
    quarantined = sum(done.rows_quarantined.values())
    _report(
        as_json,
        {
            "rows_read": done.rows_read,
            "ingested": sum(done.rows_ingested.values()),
            "quarantined": quarantined,
            "quarantine_reasons": done.reasons,
            "streams": done.rows_ingested,
            "skipped_files": done.skipped_files,
            "left_out_files": done.left_out_files,
            "changed_files": done.changed_files,
            "seq_from": done.seq_from,
            "seq_to": done.seq_to,
            "event_from": None if done.event_times_us is None else formatting.instant(done.event_times_us[0]),
            "event_to": None if done.event_times_us is None else formatting.instant(done.event_times_us[1]),
            "seconds": round(done.seconds, 3),
        },
        f"ingested {quantity(sum(done.rows_ingested.values()), 'row')} into {quantity(len(done.rows_ingested), 'stream')}, "
        f"put {quarantined:,} into quarantine, skipped {quantity(len(done.skipped_files), 'file')} ingested before "
        f"({done.seconds:.1f} s)"
        + formatting.event_times(done.event_times_us)
        + "".join(f"\n  {count:,} into quarantine: {reason}" for reason, count in list(done.reasons.items())[:5])
        + formatting.listed(
            done.left_out_files,
            "left out, of unknown type, or folders (to ingest them, name them, files with --format; or say --recursive)",
        )
        + formatting.listed(
            done.changed_files,
            "files were ingested before with other content or options (if they grew, their earlier rows are now there twice)",
        ),
    )


def _by_name(paths: tuple[str, ...]) -> dict[str, list[str]]:
    """The paths of each stream, from ``NAME=PATH``."""
    from latecomer.lake.errors import InputError

    found: dict[str, list[str]] = {}
    for each in paths:
        name, equals, path = each.partition("=")
        if not equals:
            remedy = "say --stream NAME or --by COLUMN, or give each path as NAME=PATH"
            raise InputError("ingest", each, "does not say which stream its rows are of", remedy)
        found.setdefault(name, []).append(path)
    return found


@main.command()
@QUERY
@LAKE
@click.option(
    "--rows-per-batch", type=click.IntRange(min=1), metavar="N", help="Most rows per micro-batch.  [default: 4000000]"
)
@click.option(
    "--until-seq", type=click.IntRange(min=0), metavar="N", help="Stop after the row with this number (`seq`)."
)
@click.option("--flush", is_flag=True, help="The input is complete: close every window.")
@click.option("--element", metavar="X", help="Membership queries: also list the windows in which X is in every stream.")
@JSON
def run(
    query: Path,
    lake_uri: str,
    rows_per_batch: int | None,
    until_seq: int | None,
    flush: bool,
    element: str | None,
    as_json: bool,
) -> None:
    """Process the rows ingested since the last run, then stop.

    Results are published as soon as the query's quality allows; rows that come too late for that are registered.
    """
    from latecomer.jobs import membership_lookup as elements
    from latecomer.lake.ingest_log import quarantined
    from latecomer.lake.lake import Lake
    from latecomer.spark import run as runner

    spec = _load(query)
    lake, wanted = Lake(lake_uri), None
    if element is not None:
        if not isinstance(spec, MembershipSpec):
            raise spec.fail("kind", spec.kind, "has no elements: only membership does", "leave --element out")
        wanted = elements.typed(lake, spec, element)
    done = runner.run(lake, spec, rows_per_batch=rows_per_batch, until_seq=until_seq, flush=flush, progress=_progress)
    kept_out = quarantined(lake, dict(spec.streams).values())
    counts = _counts(done.rows_read, done.on_time, done.late, 0, kept_out, done.micro_batches, done.seconds)
    more: dict[str, Any] = {"query": spec.name, "seq_to": done.seq_to}
    line = (
        f"{spec.name}: {quantity(done.rows_read, 'row')} in {quantity(done.micro_batches, 'micro-batch', 'micro-batches')}, "
        f"{quantity(done.on_time, 'result')} on time, {quantity(done.late, 'late row')} registered ({done.seconds:.1f} s)"
    )
    if wanted is not None:
        windows = elements.windows_of(lake, spec, wanted)
        more |= {"element": element, "windows": windows}
        line += f"\n{element}: in every stream in {len(windows)} windows" + "".join(f"\n  {w}" for w in windows)
    _report(as_json, counts | more, line)


@main.command()
@QUERY
@LAKE
@click.option(
    "--flush",
    is_flag=True,
    help="Repair all late rows. Without it they wait until their event times span more than the query's `gamma`.",
)
@JSON
def repair(query: Path, lake_uri: str, flush: bool, as_json: bool) -> None:
    """Correct the results for late rows, until they are exact."""
    from latecomer.lake.ingest_log import quarantined
    from latecomer.lake.lake import Lake
    from latecomer.spark import repair as runner

    spec = _load(query)
    lake = Lake(lake_uri)
    done = runner.repair(lake, spec, flush=flush, progress=_progress)
    late, kept_out = done.late_repaired + done.pending, quarantined(lake, dict(spec.streams).values())
    counts = _counts(done.late_repaired, 0, late, done.corrections, kept_out, done.batches, done.seconds)
    _report(
        as_json,
        counts | {"query": spec.name, "pending": done.pending, "late_repaired": done.late_repaired},
        f"{spec.name}: {quantity(done.late_repaired, 'late row')} repaired in {quantity(done.batches, 'batch', 'batches')}, "
        f"{quantity(done.corrections, 'correction')}, {done.pending:,} pending ({done.seconds:.1f} s)",
    )


@main.command()
@QUERY
@LAKE
@click.option(
    "--from",
    "start",
    required=True,
    metavar="TIME",
    help="Windows that start at this time or later; ISO 8601, UTC if it names no zone.",
)
@click.option("--to", "end", required=True, metavar="TIME", help="Windows that start before this time.")
@JSON
def backfill(query: Path, lake_uri: str, start: str, end: str, as_json: bool) -> None:
    """Recompute the results of past windows.

    The closed windows of the range are answered again from everything stored, and the answers replace earlier backfills.
    In `results` they are the next revision of each window's answer, `repaired`, published by the last row that was stored.
    Running it twice changes nothing. Joins have no windows to backfill: repair makes them exact.
    """
    from latecomer.lake.lake import Lake
    from latecomer.spark import backfill as runner

    spec = _load(query)
    start_us, end_us = _instant("--from", start), _instant("--to", end)
    if start_us >= end_us:
        raise SpecError("backfill", "--from", start, f"is not before --to {end}", "give a range of event time")
    done = runner.backfill(Lake(lake_uri), spec, start_us, end_us)
    _report(
        as_json,
        {"query": spec.name, "from": start, "to": end, "rows": done.rows, "seconds": round(done.seconds, 3)},
        f"{spec.name}: {done.rows:,} result rows for windows from {start} to {end} ({done.seconds:.1f} s)",
    )


@main.command()
@QUERY
@LAKE
@JSON
def adapt(query: Path, lake_uri: str, as_json: bool) -> None:
    """Learn from all stored history how long to wait.

    For strategies that adapt, of joins (how long to retain rows) and of windows (how long to wait). Later micro-batches use it.
    """
    from latecomer.lake.lake import Lake
    from latecomer.spark import adapt as runner

    spec = _load(query)
    started = time.monotonic()
    effective, parameters = runner.adapt(Lake(lake_uri), spec)
    _report(
        as_json,
        {
            "query": spec.name,
            "effective_seq": effective,
            "parameters": parameters,
            "seconds": round(time.monotonic() - started, 3),
        },
        f"{spec.name}: new parameters hold from row {effective} on ({time.monotonic() - started:.1f} s)",
    )


@main.command()
@QUERY
@LAKE
@click.option(
    "--report", type=click.Path(path_type=Path), metavar="DIR", help="Folder to write the HTML quality report to."
)
@click.option(
    "--audit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Also answer N past periods anew by plain SQL, others each time, and compare.",
)
@JSON
def check(query: Path, lake_uri: str, report: Path | None, audit: int | None, as_json: bool) -> None:
    """Check that a query keeps its promises; exit 1 if not.

    Checked are its quality (recall, error or hit rate), that its results are complete after repair, that no row was lost
    and that no result stands twice. That takes no Spark; an audit does, and the time that it takes to answer again.

    Of the periods 95% have to reach the target, less what chance takes from a small number: "in 21 of 24 periods". A
    period whose late rows await repair is not judged yet.
    """
    from latecomer.lake.lake import Lake
    from latecomer.quality import checks

    spec = _load(query)
    outcome = checks.check(Lake(lake_uri), spec, report_dir=report, audit=audit or 0, progress=_progress)
    count = len(outcome.results)
    failed = f"{len(outcome.failures)} of {count} checks failed"
    lines = [f"{spec.name}: {f'all {count} checks passed' if outcome.success else failed}"]
    if outcome.unjudged:
        lines.append(f"  {outcome.to_judge} (latecomer repair --flush)")
    if outcome.silent:
        lines.append(f"  {outcome.silent}: what is not answered yet waits for it")
    if outcome.report is not None:
        lines.append(f"  report: {outcome.report}")
    _report(
        as_json,
        {
            "query": spec.name,
            "success": outcome.success,
            "expectations": outcome.results,
            "periods": outcome.periods,
            "periods_unjudged": outcome.unjudged,
            "late_pending": outcome.pending,
            "silent": outcome.silent,
            "report": str(outcome.report) if outcome.report else None,
        },
        "\n".join(lines),
    )
    if not outcome.success:
        for failure in outcome.failures:
            click.echo(f"{spec.name}: FAILED {failure}", err=True)
        sys.exit(1)


@main.command()
@QUERY
@LAKE
@click.option(
    "--table",
    "table_name",
    required=True,
    type=click.Choice(["results", "on_time", "corrections", "late", "ledger", "quarantine"]),
    help="Table to write; `results` is what to use, the others say how it came about.",
)
@click.option(
    "--to",
    "target",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File to write, .parquet or .csv.",
)
@JSON
def export(query: Path, lake_uri: str, table_name: str, target: Path, as_json: bool) -> None:
    """Write one of a query's tables to a file.

    Rows are sorted; timestamps are in UTC, to the microsecond.
    """
    from latecomer.lake import result_views
    from latecomer.lake.lake import Lake
    from latecomer.ledger import ledger as books

    spec, lake = _load(query), Lake(lake_uri)
    rows = books.ledger(lake, spec) if table_name == "ledger" else result_views.view(lake, spec, table_name)
    result_views.write_file(rows, target)
    _report(as_json, {"rows": rows.num_rows, "file": str(target)}, f"{rows.num_rows:,} rows to {target}")


@main.command()
@QUERY
@LAKE
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.png", help="Also draw it.")
@JSON
def explain(query: Path, lake_uri: str, plot: Path | None, as_json: bool) -> None:
    """Show what other waits would have given.

    From stored history: how complete answers would have been for each possible wait or retention, how many rows it would
    have held, and which was used. A theta join also shows its plan, a membership what its filters saved; where they promise nothing,
    that alone.
    """
    from latecomer.jobs.explain import explain as job
    from latecomer.lake.lake import Lake

    spec = _load(query)
    curve = job.explain(Lake(lake_uri), spec, plot=plot)
    _report(as_json, curve.to_dict(), curve.to_text())


@main.command()
@click.argument("queries", nargs=-1, required=True, metavar="QUERY.yaml...", type=click.Path(path_type=Path))
@click.option("--lake", "lake_uri", metavar="URI", help="A lake whose streams and columns they are to fit, too.")
@JSON
def validate(queries: tuple[Path, ...], lake_uri: str | None, as_json: bool) -> None:
    """Check query files without running them, each to its first mistake; starts no Spark.

    Exit code 2 where one of them has a mistake. For a repository of queries, before they reach Airflow.
    """
    from latecomer.lake import stream_schemas
    from latecomer.lake.lake import Lake
    from latecomer.specs.errors import SpecError

    lake = None if lake_uri is None else Lake(lake_uri)
    problems: dict[str, str] = {}
    for query in queries:
        try:
            spec = _load(query)
            if lake is not None:
                stream_schemas.check(lake, spec)
        except SpecError as error:
            problems[str(query)] = str(error)
    if problems and not as_json:
        for line in problems.values():
            click.echo(f"latecomer: {line}", err=True)
    good = len(queries) - len(problems)
    _report(as_json, {"valid": good, "problems": problems}, f"{good} of {quantity(len(queries), 'query file')} valid")
    if problems:
        raise SystemExit(2)


@main.command()
@LAKE
@click.option("--query", "only", multiple=True, metavar="NAME", help="Only of this query; may be repeated.")
@JSON
def status(lake_uri: str, only: tuple[str, ...], as_json: bool) -> None:
    """Show streams, queries, rows, backlog, last run and check."""
    from latecomer.jobs import status as job
    from latecomer.lake.lake import Lake

    found = job.status(Lake(lake_uri), only)
    _report(as_json, found, job.render(found))


@main.command()
@click.argument("query", metavar="QUERY.yaml|NAME")
@LAKE
@click.option("--yes", is_flag=True, help="Delete. Without it, only say what would be deleted.")
@JSON
def forget(query: str, lake_uri: str, yes: bool, as_json: bool) -> None:
    """Delete all that the lake holds of a query, to begin it again.

    Its results, late rows, ledger, state and checks go; events, quarantine and the query file stay. The next `run` starts
    from the first row, with the file as it is then.
    """
    from latecomer.lake import forget as job
    from latecomer.lake.errors import InputError
    from latecomer.lake.lake import Lake

    lake = Lake(lake_uri)
    name = query if NAME.fullmatch(query) else _load(Path(query)).name
    found = job.forget(lake, name) if yes else job.stored_rows(lake, name)
    rows = {area: "damaged" if count is None else f"{count:,} rows" for area, count in found.items()}
    listed = ", ".join(f"{area} ({count})" for area, count in rows.items()) or "no table"
    if not yes and (found or name in job.half_forgotten(lake)):
        raise InputError(f"query {name}", None, f"would lose {listed}", "add --yes to delete that; events stay")
    _report(
        as_json, {"query": name, "deleted": found}, f"{name}: deleted {listed}; its next run starts from the first row"
    )


@main.command()
@click.argument("name", metavar="NAME")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder with zeek_events.parquet (Zeek's network logs) and ooo_events.parquet (phones' events). "
    "Without it only generated data is measured.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("build/bench"),
    show_default=True,
    metavar="DIR",
    help="Folder for figures and summary.",
)
@click.option("--quick", is_flag=True, help="Tiny workloads: shows in seconds that it runs; the figures mean nothing.")
@JSON
def bench(name: str, data: Path | None, out: Path, quick: bool, as_json: bool) -> None:
    """Measure a query kind against published methods.

    NAME is join, aggregate, topk, theta_join or membership. Writes figures (PNG and CSV) and summary.json.
    """
    from latecomer import bench as benches
    from latecomer.lake.errors import InputError
    from latecomer.specs.errors import did_you_mean

    if name not in benches.NAMES:
        raise InputError("bench", name, "is not a benchmark", did_you_mean(name, benches.NAMES))
    if data is not None and not data.is_dir():
        raise InputError("--data", str(data), "is not a folder", "name the folder that holds the Parquet files")
    try:
        (out / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            "--out", str(out), error.strerror or str(error), "choose a folder that can be written"
        ) from None
    started = time.monotonic()
    found = benches.run(name, data, out / name, _progress, quick=quick)
    (out / name / "summary.json").write_text(json.dumps(found, indent=2, default=str) + "\n", encoding="utf-8")
    seconds = round(time.monotonic() - started, 1)
    _report(
        as_json,
        found | {"seconds": seconds},
        json.dumps(found, indent=2, default=str) + f"\n{out / name} ({seconds} s)",
    )


@main.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--example", is_flag=True, help="Also write a file of generated events, on which all five queries run.")
@JSON
def init(folder: Path, example: bool, as_json: bool) -> None:
    """Make a project folder: one query file per kind, landing folders."""
    from latecomer.jobs import init_project

    lines = init_project.make(folder, example)
    _report(as_json, {"folder": str(folder), "made": lines}, "\n".join(lines))


def _load(query: Path) -> Spec:
    from latecomer.specs.loading import load_query

    return load_query(query)


def _instant(option: str, text_: str) -> int:
    """ISO 8601 as microseconds since the epoch; UTC where it names no zone."""
    from datetime import UTC, datetime, timedelta

    try:
        moment = datetime.fromisoformat(text_)
    except ValueError:
        raise SpecError("backfill", option, text_, "is not a time", "write it as 2013-01-31T12:00:00Z") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _counts(
    rows: int, on_time: int, late: int, repaired: int, quarantined: int, batches: int, seconds: float
) -> dict[str, Any]:
    return {
        "rows_read": rows,
        "on_time": on_time,
        "late": late,
        "repaired": repaired,
        "quarantined": quarantined,
        "micro_batches": batches,
        "seconds": round(seconds, 3),
    }


def _progress(line: str) -> None:
    click.echo(line, err=True)


def _report(as_json: bool, values: dict[str, Any], line: str) -> None:
    click.echo(json.dumps(values, default=str) if as_json else line)


def command() -> None:
    """The process: run the command, stop Spark, and leave without waiting for threads of native libraries.

    Those threads (Arrow's, delta-rs's) outlive the interpreter now and then, and the process then aborts with its work done.
    """
    if not os.environ.get("LATECOMER_DEBUG"):
        logging.getLogger().addHandler(logging.NullHandler())  # libraries log, with tracebacks, what they raise too
    end_on_term()
    try:
        main()
        code: Any = 0
    except SystemExit as leave:
        code = leave.code
    if code is not None and not isinstance(code, int):
        click.echo(code, err=True)
        code = 1
    if "pyspark" in sys.modules:
        from py4j.protocol import Py4JError
        from pyspark.sql import SparkSession

        with contextlib.suppress(OSError, Py4JError):  # the Java process may be gone
            active = SparkSession.getActiveSession()
            if active is not None:
                active.stop()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    command()
