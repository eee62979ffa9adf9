"""The ``latecomer`` command.

Each command imports what it needs when it runs, so that `--help` is instant.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import warnings
from pathlib import Path

import click

from latecomer import __version__, api
from latecomer.jobs import expire_command, formatting, ingest_command, install_commands, spark_command
from latecomer.jobs.command_options import JSON, LAKE, SPARK, show_progress, show_result, to_file
from latecomer.jobs.exit_codes import Group, end_in_time, end_process
from latecomer.specs.errors import SpecError, quantity
from latecomer.specs.judging import parse_time
from latecomer.specs.membership import MembershipSpec
from latecomer.specs.names import NAME
from latecomer.specs.spec import Spec

QUERY = click.argument("query", type=click.Path(path_type=Path))


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
      latecomer publish queries/NAME.yaml --lake lake
      latecomer export queries/NAME.yaml --lake lake --table results --to results.parquet

    `latecomer advance queries --lake lake` takes all steps of all queries that are due.

    Exit codes: 0 done; 1 a check failed; 2 the input or the query is wrong; 3 another process is at work on the same
    tables; 4 an internal error, or a Java process or a Spark server that was lost; 130 interrupted; 143 terminated.
    """


main.add_command(expire_command.expire)
main.add_command(ingest_command.ingest)
main.add_command(ingest_command.streams)
main.add_command(install_commands.jars)
main.add_command(install_commands.doctor)
main.add_command(spark_command.spark)


@main.command()
@QUERY
@LAKE
@click.option(
    "--rows-per-batch",
    type=click.IntRange(min=1),
    metavar="N",
    help="The most rows of a micro-batch.  [default: 4000000]",
)
@click.option("--until-seq", type=click.IntRange(min=0), metavar="N", help="Stop after the row with this `seq`.")
@click.option("--flush", is_flag=True, help="The input is complete: close every window.")
@click.option("--element", metavar="X", help="Of a membership: also list the windows in which X is in every stream.")
@SPARK
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
    """Process the rows that were ingested since the last run, then stop.

    Results are published as soon as the query's quality allows. Rows that come too late are registered.
    """
    from latecomer.jobs import membership_lookup
    from latecomer.lake.ingest_log import quarantined

    spec, client = _load(query), _client(lake_uri)
    lake, typed_element = client.tables, None
    if element is not None:
        if not isinstance(spec, MembershipSpec):
            raise spec.fail("kind", spec.kind, "has no elements: only a membership has", "leave --element out")
        typed_element = membership_lookup.typed(lake, spec, element)
    done = client.run(api.Query(spec), rows_per_batch=rows_per_batch, until_seq=until_seq, flush=flush)
    in_quarantine = quarantined(lake, spec.stream_names)
    counts = _counts(done.rows_read, done.on_time, done.late, 0, in_quarantine, done.micro_batches, done.seconds)
    more: dict[str, object] = {"query": spec.name, "seq_to": done.seq_to}
    line = (
        f"{spec.name}: {quantity(done.rows_read, 'row')} "
        f"in {quantity(done.micro_batches, 'micro-batch', 'micro-batches')}, "
        f"{quantity(done.on_time, 'result')} on time, "
        f"{quantity(done.late, 'late row')} registered ({done.seconds:.1f} s)"
    )
    if typed_element is not None and isinstance(spec, MembershipSpec):
        windows = membership_lookup.windows_of(lake, spec, typed_element)
        more |= {"element": element, "windows": windows}
        line += f"\n{element}: in every stream in {len(windows)} windows" + "".join(f"\n  {w}" for w in windows)
    show_result(as_json, counts | more, line)


