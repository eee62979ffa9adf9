"""Commands and leases on a lake in any store: many commands in one process, and two processes that ask for a lease."""

import json
import os
import socket
import subprocess
import sys

# many commands, one JVM: each call is the command's function with the arguments of a command line
COMMANDS = """
import json, os, sys
from latecomer.jobs.cli import main
from latecomer.spark.engine import tuning
tuning.SMALL_ROWS = 150  # larger micro-batches are planned for many rows
for arguments in json.load(sys.stdin):
    code = main(arguments, prog_name="latecomer", standalone_mode=False)
    if code:
        break
from pyspark.sql import SparkSession
SparkSession.getActiveSession().stop()
sys.stdout.flush()
os._exit(code or 0)
"""
# takes the lease named on a line, prints who holds it, gives it back at the next line
RACER = """
import sys
from latecomer.lake.errors import LeaseHeld
from latecomer.lake.lease import Lease
from latecomer.lake.lake import Lake
lake = Lake(sys.argv[1])
print("ready", flush=True)
while name := sys.stdin.readline().strip():
    try:
        with Lease(lake, name):
            print("held", flush=True)
            sys.stdin.readline()
    except LeaseHeld as refusal:
        print(refusal.holder, flush=True)
        sys.stdin.readline()
    print("back", flush=True)
"""


def run_commands(calls: list[list[str]]) -> list[dict]:
    """Run commands with ``--json`` in one process, and return the output of each."""
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        input=json.dumps(calls),
        env=os.environ | {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"},  # a third less CPU for jobs this small
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    outputs = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(outputs) == len(calls)
    return outputs


def racer(lake: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", RACER, lake], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def say(process: subprocess.Popen, line: str) -> None:
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def heard(process: subprocess.Popen) -> str:
    return process.stdout.readline().strip()


def one_of_two_gets_the_lease(lake: str) -> None:
    """Let two processes ask for the same leases at once, and assert that each goes to one of them."""
    racers = [racer(lake), racer(lake)]
    try:
        assert [heard(process) for process in racers] == ["ready", "ready"]
        for name in ["run-a", "run-a", "run-b", "run-b", "run-c", "run-c", "run-c"]:  # new ones, and given back ones
            for process in racers:
                say(process, name)
            outcome = [heard(process) for process in racers]
            assert outcome.count("held") == 1, outcome
            winner = outcome.index("held")
            assert outcome[1 - winner] == f"{socket.gethostname()}:{racers[winner].pid}"
            for process in racers:
                say(process, "give it back")
            assert [heard(process) for process in racers] == ["back", "back"]
        say(racers[0], "run-a")
        assert heard(racers[0]) == "held"
        racers[0].kill()
        racers[0].wait()
        say(racers[1], "run-a")
        assert heard(racers[1]) == "held", "a dead holder's lease is free"
    finally:
        for process in racers:
            process.kill()
            process.communicate()
