"""`latecomer spark`: a Spark server of this machine that stays, so that no command has to start Spark."""

from __future__ import annotations

import time

import click

from latecomer.jobs.command_options import JSON, show_result


@click.group()
def spark() -> None:
    """Start or stop a Spark Connect server on this machine, on which commands run with `--spark warm`.

    A command that finds Spark running takes seconds less. The server listens on loopback alone and asks for a token,
    which is kept in a file of yours in XDG_STATE_HOME, else in ~/.local/state.
    """


@spark.command()
@click.option(
    "--master",
    metavar="URL",
    help="Spark's master, such as spark://HOST:7077.  [default: all cores of this machine]",
)
@JSON
def start(master: str | None, as_json: bool) -> None:
    """Start the server, with the settings that commands give to Spark, and wait until it answers.

    A server that runs already is left as it is. LATECOMER_DRIVER_MEMORY, LATECOMER_JAVA_OPTIONS, LATECOMER_CATALOG and
    the credentials of object stores are those of this command.
    """
    from latecomer.spark import catalog
    from latecomer.spark.engine import local_server

    started = time.monotonic()
    server, is_new = local_server.start(master, catalog.settings())
    values = {"address": server.address, "pid": server.pid, "log": server.log, "started": is_new}
    how = f"started in {time.monotonic() - started:.1f} s" if is_new else "runs already"
    show_result(
        as_json,
        values,
        f"Spark {how}: {server.address} (process {server.pid}, log {server.log}); commands use it with --spark warm",
    )


@spark.command()
@JSON
def stop(as_json: bool) -> None:
    """Stop the server, within 10 seconds. A command that is using it fails."""
    from latecomer.spark.engine import local_server

    server = local_server.stop()
    line = "Spark was not running" if server is None else f"Spark stopped: {server.address} (process {server.pid})"
    show_result(as_json, {"stopped": None if server is None else server.pid}, line)


@spark.command()
@JSON
@click.pass_context
def status(context: click.Context, as_json: bool) -> None:
    """Show the server's address, process and uptime; exit with 1 if none runs."""
    from latecomer.spark.engine import server_file

    server = server_file.running()
    if server is None:
        show_result(as_json, {"running": False}, "Spark is not running; start it with `latecomer spark start`")
        context.exit(1)
    values = {"running": True, "address": server.address, "pid": server.pid, "uptime_s": round(server.uptime_s, 1)}
    show_result(
        as_json,
        values | {"master": server.master, "log": server.log},
        f"Spark runs at {server.address} (process {server.pid}, master {server.master}) for "
        f"{server.uptime_s:,.0f} s; log {server.log}",
    )