@main.command()
@QUERY
@LAKE
@click.option(
    "--flush",
    is_flag=True,
    help="Repair all late rows. Without it, late rows wait until their event times span more than the query's `gamma`.",
)
@SPARK
@JSON
def repair(query: Path, lake_uri: str, flush: bool, as_json: bool) -> None:
    """Correct the results for late rows. After `run --flush` and `repair --flush` they are exact."""
    from latecomer.lake.ingest_log import quarantined

    spec, client = _load(query), _client(lake_uri)
    done = client.repair(api.Query(spec), flush=flush)
    late, in_quarantine = done.late_repaired + done.pending, quarantined(client.tables, spec.stream_names)
    counts = _counts(done.late_repaired, 0, late, done.corrections, in_quarantine, done.batches, done.seconds)
    show_result(
        as_json,
        counts | {"query": spec.name, "pending": done.pending, "late_repaired": done.late_repaired},
        f"{spec.name}: {quantity(done.late_repaired, 'late row')} repaired "
        f"in {quantity(done.batches, 'batch', 'batches')}, "
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
    help="Windows that start at this time or later. ISO 8601, in UTC if it names no zone.",
)
@click.option("--to", "end", required=True, metavar="TIME", help="Windows that start before this time.")
@SPARK
@JSON
def backfill(query: Path, lake_uri: str, start: str, end: str, as_json: bool) -> None:
    """Recompute the results of past windows.

    The closed windows of the range are answered again from everything stored, and the answers replace earlier
    backfills. In `results` each is the next revision of its window's answer, with provenance `repaired`, published by
    the last row that was stored. Running it twice changes nothing. Joins have no windows; `repair` makes them exact.
    """
    from latecomer.lake.lake import Lake
    from latecomer.spark import backfill as runner

    spec = _load(query)
    start_us, end_us = (
        parse_time(text, source="backfill", key=option) for option, text in (("--from", start), ("--to", end))
    )
    if start_us >= end_us:
        raise SpecError("backfill", "--from", start, f"is not before --to {end}", "give a range of event time")
    done = runner.backfill(Lake(lake_uri), spec, start_us, end_us)
    show_result(
        as_json,
        {"query": spec.name, "from": start, "to": end, "rows": done.rows, "seconds": round(done.seconds, 3)},
        f"{spec.name}: {done.rows:,} result rows for windows from {start} to {end} ({done.seconds:.1f} s)",
    )


@main.command()
@QUERY
@LAKE
@SPARK
@JSON
def adapt(query: Path, lake_uri: str, as_json: bool) -> None:
    """Learn from all stored history how long to wait or to retain.

    A join learns how long to retain rows, a windowed query how long to wait. Later micro-batches use it. Strategies
    that do not learn refuse it.
    """
    from latecomer.lake.lake import Lake
    from latecomer.spark import adapt as runner

    spec = _load(query)
    started = time.monotonic()
    effective, parameters = runner.adapt(Lake(lake_uri), spec)
    show_result(
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
    "--report", type=click.Path(path_type=Path), metavar="DIR", help="Write an HTML quality report to this folder."
)
@click.option(
    "--audit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Also answer N past periods again by plain SQL, different ones each time, and compare every result.",
)
@SPARK
@JSON
def check(query: Path, lake_uri: str, report: Path | None, audit: int | None, as_json: bool) -> None:
    """Check that a query keeps its promises; exit with 1 if not.

    The checks: the quality (recall, error or hit rate) reaches its target, the results are complete after repair, no
    row was lost, and no result is stored twice. They start no Spark. An audit does, and takes the time of answering
    again.

    A period is judged once, when no row of it is expected any more and its late rows are repaired. The target has to
    be reached in 95% of the last 100 judged periods, less the number that chance explains: 9 of 100 may miss. The
    query file can state other periods (`quality.over`, `since`, `exclude`).
    """
    spec = _load(query)
    outcome = _client(lake_uri).check(api.Query(spec), report=report, audit=audit or 0)
    count = len(outcome.results)
    failed = f"{len(outcome.failures)} of {count} checks failed"
    lines = [f"{spec.name}: {f'all {count} checks passed' if outcome.success else failed}"]
    if outcome.promise:
        lines.append(f"  {outcome.promise}")
    if outcome.unjudged_message:
        lines.append(f"  {outcome.unjudged_message}{' (latecomer repair --flush)' if outcome.pending else ''}")
    if outcome.quarantine_reasons:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in outcome.quarantine_reasons.items())
        lines.append(f"  in quarantine: {formatting.one_line(reasons)}")
    if outcome.silent:
        lines.append(f"  {outcome.silent}: answers that are not published yet wait for it")
    if outcome.report is not None:
        lines.append(f"  report: {outcome.report}")
    show_result(
        as_json,
        {
            "query": spec.name,
            "success": outcome.success,
            "expectations": outcome.results,
            "periods": outcome.periods,
            "promise": outcome.promise,
            "periods_judged": outcome.judged,
            "periods_missed": outcome.missed,
            "periods_missed_new": outcome.new,
            "periods_unjudged": outcome.unjudged,
            "late_pending": outcome.pending,
            "silent": outcome.silent,
            "quarantine_reasons": outcome.quarantine_reasons,
            "report": str(outcome.report) if outcome.report else None,
        },
        "\n".join(lines),
    )
    if not outcome.success:
        for failure in outcome.failures:
            click.echo(f"{spec.name}: FAILED {failure}", err=True)
        sys.exit(1)


