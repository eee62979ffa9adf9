"""Exit codes, and the one line on standard error with which a command reports an error.

The codes are 1 (a check failed; `check` itself reports it), 2 (the input or the query is wrong), 3 (another process is
at work on the same tables), 4 (an unforeseen error), 130 (interrupted) and 143 (terminated). A foreseen error carries
its code as ``exit_code``.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import click

from latecomer.jobs import formatting
from latecomer.lake.errors import is_full


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM, as from a scheduler or at a shutdown."""


def end_on_term() -> None:
    """Make SIGTERM end the command as Ctrl-C does: stop its work, release its leases, and report it in a line.

    A second SIGTERM ends the command at once.
    """

    def terminate(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _interrupt(error: BaseException) -> KeyboardInterrupt | None:
    """Return the interrupt in the chain of an error, if any.

    Ctrl-C and SIGTERM cancel Spark's jobs, so the error may be the failure of a job, and the interrupt its cause.
    """
    return next((cause for cause in _chain(error) if isinstance(cause, KeyboardInterrupt)), None)


def _fault(error: BaseException) -> str:
    """Describe an unforeseen error in one line."""
    if any(map(is_full, _chain(error))):
        return (
            "no space is left on the disk of the lake or of temporary files (TMPDIR, SPARK_LOCAL_DIRS); "
            "finished work is kept; make room and run the command again"
        )
    if "pyspark" in sys.modules:
        from latecomer.spark.engine.session import is_gone

        if is_gone():
            return (
                "Spark's Java process ended, killed or out of memory; finished micro-batches are kept; run the command "
                "again, and if it ends again, with a larger LATECOMER_DRIVER_MEMORY or a smaller --rows-per-batch"
            )
    lines = map(formatting.one_line, _chain(error))
    wide = next((line for line in lines if "NUMERIC_VALUE_OUT_OF_RANGE" in line), None)
    if wide is not None:
        value = re.search(r"\S+ cannot be represented as Decimal\(\d+, \d+\)", wide)
        return (
            f"two decimals of a query have no common type of 38 digits{f' ({value[0]})' if value else ''}; "
            "finished work is kept; compare columns of fewer digits, or multiply both by 1.0 to compare doubles"
        )
    notes = getattr(error, "__notes__", [])
    if notes:
        reason = formatting.one_line(error).partition(" 0: <unknown>")[0]  # the frames of delta-rs
        return f"{notes[0]} ({reason}); restore its files, or see whether the store answers"
    return f"internal error: {formatting.one_line(error)}"


def _stdout_is_closed() -> bool:
    """Tell whether stdout is a pipe whose reader has closed it, as ``head`` does."""
    poll = select.poll()
    poll.register(1, select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _misuse(error: click.UsageError, command: str) -> Exception:
    """Report a usage error in one line and return the exit to raise; a command without arguments shows its help."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error
    command = error.ctx.command_path if error.ctx else command
    click.echo(f"{command}: {formatting.one_line(error.format_message()).rstrip('.')}; see {command} --help", err=True)
    return click.exceptions.Exit(2)


class Group(click.Group):
    """A group of commands that reports every error in one line and exits with its code."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the options before the command."""
        try:
            return super().make_context(*args, **kwargs)
        except click.UsageError as error:
            raise _misuse(error, "latecomer") from None

    def invoke(self, context: click.Context) -> Any:
        """Run the command. ``--help`` explains the exit codes."""
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
            if isinstance(error, BrokenPipeError) and _stdout_is_closed():
                context.exit(141)  # the code of a process that SIGPIPE has killed
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
