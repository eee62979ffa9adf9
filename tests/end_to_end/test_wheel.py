"""The wheel in an environment of its own, outside the checkout: with the newest packages, and with the oldest.

The commands get nothing from the checkout: neither its packages, nor its jars, nor its variables.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parents[2]
UV = ROOT / ".tools" / "bin" / "uv"
QUERIES = {"aggregate": "views_per_page", "join": "clicks_after_views"}
EXTRAS = ("kafka", "plot", "polars", "s3", "sql")


def checked(*command, **more):
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=900, **more)
    assert ran.returncode == 0, f"{command}\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}"
    return ran.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    checked(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (file,) = folder.glob("*.whl")
    return file


def newest_python():
    """Return the newest Python that the package allows and this machine has."""
    for version in ("3.13", "3.12", "3.11"):
        for place in filter(None, (shutil.which(f"python{version}"), *map(str, pyenv(version)))):
            ran = subprocess.run([place, "-c", "import sys; print(sys.version)"], capture_output=True, text=True)
            if ran.returncode == 0 and ran.stdout.startswith(version):
                return place
    return sys.executable


def pyenv(version):
    return Path.home().glob(f".pyenv/versions/{version}.*/bin/python")


def installed(wheel, folder, oldest):
    """Install the wheel with the oldest or the newest packages that it allows; return the folder of its commands."""
    environment = os.environ | {"UV_SYSTEM_CERTS": "1", "VIRTUAL_ENV": str(folder)}
    checked(UV, "venv", "--quiet", "--python", sys.executable if oldest else newest_python(), folder)
    if oldest:
        extras = [argument for extra in EXTRAS for argument in ("--extra", extra)]
        file, python = folder / "oldest.txt", ["--python", folder / "bin" / "python"]
        lowest = ["--resolution", "lowest-direct", "--quiet", "-o", file]
        checked(UV, "pip", "compile", ROOT / "pyproject.toml", *extras, *lowest, *python, env=environment)
        checked(UV, "pip", "sync", "--quiet", *python, file, env=environment)
        checked(UV, "pip", "install", "--quiet", "--no-deps", wheel, env=environment)
    else:
        checked(UV, "pip", "install", "--quiet", wheel, env=environment)
    return folder / "bin"


@pytest.mark.parametrize("oldest", [False, True], ids=["newest", "oldest"])
def test_the_wheel_answers_in_an_environment_of_its_own(wheel, tmp_path, oldest):
    commands = installed(wheel, tmp_path / "venv", oldest)
    ours = ("LATECOMER_", "PYTHON", "SPARK_")
    outside = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    outside |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "LATECOMER_LAKE": "lake"}

    def latecomer(*arguments, **more):
        return checked(commands / "latecomer", *arguments, env=outside, **({"cwd": shop} | more))

    shop = tmp_path / "shop"
    assert "made shop/queries/join.yaml" in latecomer("init", "shop", "--example", cwd=tmp_path)
    refused = [commands / "latecomer", "ingest", "--by", "stream", "landing/_by_stream"]
    ran = subprocess.run(refused, capture_output=True, text=True, env=outside, cwd=shop)
    assert ran.returncode == 2 and ran.stderr.endswith("run `latecomer jars fetch` once\n"), ran.stderr
    if oldest:
        outside["LATECOMER_JARS"] = str(ROOT / ".jvm" / "jars")
    else:
        assert "fetched into" in latecomer("jars", "fetch")
        (archive,) = (tmp_path / "cache" / "latecomer").glob("jars-*/latecomer.jsa")
        assert archive.stat().st_size > 1 << 20
    latecomer("ingest", "--by", "stream", "landing/_by_stream")
    for kind, name in QUERIES.items():
        query = f"queries/{kind}.yaml"
        latecomer("run", query, "--flush")
        latecomer("repair", query, "--flush")
        assert "checks passed" in latecomer("check", query, "--report", "report")
        latecomer("publish", query)
        latecomer("export", query, "--table", "results", "--to", f"{kind}.parquet")
        latecomer("changes", query, "--since", "-1", "--to", f"{kind}.changes.parquet")
        rows, changes = (pq.read_table(shop / name) for name in (f"{kind}.parquet", f"{kind}.changes.parquet"))
        assert rows.num_rows == changes.num_rows > 100
        assert (shop / "report" / f"{name}.html").is_file()
    plotted = subprocess.run(
        [commands / "latecomer", "explain", "queries/aggregate.yaml", "--plot", "curve.png"],
        capture_output=True,
        text=True,
        env=outside,
        cwd=shop,
    )
    if oldest:
        assert plotted.returncode == 0 and (shop / "curve.png").read_bytes().startswith(b"\x89PNG"), plotted.stderr
    else:
        assert (plotted.returncode, len(plotted.stderr.splitlines())) == (2, 1), plotted.stderr
        assert "install latecomer[plot]" in plotted.stderr