@main.command()
@click.argument("queries", nargs=-1, required=True, metavar="QUERY.yaml|DIR...", type=click.Path(path_type=Path))
@LAKE
@click.option("--flush", is_flag=True, help="The input is complete: close every window, and repair all late rows.")
@click.option(
    "--report", type=click.Path(path_type=Path), metavar="DIR", help="Write the HTML quality reports to this folder."
)
@SPARK
@JSON
@click.pass_context
def advance(
    context: click.Context, queries: tuple[Path, ...], lake_uri: str, flush: bool, report: Path | None, as_json: bool
) -> None:
    """Run, repair, check and publish queries as far as each is due, in one process and one Spark session.

    A folder stands for all query files in it. Each step prints the line of its own command, and a query without a due
    step says so; then Spark is not started. A query that fails keeps no other from its steps. The exit code is that of
    the gravest failure: 4, 2, 3, or 1 where a check failed.
    """
    from latecomer.jobs import advance as job
    from latecomer.jobs import exit_codes
    from latecomer.lake.ingest_log import by_stream
    from latecomer.specs import deployment

    commands: dict[str, tuple[click.Command, dict[str, object]]] = {
        "run": (run, {"flush": flush}),
        "repair": (repair, {"flush": flush}),
        "check": (check, {"report": report}),
        "publish": (publish, {}),
    }

    def take(path: Path, step: str) -> int:
        """Take a step as its own command does, and return that command's exit code."""
        command, options = commands[step]
        try:
            context.invoke(command, query=path, lake_uri=lake_uri, as_json=as_json, **options)
        except SystemExit as ended:  # a check that failed
            return ended.code if isinstance(ended.code, int) else 1
        return 0

    files = deployment.read_query_files(deployment.named_query_files(queries))
    lake = _client(lake_uri).tables
    streams = by_stream(lake)
    codes = {2} if files.problems else set()
    for problem in files.problems.values():
        click.echo(problem, err=True)
    for path, spec in files.queries:
        try:
            waits = deployment.streams_without_rows(spec, streams) if streams else None  # an empty lake: `run` says so
            taken = {} if waits else {step: take(path, step) for step in job.steps(lake, spec, flush=flush)}
            codes |= set(taken.values())
            if not taken:
                line = f"{spec.name}: {f'waits, {waits}' if waits else 'nothing to do'}"
                show_result(as_json, {"query": spec.name, "waits": waits or ""}, line)
        except (Exception, KeyboardInterrupt) as error:
            codes.add(code := exit_codes.report(error))
            if code in exit_codes.ENDS:
                break
    sys.exit(next((code for code in (143, 130, 141, 4, 2, 3, 1) if code in codes), 0))


