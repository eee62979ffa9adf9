"""Options that many commands have, and how a command shows its result."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from latecomer.spark.engine import connect

F = TypeVar("F", bound=Callable[..., Any])
LAKE = click.option(
    "--lake",
    "lake_uri",
    required=True,
    envvar="LATECOMER_LAKE",
    show_envvar=True,
    metavar="URI",
    help="The lake: a local folder, s3://BUCKET/PREFIX, or a place in another store.",
)


def _set_spark(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Name the Spark Connect server of this command, where the option is given, as the variable would."""
    if value is None:
        return
    before = os.environ.get(connect.VARIABLE)
    os.environ[connect.VARIABLE] = value

    def restore() -> None:
        os.environ.pop(connect.VARIABLE, None)
        if before is not None:
            os.environ[connect.VARIABLE] = before

    context.call_on_close(restore)
    connect.named()


SPARK = click.option(
    "--spark",
    metavar="sc://HOST:PORT|warm|embedded",
    expose_value=False,
    callback=_set_spark,
    help="The Spark Connect server to run on; `warm` is the one of `latecomer spark start`.  [env var: "
    "LATECOMER_SPARK; default: SPARK_REMOTE, else embedded, a Spark of this command]",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


def to_file(help_: str) -> Callable[[F], F]:
    """Return the option `--to FILE`, which names the file that a command writes in place of printing rows."""
    return click.option("--to", "target", type=click.Path(path_type=Path), metavar="FILE", help=help_)


def show_progress(line: str) -> None:
    """Print a line about the work to standard error."""
    click.echo(line, err=True)


def show_result(as_json: bool, values: Mapping[str, object], line: str) -> None:
    """Print the result to standard output, as JSON or as text."""
    click.echo(json.dumps(values, default=str) if as_json else line)
