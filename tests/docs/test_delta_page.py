"""The commands of the page about Delta tables run as written."""

import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "sources" / "delta.md"


@pytest.mark.slow
def test_the_page_runs_as_written(tmp_path):
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    commands = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    script = "set -e\n" + "".join(commands).replace(" streams readings", " streams --json readings")
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [json.loads(line)["ingested"] for line in done.stdout.splitlines()] == [4, 0, 2]