@main.command()
@QUERY
@LAKE
@click.option(
    "--table",
    "table_name",
    required=True,
    type=click.Choice(["results", "on_time", "corrections", "late", "ledger", "quarantine"]),
    help="The table to write. `results` has the answers; the other tables show how they came about.",
)
@click.option(
    "--to",
    "target",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The file to write. It ends in .parquet or .csv.",
)
@JSON
def export(query: Path, lake_uri: str, table_name: str, target: Path, as_json: bool) -> None:
    """Write one of a query's tables to one file.

    Rows are sorted. Timestamps are in UTC, to the microsecond.
    """
    from latecomer.lake import result_views

    spec, client = _load(query), _client(lake_uri)
    is_ledger = table_name == "ledger"
    rows = client.ledger(api.Query(spec)) if is_ledger else result_views.view(client.tables, spec, table_name)
    result_views.write_file(rows, target)
    show_result(as_json, {"rows": rows.num_rows, "file": str(target)}, f"{rows.num_rows:,} rows to {target}")


@main.command()
@QUERY
@LAKE
@click.option("--unchecked", is_flag=True, help="Publish also what no check has seen or passed.")
@SPARK
@JSON
def publish(query: Path, lake_uri: str, unchecked: bool, as_json: bool) -> None:
    """Bring the table `results/<query>` of the lake to the current answers.

    The table holds one row per answer, always the newest revision, and any reader of Delta tables can read it. What is
    new since the last time is added or merged in one commit; twice is once. It starts no Spark.

    What `check` has not seen waits for the next check, and nothing is published after a check that failed (exit code
    1). The query file can say `publish: {when: always}`.
    """
    from latecomer.lake import results_table

    spec, client = _load(query), _client(lake_uri)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the problem of a catalog is a line of this command
        done = client.publish(api.Query(spec), unchecked=unchecked)
    if done.catalog_problem is not None:
        show_progress(done.catalog_problem)
    counts = {"inserted": done.inserted, "updated": done.updated, "deleted": done.deleted}
    periods = {
        "periods_published": results_table.named(done.periods_published),
        "periods_corrected": results_table.named(done.periods_corrected),
    }
    changed = ", ".join(
        f"{count:,} {word}"
        for count, word in zip(counts.values(), ("new", "replaced", "deleted"), strict=True)
        if count
    )
    where = f"{done.uri} has {quantity(done.rows, 'row')} (version {done.version})"
    line = f"{spec.name}: {changed or 'nothing new'}; {where if done.version >= 0 else 'there is no answer yet'}"
    line += f" ({done.seconds:.1f} s)" + ("; newer results wait for a check" if done.waiting else "")
    checked = {"achieved_on_time": done.achieved_on_time, "late_pending": done.late_pending}
    values = {"query": spec.name, "table": done.uri, "version": done.version, "rows": done.rows, **counts, **periods}
    values |= checked | {"waiting": done.waiting, "seconds": round(done.seconds, 3)}
    show_result(as_json, values | {"registered": done.registered}, line)


@main.command()
@QUERY
@LAKE
@click.option(
    "--since",
    required=True,
    type=click.IntRange(min=-1),
    metavar="VERSION",
    help="Show what changed after this version of the table; -1 shows everything.",
)
@to_file("Write the changes to this file, which ends in .parquet or .csv.")
@JSON
def changes(query: Path, lake_uri: str, since: int, target: Path | None, as_json: bool) -> None:
    """Show which rows of the table `results/<query>` are new or different since a version of it, and why.

    A row changes by a first answer, by a late row that `run` recalled, by a repair or by a backfill. A file has a row
    per change: its version and time, the row as it is since then, and the columns as they were before an update.
    """
    from latecomer.lake import result_changes, result_views

    spec, client = _load(query), _client(lake_uri)
    rows = client.changes(api.Query(spec), since)
    counts = result_changes.count(rows)
    version = result_changes.newest_version(client.tables, spec.name)
    listed = [f"  {count:,} {change}{f' ({why})' if why else ''}" for (change, why), count in counts.items()]
    lines = [f"{spec.name}: {quantity(rows.num_rows, 'change')} from version {since} to {version}", *listed]
    if target is not None:
        result_views.write_file(rows, target)
        lines.append(f"  written to {target}")
    named = [{"change": change, "why": why, "rows": count} for (change, why), count in counts.items()]
    values = {"query": spec.name, "since": since, "version": version, "changes": named}
    show_result(as_json, values | {"file": str(target) if target else None}, "\n".join(lines))


