"""Panics of delta-rs over a file that is shut down are left out of stderr, and nothing else is."""

import subprocess
import sys

import pytest

PANIC = """
thread 'tokio-rt-worker' (508) panicked at /registry/src/object_store-0.13.2/src/buffered.rs:369:41:
Already shut down
{more}"""
PROGRAM = """
import os, sys
from latecomer.lake import panics
text = sys.argv[1].encode()
print("before", file=sys.stderr)
try:
    with panics.unseen():
        os.write(2, text)
        with panics.unseen():
            print("inside", file=sys.stderr)
        raise OSError
except OSError:
    print("after", file=sys.stderr)
"""
BACKTRACE = "stack backtrace:\n   0: rust_begin_unwind\n             at /rustc/lib.rs:1\nnote: Details are omitted\n"


def told(text):
    return subprocess.run([sys.executable, "-c", PROGRAM, text], capture_output=True, text=True, check=True).stderr


@pytest.mark.parametrize("more", ["", "note: run with `RUST_BACKTRACE=1`\n", BACKTRACE])
def test_panics_are_left_out(more):
    panic = PANIC.format(more=more)
    assert told(panic + "another line\n" + panic + panic) == "before\nanother line\ninside\nafter\n"


def test_another_panic_is_shown():
    other = "\nthread 'main' (1) panicked at /registry/src/arrow/lib.rs:1:1:\nindex out of bounds\n"
    assert told(other) == f"before\n{other}inside\nafter\n"
