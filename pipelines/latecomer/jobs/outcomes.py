"""How a command ends that does not end well: one line on standard error, and an exit code.

1 a check failed (said by `check` itself), 2 the input or the query is wrong, 3 something else is at work here, 4 nobody foresaw it, 130
interrupted. Errors that are foreseen carry their code as ``exit_code``.
"""

from __future__ import annotations

import os
import select
import sys
from typing import Any

import click

from latecomer.jobs import text


def _was_interrupted(error: BaseException | None) -> bool:
    """Did the user press Ctrl-C? It cancels Spark's jobs, so what is raised may be their failure, with the interrupt behind it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _fault(error: BaseException) -> str:
    """What nobody foresaw, in one line."""
    if "pyspark" in sys.modules:
        from latecomer.spark.session import is_gone

        if is_gone():
            return (
                "Spark's Java process ended, killed or out of memory; finished micro-batches are kept; run the command "
                "again, and if it ends again, with a larger LATECOMER_DRIVER_MEMORY or a smaller --rows-per-batch"
            )
    notes = getattr(error, "__notes__", [])
    if notes:
        reason = text.one_line(error).partition(" 0: <unknown>")[0]  # the frames of delta-rs
        return f"{notes[0]} ({reason}); restore its files, or see whether the store answers"
    return f"internal error: {text.one_line(error)}"


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
    click.echo(f"{command}: {text.one_line(error.format_message()).rstrip('.')}; see {command} --help", err=True)
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
            if _was_interrupted(error):
                click.echo("latecomer: interrupted; finished work is kept; run the command again to continue", err=True)
                context.exit(130)
            if code is None:
                if os.environ.get("LATECOMER_DEBUG"):
                    raise
                click.echo(f"latecomer: {_fault(error)}; set LATECOMER_DEBUG=1 to see the traceback", err=True)
                context.exit(4)
            click.echo(str(error), err=True)
            context.exit(code)
