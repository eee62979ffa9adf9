"""Exit codes, and the one line on standard error with which a command reports an error.

The codes are 1 (a check failed; `check` itself reports it), 2 (the input or the query is wrong), 3 (another process is
at work on the same tables), 4 (an unforeseen error), 130 (interrupted) and 143 (terminated). A foreseen error carries
its code as ``exit_code``.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

import click

from latecomer.jobs import formatting
from latecomer.lake.errors import is_full
from latecomer.spark.engine import connect, java_process


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM, as from a scheduler or at a shutdown."""


STOP_S, JAVA_STOP_S, LEASE_S = 3.0, 2.0, 1.0
"""Seconds that a stopped command has to end by itself, that Java has to end then, and that leases take to be freed."""
_STOPPED = "latecomer: {}; finished work is kept; run the command again to continue"
_DEBUG = "set LATECOMER_DEBUG=1 to see the traceback"
_ends = threading.Event()
"""Set when the command has begun to end, for whatever reason."""


def end_in_time() -> None:
    """Make the command end within seconds of a signal or of the end of its Java process.

    SIGTERM ends it as Ctrl-C does: it stops its work, releases its leases, and reports it in a line. A Java process
    that does not answer is killed after `STOP_S` seconds, and calls that wait for it fail. If the command is still
    there `STOP_S` seconds later, in a library that no signal interrupts, the process ends without it. A second SIGTERM
    ends it at once.
    """

    def terminate(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_end_on_signal, args=(reading,), daemon=True, name="end on a signal").start()
    java_process.when_ended(_end_without_java)


def _end_on_signal(signals: int) -> None:
    """Wait for SIGTERM or SIGINT; give the command time to end by itself, then end Java, then the process."""
    while (number := os.read(signals, 1)[0]) not in (signal.SIGTERM, signal.SIGINT):
        pass
    _ends.set()
    time.sleep(STOP_S)
    connect.close(JAVA_STOP_S)
    java_process.end(JAVA_STOP_S)
    time.sleep(STOP_S)
    ended, code = ("terminated", 143) if number == signal.SIGTERM else ("interrupted", 130)
    _end_now(_STOPPED.format(ended), code)


def _end_without_java() -> None:
    """Wait until the command, whose Java process has ended, fails by itself; end it after `STOP_S` seconds."""
    if not _ends.wait(STOP_S):
        _end_now(f"latecomer: {_java_ended()}; {_DEBUG}", 4)


def _end_now(line: str, code: int) -> None:
    """End the process without its main thread."""
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode())
    if "latecomer.lake.lease" in sys.modules:
        from latecomer.lake.lease import abandon_all

        abandon_all(LEASE_S)
    os._exit(code)


def end_process(code: int) -> NoReturn:
    """End the process of a command that is done: Spark first. Threads of native libraries are not waited for.

    Threads of Arrow and delta-rs sometimes outlive the interpreter, and the process then aborts after its work is done.
    """
    _ends.set()
    if "pyspark" in sys.modules:
        connect.close(STOP_S)
        if code in (4, 130, 143):
            java_process.end(JAVA_STOP_S)
        else:
            stopping = threading.Thread(target=_stop_spark, daemon=True)
            stopping.start()
            stopping.join(2 * STOP_S)
            if stopping.is_alive():
                java_process.end(JAVA_STOP_S)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _stop_spark() -> None:
    from py4j.protocol import Py4JError
    from pyspark.sql import SparkSession

    with contextlib.suppress(OSError, Py4JError):  # the Java process may be gone
        active = SparkSession.getActiveSession() or SparkSession._instantiatedSession
        if active is not None:
            active.stop()


def _java_ended() -> str:
    """Describe the end of the Java process in one line."""
    code = java_process.exit_code(wait_s=JAVA_STOP_S)
    reason = "it does not answer" if code is None else f"exit code {code}"
    remedy = "with a larger LATECOMER_DRIVER_MEMORY or a smaller --rows-per-batch"
    if code == java_process.OUT_OF_MEMORY_CODE:
        memory = os.environ.get("LATECOMER_DRIVER_MEMORY")
        reason = f"its memory{f' of {memory}' if memory else ''} was not enough"
    elif code is not None and code < 0:
        reason = f"killed by signal {-code}, as by a system that is short of memory"
        remedy = "where there is more memory, or with a smaller LATECOMER_DRIVER_MEMORY"
    elif java_process.is_orphan():
        reason = "spark-submit has ended"
    return (
        f"Spark's Java process ended ({reason}); finished micro-batches are kept; run the command again, and if it "
        f"ends again, {remedy}"
    )


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
    if (server := connect.lost(error)) is not None:
        return str(server)
    if "pyspark" in sys.modules:
        from latecomer.spark.engine.session import is_gone

        if is_gone():
            return _java_ended()
    lines = [formatting.one_line(cause) for cause in _chain(error)]
    if any("[JAVA_GATEWAY_EXITED]" in line for line in lines):
        return (
            "Spark's Java process ended while it was starting; see whether `java -version` answers with 17 or later, "
            "and whether the machine has the memory of LATECOMER_DRIVER_MEMORY and Java knows LATECOMER_JAVA_OPTIONS; "
            "then run the command again"
        )
    if small := next((line for line in lines if "[INVALID_DRIVER_MEMORY]" in line), None):
        least = re.search(r"at least (\d+)", small)
        return (
            f"LATECOMER_DRIVER_MEMORY: {os.environ.get('LATECOMER_DRIVER_MEMORY')!r}: is less than Spark needs to start"
            f"{f' ({-(-int(least[1]) // (1 << 20))}m)' if least else ''}; give it 1g or more"
        )
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


def report(error: BaseException) -> int:
    """Report an error in one line on standard error, and return the exit code for it.

    Raises
    ------
    Exception
        The error itself, where it was not foreseen and ``LATECOMER_DEBUG`` asks for the traceback.
    """
    if isinstance(error, BrokenPipeError) and _stdout_is_closed():
        return 141  # the code of a process that SIGPIPE has killed
    if (stopped := _interrupt(error)) is not None:
        ended, code = ("terminated", 143) if isinstance(stopped, Terminated) else ("interrupted", 130)
        click.echo(_STOPPED.format(ended), err=True)
        return code
    foreseen = getattr(error, "exit_code", None)
    if foreseen is None:
        if os.environ.get("LATECOMER_DEBUG"):
            raise error
        click.echo(f"latecomer: {_fault(error)}; {_DEBUG}", err=True)
        return 4
    click.echo(str(error), err=True)
    return int(foreseen)


ENDS = (4, 130, 141, 143)
"""Exit codes after which a process cannot go on with other work."""


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
            context.exit(report(error))
