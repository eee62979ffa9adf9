"""How a command ends that does not end well: one line on standard error, and an exit code.

1 a check failed (said by `check` itself), 2 the input or the query is wrong, 3 something else is at work here, 4 nobody foresaw it, 130
interrupted, 143 terminated. Errors that are foreseen carry their code as ``exit_code``.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
from collections.abc import Iterator
from typing import Any

import click

from latecomer.jobs import formatting
from latecomer.lake.errors import is_full


class Terminated(KeyboardInterrupt):
    """A signal asked the process to end, as a scheduler or a shutdown does."""


def end_on_term() -> None:
    """From now on SIGTERM ends a command as Ctrl-C does: what is at work is stopped, leases are given back, and a line says so.

    A second one ends it at once.
    """

    def raised(number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Terminated

    signal.signal(signal.SIGTERM, raised)


def _behind(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what caused it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _interrupt(error: BaseException) -> KeyboardInterrupt | None:
    """Ctrl-C, or a signal to end. It cancels Spark's jobs, so what is raised may be their failure, with the interrupt behind it."""
    return next((each for each in _behind(error) if isinstance(each, KeyboardInterrupt)), None)


def _fault(error: BaseException) -> str:
    """What nobody foresaw, in one line."""
    if any(is_full(each) for each in _behind(error)):
        return (
            "no space is left on the disk, of the lake or of temporary files (TMPDIR, SPARK_LOCAL_DIRS); finished work is kept; "
            "make room and run the command again"
        )
    if "pyspark" in sys.modules:
        from latecomer.spark.engine.session import is_gone

        if is_gone():
            return (
                "Spark's Java process ended, killed or out of memory; finished micro-batches are kept; run the command "
                "again, and if it ends again, with a larger LATECOMER_DRIVER_MEMORY or a smaller --rows-per-batch"
            )
    wide = next(
        (said for said in map(formatting.one_line, _behind(error)) if "NUMERIC_VALUE_OUT_OF_RANGE" in said), None
    )
    if wide is not None:
        value = re.search(r"\S+ cannot be represented as Decimal\(\d+, \d+\)", wide)
        return (
            f"two decimals of a query have no common type of 38 digits{f' ({value[0]})' if value else ''}; finished work is kept; "
            "compare columns of fewer digits, or multiply both by 1.0 to compare doubles"
        )
    notes = getattr(error, "__notes__", [])
    if notes:
        reason = formatting.one_line(error).partition(" 0: <unknown>")[0]  # the frames of delta-rs
        return f"{notes[0]} ({reason}); restore its files, or see whether the store answers"
    return f"internal error: {formatting.one_line(error)}"


def _nobody_reads() -> bool:
    """Is stdout a pipe that was closed at its other end, as by ``head``?"""
    poll = select.poll()
    poll.register(1, select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _misuse(error: click.UsageError, command: str) -> Exception:
    """What to raise for a command that is not written as it should be: after one line, exit code 2; help is shown as it is."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error
    command = error.ctx.command_path if error.ctx else command
    click.echo(f"{command}: {formatting.one_line(error.format_message()).rstrip('.')}; see {command} --help", err=True)
    return click.exceptions.Exit(2)


class Group(click.Group):
    """Turns every foreseen error into one line and its exit code."""

    def make_context(self, *given: Any, **more: Any) -> click.Context:
        """Parse what stands before the command."""
        try:
            return super().make_context(*given, **more)
        except click.UsageError as error:
            raise _misuse(error, "latecomer") from None

    def invoke(self, context: click.Context) -> Any:
        """Run the command; ``--help`` says what the exit codes mean."""
        try:
            os.getcwd()
        except OSError as error:
            problem = f"the working directory cannot be used ({error.strerror}); change to one that exists"
            click.echo(f"latecomer: {problem}", err=True)
            context.exit(2)
        try:
            return super().invoke(context)
        except click.UsageError as error:
            raise _misuse(error, context.command_path) from None
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except (Exception, KeyboardInterrupt) as error:
            code = getattr(error, "exit_code", None)
            if isinstance(error, BrokenPipeError) and _nobody_reads():
                context.exit(141)  # as what a closed pipe has killed
            if (stopped := _interrupt(error)) is not None:
                ended, code = ("terminated", 143) if isinstance(stopped, Terminated) else ("interrupted", 130)
                click.echo(f"latecomer: {ended}; finished work is kept; run the command again to continue", err=True)
                context.exit(code)
            if code is None:
                if os.environ.get("LATECOMER_DEBUG"):
                    raise
                click.echo(f"latecomer: {_fault(error)}; set LATECOMER_DEBUG=1 to see the traceback", err=True)
                context.exit(4)
            click.echo(str(error), err=True)
            context.exit(code)