@main.command()
@click.argument("statement", metavar="[SQL]", required=False)
@LAKE
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="Print this many rows at most. A file has all of them.",
)
@to_file("Write the rows to this file, which ends in .parquet or .csv.")
@JSON
def sql(statement: str | None, lake_uri: str, rows: int, target: Path | None, as_json: bool) -> None:
    """Answer a statement of SQL over the tables of a lake, by DuckDB (install latecomer[sql]). It only reads.

    The answers that a query has published are the table `results.QUERY`, the events of a stream `events.STREAM`; most
    often QUERY and STREAM alone name them too. Names with a dash or a dot stand in double quotes. Without a statement
    the tables are listed, also those of quarantine and verdicts. It starts no Spark.

    \b
      latecomer sql "select page, sum(views) from views_per_page group by page" --lake lake
    """
    from latecomer.lake import result_views
    from latecomer.lake import sql as job
    from latecomer.lake.lake import Lake

    lake = Lake(lake_uri)
    if statement is None:
        names = [f"{area}.{name}" for area, name in job.tables(lake)]
        show_result(as_json, {"tables": names}, "\n".join(names) or "the lake has no table yet")
        return
    if target is not None:
        answer = job.query(lake, statement)
        result_views.write_file(answer, target)
        line = f"{quantity(answer.num_rows, 'row')} to {target}"
        show_result(as_json, {"rows": answer.num_rows, "file": str(target)}, line)
        return
    answer = job.query(lake, statement, rows + 1)
    shown = answer.slice(0, rows)
    values = [list(map(formatting.plain, row)) for row in zip(*(c.to_pylist() for c in shown.columns), strict=True)]
    texts = [["null" if value is None else formatting.one_line(value, 60) for value in row] for row in values]
    lines = [formatting.table(answer.column_names, texts)]
    if answer.num_rows > rows:
        lines.append(f"there are more rows than {rows:,}: say --rows N, or --to FILE for all of them")
    show_result(as_json, {"columns": answer.column_names, "rows": values}, "\n".join(lines))


@main.command()
@QUERY
@LAKE
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.png", help="Also draw the curve.")
@click.option("--by", metavar="COLUMN", help="Also show which values of this column come late.")
@SPARK
@JSON
def explain(query: Path, lake_uri: str, plot: Path | None, by: str | None, as_json: bool) -> None:
    """Show how complete the answers would have been for every possible wait or retention.

    From stored history: the completeness of the answers and the rows held for each wait or retention, and the one that
    was used. A theta join also shows its plan, and a membership the savings of its filters. If such a query promises
    nothing, it shows that alone.
    """
    curve = _client(lake_uri).explain(api.Query.load(query), plot=plot, by=by)
    show_result(as_json, curve.to_dict(), curve.to_text())


