"""A disk of the lake or of temporary files that is full, or may only be read: one line each, and no alarm beside it."""

import shutil
import subprocess

import pytest
from latecomer.lake.lake import Lake
from latecomer.spark.run import run
from latecomer.specs.loading import load_query

from tests.support import commands, events
from tests.support.lakes import load

QUERY = """\
name: pairs
kind: join
streams: {left: a, right: b}
keys: [k]
window: 2 s
quality: {recall: 0.6, period: 10 s}
"""
COUNTS = """\
name: counts
kind: aggregate
streams: {s: a}
group_by: [k]
window: 2 s
select: {n: count()}
quality: {error: 0.1, probability: 0.9, period: 10 s}
"""
FULL = "mount -t tmpfs -o size=100k none ."
READ_ONLY = "mount --bind . . && mount -o remount,ro,bind ."


def may_mount() -> bool:
    """In a mount namespace of its own a process may, if the machine lets users have one."""
    tried = ["unshare", "-rm", "sh", "-c", READ_ONLY]
    return shutil.which("unshare") is not None and subprocess.run(tried, capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not may_mount(), reason="mounting takes a user namespace (unshare -rm)")


def call(lake, mount, *arguments):
    """The command, with the lake's folder mounted so for it alone."""
    command = commands.line(*arguments, "--lake", lake.uri)
    inside = ["unshare", "-rm", "sh", "-c", f'cd "$0" && {mount} && cd / && exec "$@"', lake.uri, *command]
    return subprocess.run(inside, capture_output=True, text=True, timeout=300)


def test_a_full_disk_is_one_line(lake, tmp_path):
    (tmp_path / "lake").mkdir(exist_ok=True)
    events.write(events.disordered(5, rows=4000), tmp_path / "rows.parquet")
    done = call(lake, FULL, "ingest", "--by", "stream", tmp_path / "rows.parquet")
    assert done.returncode == 4, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("ingest: ")]
    assert "no space is left on the disk" in line and "make room and run the command again" in line


def test_a_lake_that_may_only_be_read_is_read(lake, tmp_path):
    path = tmp_path / "q.yaml"
    path.write_text(QUERY)
    load(lake, events.disordered(5, rows=60), tmp_path)
    run(lake, load_query(path), until_seq=20)
    assert call(lake, READ_ONLY, "status").returncode == 0
    checked = call(lake, READ_ONLY, "check", path)
    assert (checked.returncode, checked.stderr) == (0, "")
    for command in ("run", "repair"):
        done = call(lake, READ_ONLY, command, path)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert "cannot be written to (Read-only file system)" in line


FILLED = (
    'cp -r . "$0.copy" && mount -t tmpfs -o size=64m none . && cd "$0" && cp -r "$0.copy"/. . && '
    "{ dd if=/dev/zero of=filling bs=4k 2>/dev/null; true; }"
)
"""The folder as it is, on a disk without room for another block."""


@pytest.fixture(scope="module")
def answered(spark, tmp_path_factory):
    """A lake with late rows to repair, and its query file."""
    folder = tmp_path_factory.mktemp("answered")
    (folder / "q.yaml").write_text(QUERY)
    lake = Lake(folder / "lake")
    load(lake, events.disordered(5, rows=400), folder)
    run(lake, load_query(folder / "q.yaml"), until_seq=200)
    return lake, folder / "q.yaml"


@pytest.mark.parametrize("command", ["run", "repair", "publish --unchecked", "adapt", "advance"])
def test_a_command_on_a_disk_that_is_full_is_one_line_and_loses_nothing(answered, tmp_path, command):
    lake, query = answered
    done = call(lake, FILLED, *command.split(), query)
    shutil.rmtree(f"{lake.uri}.copy")
    assert done.returncode == 4, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "micro-batch" not in line]
    assert "no space is left on the disk" in line and "make room" in line


def test_a_full_disk_of_temporary_files_is_one_line_and_loses_nothing(lake, tmp_path):
    """Spark writes what it shuffles there; small calls need none of it."""
    path, temporary = tmp_path / "q.yaml", tmp_path / "temporary"
    path.write_text(COUNTS)
    temporary.mkdir()
    load(lake, events.disordered(5, rows=120_000), tmp_path)
    command = commands.line("run", path, "--lake", lake.uri, "--flush")
    mounted = 'mount -t tmpfs -o size=8k none "$0" && TMPDIR="$0" SPARK_LOCAL_DIRS="$0" exec "$@"'
    inside = ["unshare", "-rm", "sh", "-c", mounted, str(temporary), *command]
    done = subprocess.run(inside, capture_output=True, text=True, timeout=300)
    assert done.returncode == 4, done.stderr
    (line,) = done.stderr.splitlines()
    assert "no space is left on the disk" in line and "SPARK_LOCAL_DIRS" in line
    again = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0 and "rows in 1 micro-batch" in again.stdout, again.stderr
