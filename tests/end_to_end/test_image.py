"""The steps of `infra/Dockerfile` run without a container, and services of `infra/compose.yaml` start from them.

Each COPY and RUN is done in a temporary folder, in which the image's folders have their places. Left out are packages
of the operating system and its users, which need root.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.dags.support import LONG
from tests.support.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
UV = ROOT / ".tools" / "bin" / "uv"
SERVICES = YAML(typ="safe").load((ROOT / "infra" / "compose.yaml").read_text())["services"]
LISTED = "import latecomer_query_errors, latecomer_dags; print(*vars(latecomer_dags))"


def steps():
    """Return the instructions of the Dockerfile, each with its text on one line."""
    lines = (ROOT / "infra" / "Dockerfile").read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line]


class Image:
    """A folder that stands for the image's file system, and the variables of its processes."""

    def __init__(self, folder):
        self.folder, self.place = folder, folder
        python = folder / "usr/local"
        subprocess.run([UV, "venv", "--quiet", "--seed", "--python", sys.executable, python], check=True)
        for name in ("opt/latecomer", "data/airflow", "data/report", "data/store"):
            (folder / name).mkdir(parents=True)
        ours = ("LATECOMER_", "PYTHON", "SPARK_", "AIRFLOW_", "AWS_")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        self.environment["PATH"] = f"{python}/bin:{os.environ['PATH']}"

    def inside(self, text):
        """Put the image's folders into a text at their places here."""
        return re.sub(r"(?<![\w.])/(?=(?:opt/latecomer|usr/local|build|data)\b)", f"{self.folder}/", text)

    def run(self, script, **more):
        done = subprocess.run(
            ["bash", "-euc", script], cwd=self.place, env=self.environment, capture_output=True, text=True, **more
        )
        assert done.returncode == 0, f"{script}\n{done.stdout[-1000:]}{done.stderr[-2000:]}"
        return done.stdout

    def do(self, instruction, text):
        if instruction == "WORKDIR":
            self.place = Path(self.inside(text))
            self.place.mkdir(parents=True, exist_ok=True)
        elif instruction == "ENV":
            self.environment |= dict(pair.split("=", 1) for pair in shlex.split(self.inside(text)))
        elif instruction == "COPY":
            *sources, target = [word for word in text.split() if not word.startswith("--")]
            base = self.folder if "--from=" in text else ROOT
            for source in sources:
                place = self.place / self.inside(target)
                if (base / source.lstrip("/")).is_dir():
                    shutil.copytree(base / source.lstrip("/"), place, dirs_exist_ok=True)
                else:
                    place.mkdir(parents=True, exist_ok=True)
                    shutil.copy(base / source, place)
        elif instruction == "RUN" and not text.startswith("apt-get"):
            script = self.inside(text).replace("--system --no-cache", f"--python {self.folder}/usr/local/bin/python")
            self.run(script, timeout=900)
        else:
            assert instruction in {"FROM", "USER", "ENTRYPOINT", "RUN"}, instruction


pytestmark = pytest.mark.skipif(not LONG, reason="installs some 200 packages: make test-long")


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    made = Image(tmp_path_factory.mktemp("image"))
    for instruction, text in steps():
        if instruction == "FROM":
            made.place = made.folder
        made.do(instruction, text)
    return made


def test_the_image_has_all_that_its_services_start(image):
    assert "latecomer" in image.run("cd / && python -c 'import latecomer; print(latecomer.__file__)'")
    assert str(image.folder) in image.run("cd / && python -c 'import latecomer; print(latecomer.__file__)'")
    findings = image.run("cd / && latecomer doctor --no-spark")
    assert f"in {image.folder}/opt/latecomer/jars" in findings and "WRONG" not in findings, findings
    properties = (image.folder / "opt/latecomer/spark.properties").read_text()
    assert f"{image.folder}/opt/latecomer/jars" in properties and "spark.driver.host" in properties
    inside = {"LATECOMER_QUERIES": ROOT / "include/queries", "LATECOMER_STREAMS": ROOT / "include/streams"}
    places = " ".join(f"{name}='{place}'" for name, place in inside.items())
    dags = image.run(f"cd {image.folder}/opt/latecomer/dags && {places} python -c '{LISTED}'")
    assert "latecomer_ingest" in dags and "departures_by_airport" in dags, dags
    for service in SERVICES.values():
        if service["image"] == "latecomer" and "entrypoint" not in service:
            assert image.run(f"command -v {service['command'][0]}").startswith(str(image.folder)), service["command"]


def test_the_store_starts_and_gets_its_bucket(image):
    """The command of the service `store` runs with other ports, then the script of `prepare`."""
    names = ("s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc")
    ports = dict(zip((*names, "filer.port", "filer.port.grpc"), free_ports(8), strict=True))
    command = [image.inside(word).replace("=store", "=127.0.0.1") for word in SERVICES["store"]["command"]]
    command = [word.replace("=0.0.0.0", "=127.0.0.1") for word in command]
    login = {"AWS_ACCESS_KEY_ID": "latecomer", "AWS_SECRET_ACCESS_KEY": "secret-of-this-test"}
    environment = image.environment | login
    program = shutil.which(command[0], path=environment["PATH"])
    server = subprocess.Popen(
        [program, *command[1:], *(f"-{name}={port}" for name, port in ports.items())],
        env=environment,
        cwd=image.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    endpoint = f"http://127.0.0.1:{ports['s3.port']}"
    try:
        until = time.monotonic() + 60
        while not answers(f"{endpoint}/healthz"):
            assert time.monotonic() < until and server.poll() is None
            time.sleep(0.2)
        image.environment = environment | {"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1"}
        script = SERVICES["prepare"]["command"][0].replace("exec airflow db migrate\n", "")
        for _ in range(2):  # as after a restart
            image.run(script)
        assert "ok       object store" in image.run("cd / && latecomer doctor --no-spark --lake s3://latecomer/lake")
    finally:
        server.kill()
        server.wait()


def answers(address):
    try:
        return urllib.request.urlopen(address, timeout=3).status == 200
    except OSError:
        return False