@main.command()
@click.argument("queries", nargs=-1, metavar="QUERY.yaml|DIR...", type=click.Path(path_type=Path))
@click.option("--lake", "lake_uri", metavar="URI", help="Also check that this lake has their streams and columns.")
@click.option(
    "--streams",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="Also check the stream files of this folder.",
)
@JSON
def validate(queries: tuple[Path, ...], lake_uri: str | None, streams: Path | None, as_json: bool) -> None:
    """Check query files, or all query files of a folder, without running them. It starts no Spark.

    It refuses what Airflow would refuse of files that are deployed together: names that clash with DAG ids or with each
    other, and schedules that are invalid or never fire. The first mistake of each file is reported. The exit code is 2
    if a file has a mistake, so it suits the tests of a repository of queries, before they reach Airflow.
    """
    from latecomer.lake import stream_schemas
    from latecomer.lake.lake import Lake
    from latecomer.specs import deployment
    from latecomer.specs.streams import stream_files

    if not queries and streams is None:
        raise SpecError("validate", "", None, "names no file", "name query files or their folder, or say --streams DIR")
    paths = deployment.named_query_files(queries)
    files = deployment.read_query_files(paths)
    problems = {str(path): problem for path, problem in files.problems.items()}
    for path, spec in files.queries if lake_uri is not None else ():
        try:
            stream_schemas.check(Lake(str(lake_uri)), spec)
        except SpecError as error:
            problems[str(path)] = str(error)
    counts = [(len(paths), len(paths) - len(problems), "query file")] if queries else []
    if streams is not None:
        wrong = deployment.stream_file_problems(streams)
        problems |= {str(path): problem for path, problem in wrong.items()}
        counts.append((len(stream_files(streams)), len(stream_files(streams)) - len(wrong), "stream file"))
    if problems and not as_json:
        for line in problems.values():
            click.echo(f"latecomer: {line}", err=True)
    show_result(
        as_json,
        {"valid": sum(valid for _, valid, _ in counts), "problems": problems},
        ", ".join(f"{valid} of {quantity(total, noun)} valid" for total, valid, noun in counts),
    )
    if problems:
        raise SystemExit(2)


@main.command()
@click.argument("kind", type=click.Choice(["query", "stream"]))
def schema(kind: str) -> None:
    """Print the JSON Schema of query files or of stream files, for editors that complete and check them.

    `init` writes both into the project, and names them in the first line of the files.
    """
    from latecomer.specs import schema as schemas

    click.echo(schemas.text(kind), nl=False)


@main.command()
@LAKE
@click.option("--query", "only", multiple=True, metavar="NAME", help="Show this query only. You may repeat the option.")
@JSON
def status(lake_uri: str, only: tuple[str, ...], as_json: bool) -> None:
    """Show streams, queries, rows, backlog, and the last run, check and publication."""
    from latecomer.jobs import status as job
    from latecomer.lake.lake import Lake

    report = job.status(Lake(lake_uri), only)
    show_result(as_json, report, job.render(report))


@main.command()
@click.argument("query", metavar="QUERY.yaml|NAME")
@LAKE
@click.option(
    "--yes", is_flag=True, help="Delete. Without it, the command only says what it would delete, and exits with 2."
)
@SPARK
@JSON
def forget(query: str, lake_uri: str, yes: bool, as_json: bool) -> None:
    """Delete a query's tables, so that it can start again.

    Its results, late rows, ledger, state and checks are deleted. Events, quarantine and the query file stay. The next
    `run` starts from the first row, with the file as it is then.
    """
    from latecomer.lake import forget as job
    from latecomer.lake.errors import InputError
    from latecomer.lake.lake import Lake
    from latecomer.spark import catalog

    lake = Lake(lake_uri)
    name = query if NAME.fullmatch(query) else _load(Path(query)).name
    removed = catalog.unregister(lake, name) if yes and os.environ.get(catalog.VARIABLE) else []
    stored = job.forget(lake, name) if yes else job.stored_rows(lake, name)
    rows = {area: "damaged" if count is None else f"{count:,} rows" for area, count in stored.items()}
    listed = ", ".join(f"{area} ({count})" for area, count in rows.items()) or "no table"
    if not yes and (stored or name in job.half_forgotten(lake)):
        raise InputError(f"query {name}", None, f"would lose {listed}", "add --yes to delete that; events stay")
    show_result(
        as_json,
        {"query": name, "deleted": stored, "unregistered": removed},
        f"{name}: deleted {listed}; its next run starts from the first row",
    )


