"""`latecomer ingest` and `latecomer streams`: take in rows, and show what the lake has of each stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from latecomer.ingest.options import IngestOptions
from latecomer.ingest.stream_contract import with_stream_file
from latecomer.jobs import formatting
from latecomer.jobs.command_options import JSON, LAKE, SPARK, show_progress, show_result
from latecomer.specs import streams as stream_specs
from latecomer.specs.errors import quantity

if TYPE_CHECKING:
    from latecomer.ingest.dry_run import DryRun
    from latecomer.ingest.ingest import IngestResult
    from latecomer.lake.lake import Lake

MOST_SHOWN = 5
"""Most reasons for quarantine that the result shows."""


@click.command()
@LAKE
@click.option("--stream", metavar="NAME", help="The stream of all rows.")
@click.option("--by", metavar="COLUMN", help="The column that names each row's stream.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(stream_specs.FORMATS),
    help="The format of the files.  [default: by suffix]",
)
@click.option("--event-column", default="event_ts", show_default=True, help="The column with the event time.")
@click.option(
    "--arrival-column",
    default="arrival_ts",
    show_default=True,
    help="The column with the arrival time. It may be missing.",
)
@click.option(
    "--timezone", default="UTC", show_default=True, help="The time zone of times that name none, in every column."
)
@click.option(
    "--time-unit",
    type=click.Choice(list(stream_specs.TIME_UNITS)),
    default="us",
    show_default=True,
    help="The unit of numbers in the two time columns, which count from 1970.",
)
@click.option(
    "--max-future",
    default="1 d",
    show_default=True,
    help="A row whose event time is later than its arrival by more than this goes to quarantine. It stays there: "
    "the same content is not read again with another bound.",
)
@click.option(
    "--max-age",
    metavar="DURATION",
    help="A row whose arrival is later than its event time by more than this goes to quarantine.  [default: derived "
    "from the stream's own lateness, at least 90 d]",
)
@click.option(
    "--max-quarantined",
    type=click.FloatRange(0, 1),
    default=1.0,
    metavar="SHARE",
    help="Refuse the files and ingest nothing if more than this share of a stream's rows in one of them is unusable; "
    "0.05 is 5%.  [default: 1, never]",
)
@click.option(
    "--recursive/--no-recursive",
    help="Also read the folders of a folder, at any depth, but do not follow links.",
)
@click.option(
    "--streams",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="The folder of stream files. DIR/NAME.yaml is the contract of stream NAME, DIR/_by_COLUMN.yaml that for "
    "--by COLUMN. An option on the command line takes precedence.",
)
@click.option("--dry-run", is_flag=True, help="Read everything and report what would happen, but write nothing.")
@click.option(
    "--retype",
    metavar="STREAM",
    help="Instead of reading files, change the types of stored columns of this stream, given as COLUMN=TYPE. Rows with "
    "a value that does not fit move to quarantine.",
)
@SPARK
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
    max_age: str | None,
    max_quarantined: float,
    recursive: bool,
    streams: Path | None,
    dry_run: bool,
    retype: str | None,
    as_json: bool,
    paths: tuple[str, ...],
) -> None:
    """Read files, tables and topics, and store their rows in arrival order.

    A PATH is a file or a folder, or an object or a folder of a store (s3://BUCKET/KEY). Name the stream of the rows:
    --stream NAME, --by COLUMN, or NAME=PATH for each path, as in `views=landing/views buys=landing/buys`. A stream
    whose file states a source, a Delta table or a Kafka topic, is named without a path.

    The rows of one call, of all its streams together, are ordered by their `seq` column. Without that column they are
    ordered by arrival time, and without arrival times by their place in the files. They follow all rows that were
    ingested before.

    A file whose content was ingested before is skipped. A file that has grown since is ingested again with all its
    rows, and is named. Unusable rows go to quarantine.
    """
    from latecomer.lake.lake import Lake
    from latecomer.specs.durations import parse_duration

    lake = Lake(lake_uri)
    if retype is not None:
        _retype(lake, retype, paths, as_json)
        return
    options = IngestOptions(
        stream=stream,
        by=by,
        format=format_,
        event_column=event_column,
        arrival_column=arrival_column,
        timezone=timezone,
        time_unit=time_unit,
        max_future_us=parse_duration(max_future, source="ingest", key="--max-future"),
        max_age_us=None if max_age is None else parse_duration(max_age, source="ingest", key="--max-age"),
        max_quarantined=max_quarantined,
        recursive=recursive,
    )
    sources = list(paths) if stream is not None or by is not None else _by_stream(paths)
    fields = {"format_": "format", "max_future": "max_future_us", "max_age": "max_age_us"}
    given = {
        fields.get(name, name)
        for name in context.params
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }
    complete = with_stream_file(streams, given)
    if dry_run:
        from latecomer.ingest.dry_run import dry_run as report

        outcome = report(lake, sources, options, complete)
        show_result(as_json, _dry_run_values(outcome), _dry_run_text(outcome))
        return
    from latecomer.ingest import ingest as stage

    done = stage.ingest(lake, sources, options, progress=show_progress, with_stream_file=complete)
    show_result(as_json, _result_values(done), _result_text(done))


def _by_stream(arguments: tuple[str, ...]) -> dict[str, list[str]]:
    """Group paths by stream, given as ``NAME=PATH``; a name alone is a stream with a source of its own."""
    from latecomer.lake.errors import InputError
    from latecomer.specs.names import STREAM

    paths: dict[str, list[str]] = {}
    for argument in arguments:
        name, equals, path = argument.partition("=")
        if not equals and not STREAM.fullmatch(name):
            remedy = "say --stream NAME or --by COLUMN, or give each path as NAME=PATH"
            raise InputError("ingest", argument, "does not name the stream of its rows", remedy)
        paths.setdefault(name, []).extend([path] if equals else [])
    return paths


def _retype(lake: Lake, stream: str, arguments: tuple[str, ...], as_json: bool) -> None:
    """Change the types of stored columns, given as ``COLUMN=TYPE``."""
    from latecomer.ingest.retype import retype
    from latecomer.lake.errors import InputError
    from latecomer.specs.column_types import ColumnTypeError, normal_type

    types: dict[str, str] = {}
    for argument in arguments:
        column, equals, kind = argument.rpartition("=")
        if not equals:
            raise InputError("--retype", argument, "names no type", "write COLUMN=TYPE, such as temp=double")
        try:
            types[column] = normal_type(kind)
        except ColumnTypeError as error:
            raise InputError(f"--retype {column}", kind, error.problem, error.remedy) from None
    done = retype(lake, stream, types, show_progress)
    show_result(
        as_json,
        {
            "stream": stream,
            "columns": done.columns,
            "rows": done.rows,
            "quarantined": sum(done.moved.values()),
            "quarantine_reasons": done.reasons,
            "seconds": round(done.seconds, 3),
        },
        f"{stream}: {_changes(done.columns)} in {quantity(done.rows, 'row')}, put {sum(done.moved.values()):,} into "
        f"quarantine ({done.seconds:.1f} s)" + _reasons(list(done.reasons.items())),
    )


def _changes(columns: Mapping[str, tuple[str, str]]) -> str:
    """Return the types before and after, as text."""
    if not columns:
        return "the columns have these types already"
    return "changed " + ", ".join(f"{name} from {before} to {after}" for name, (before, after) in columns.items())


# -------------------------------------------------------------------------------------------------------------- results


def _result_values(done: IngestResult) -> dict[str, object]:
    return {
        "rows_read": done.rows_read,
        "ingested": sum(done.rows_ingested.values()),
        "quarantined": sum(done.rows_quarantined.values()),
        "repeated": sum(done.rows_repeated.values()),
        "quarantine_reasons": done.reasons,
        "streams": done.rows_ingested,
        "skipped_files": done.skipped_files,
        "left_out_files": done.left_out_files,
        "changed_files": done.changed_files,
        "notes": done.notes,
        "seq_from": done.seq_from,
        "seq_to": done.seq_to,
        "event_from": None if done.event_times_us is None else formatting.instant(done.event_times_us[0]),
        "event_to": None if done.event_times_us is None else formatting.instant(done.event_times_us[1]),
        "seconds": round(done.seconds, 3),
    }


def _result_text(done: IngestResult) -> str:
    repeated = sum(done.rows_repeated.values())
    left_out = f"left out {quantity(repeated, 'row')} that repeat an event, " if repeated else ""
    return (
        f"ingested {quantity(sum(done.rows_ingested.values()), 'row')} "
        f"into {quantity(len(done.rows_ingested), 'stream')}, {left_out}"
        f"put {sum(done.rows_quarantined.values()):,} into quarantine, "
        f"skipped {quantity(len(done.skipped_files), 'file')} ingested before ({done.seconds:.1f} s)"
        + formatting.event_times(done.event_times_us)
        + _reasons(list(done.reasons.items()))
        + formatting.listed(done.left_out_files, LEFT_OUT)
        + formatting.listed(
            done.changed_files,
            "files were ingested before with other content or options (if they grew, their earlier rows are now stored "
            "twice)",
        )
    )


LEFT_OUT = (
    "left out: folders, unfinished files, or files of unknown format (name them to ingest them, files with --format; "
    "or say --recursive)"
)


def _reasons(counts: Sequence[tuple[str, int]]) -> str:
    lines = [f"\n  {count:,} into quarantine: {reason}" for reason, count in counts[:MOST_SHOWN]]
    more = len(counts) - MOST_SHOWN
    return "".join(lines) + (f"\n  and {quantity(more, 'more reason')}" if more > 0 else "")


def _dry_run_values(outcome: DryRun) -> dict[str, object]:
    first, last = outcome.event_times_us or (None, None)
    return asdict(outcome) | {
        "event_from": None if first is None else formatting.instant(first),
        "event_to": None if last is None else formatting.instant(last),
    }


def _dry_run_text(outcome: DryRun) -> str:
    lines = ["nothing was written"]
    if not outcome.streams:
        lines = [f"nothing is new ({quantity(len(outcome.skipped_files), 'file')} ingested before)"]
    if outcome.refused is not None:
        lines.append(f"would be refused: {outcome.refused}")
    for name, stream in outcome.streams.items():
        repeated = f", {stream.repeated:,} repeat an event" if stream.repeated else ""
        lines.append(f"{name}: {quantity(stream.rows, 'row')}{repeated}, {stream.quarantined:,} into quarantine")
        lines += [f"  {column}: {kind}" for column, kind in stream.columns.items()]
        lines += formatting.lateness(stream.lateness)
    lines.append(formatting.event_times(outcome.event_times_us).strip())
    for example in outcome.examples:
        lines.append(f"{example.rows:,} into quarantine: {example.reason}")
        lines.append(f"  {example.file}, line {example.line}: {formatting.one_line(example.raw, 200)}")
    lines += outcome.notes
    lines.append(formatting.listed(outcome.left_out_files, LEFT_OUT).strip())
    return "\n".join(line for line in lines if line)


# -------------------------------------------------------------------------------------------------------------- streams


@click.command()
@LAKE
@JSON
@click.argument("names", nargs=-1, metavar="[STREAM...]")
def streams(lake_uri: str, as_json: bool, names: tuple[str, ...]) -> None:
    """List streams with their columns, types, rows, lateness, repeated rows, quarantine and last event.

    Without a name all streams are listed. It starts no Spark.
    """
    from latecomer.jobs import stream_list
    from latecomer.lake.lake import Lake

    listed = stream_list.list_streams(Lake(lake_uri), names)
    show_result(as_json, {"lake": lake_uri, "streams": listed}, stream_list.show(listed))