@main.command()
@click.argument("name", metavar="NAME")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A folder with zeek_events.parquet (Zeek's network logs) and ooo_events.parquet (phones' events). "
    "Without it, only generated data is measured.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("build/bench"),
    show_default=True,
    metavar="DIR",
    help="The folder for figures and summary.",
)
@click.option(
    "--quick", is_flag=True, help="Tiny workloads, which show in seconds that it runs. The figures mean nothing."
)
@click.option("--held-out", is_flag=True, help="With promise: draw the streams that are for the report alone.")
@JSON
def bench(name: str, data: Path | None, out: Path, quick: bool, held_out: bool, as_json: bool) -> None:
    """Measure a query kind against published methods, the promises of all kinds, or the speed of commands.

    NAME is join, aggregate, topk, theta_join, membership, promise, ingest, publish, speed, plans, scale or memory. It
    writes figures and summary.json.
    """
    from latecomer import bench as benches
    from latecomer.lake.errors import InputError
    from latecomer.spark.engine import connect
    from latecomer.specs.errors import did_you_mean

    if name not in benches.NAMES:
        raise InputError("bench", name, "is not a benchmark", did_you_mean(name, benches.NAMES))
    if held_out and name != "promise":
        raise InputError("--held-out", name, "has no streams that are held out", "use it with promise, or leave it out")
    if data is not None and not data.is_dir():
        raise InputError("--data", str(data), "is not a folder", "name the folder that holds the Parquet files")
    try:
        (out / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            "--out", str(out), error.strerror or str(error), "choose a folder that can be written"
        ) from None
    os.environ[connect.VARIABLE] = connect.EMBEDDED  # its figures are of one machine, and it asks the JVM itself
    started = time.monotonic()
    summary = benches.run(name, data, out / name, show_progress, quick=quick, held_out=held_out)
    text = json.dumps(summary, indent=2, default=str)
    (out / name / "summary.json").write_text(text + "\n", encoding="utf-8")
    seconds = round(time.monotonic() - started, 1)
    show_result(as_json, summary | {"seconds": seconds}, f"{text}\n{out / name} ({seconds} s)")


@main.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--example", is_flag=True, help="Also write a day of generated events, on which all five queries run.")
@JSON
def init(folder: Path, example: bool, as_json: bool) -> None:
    """Make a project folder: landing folders, a stream file, and one commented query file per kind."""
    from latecomer.jobs import init_project

    lines = init_project.make(folder, example)
    show_result(as_json, {"folder": str(folder), "made": lines}, "\n".join(lines))


def _client(lake_uri: str) -> api.Lake:
    """Return the lake by the Python API, which shows its progress."""
    return api.Lake(lake_uri, show_progress)


def _load(query: Path) -> Spec:
    from latecomer.specs.loading import load_query

    return load_query(query)


def _counts(
    rows: int, on_time: int, late: int, repaired: int, quarantined: int, batches: int, seconds: float
) -> dict[str, object]:
    return {
        "rows_read": rows,
        "on_time": on_time,
        "late": late,
        "repaired": repaired,
        "quarantined": quarantined,
        "micro_batches": batches,
        "seconds": round(seconds, 3),
    }


def command() -> None:
    """Run the command as a process, which ends with the command and takes its Java process along."""
    if not os.environ.get("LATECOMER_DEBUG"):
        logging.getLogger().addHandler(
            logging.NullHandler()
        )  # libraries also log the errors that they raise, with tracebacks
    end_in_time()
    try:
        main()
        code: str | int | None = 0
    except SystemExit as stop:
        code = stop.code
    if code is not None and not isinstance(code, int):
        click.echo(code, err=True)
        code = 1
    end_process(code or 0)


if __name__ == "__main__":
    command()
