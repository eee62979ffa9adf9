"""`infra/compose.yaml` and `infra/Dockerfile` against the files that they name; no container engine is needed, none is run."""

import re
from pathlib import Path

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
COMPOSE = (INFRA / "compose.yaml").read_text(encoding="utf-8")
SERVICES = YAML(typ="safe").load(COMPOSE)["services"]


def test_one_service_builds_the_image_of_all():
    own = {name: each for name, each in SERVICES.items() if each["image"] == "latecomer"}
    assert [name for name, each in own.items() if "build" in each] == ["prepare"]
    assert {each["pull_policy"] for name, each in own.items() if name != "prepare"} == {"never"}
    build = SERVICES["prepare"]["build"]
    assert (INFRA / build["context"] / build["dockerfile"]).is_file()


def test_every_variable_is_in_the_example():
    example = (INFRA / "compose.env.example").read_text(encoding="utf-8")
    given = {line.partition("=")[0] for line in example.splitlines() if "=" in line and not line.startswith("#")}
    assert set(re.findall(r"\$\{(\w+)", COMPOSE)) == given


def test_no_folder_is_left_to_the_engine_to_make():
    binds = [volume for each in SERVICES.values() for volume in each.get("volumes", ())]
    for volume in binds:
        if isinstance(volume, dict):
            assert volume["bind"] == {"create_host_path": False} and f"mkdir -p {volume['source'][3:]}" in COMPOSE
        elif volume.startswith("."):
            assert (INFRA / volume.partition(":")[0]).is_dir(), volume


def test_what_a_service_waits_for_can_come():
    for name, each in SERVICES.items():
        for other, wanted in each.get("depends_on", {}).items():
            awaited, condition = SERVICES[other], wanted["condition"]
            if condition == "service_healthy":
                assert "healthcheck" in awaited, (name, other)
            else:  # one that is started again when it is done never is
                assert condition == "service_completed_successfully", (name, other)
                assert awaited["restart"] == "on-failure", (name, other)


def test_ports_are_the_machines_own():
    ports = [port for each in SERVICES.values() for port in each.get("ports", ())]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)


def test_programs_of_the_services_come_with_the_project():
    started = {
        each["command"][0] for each in SERVICES.values() if each["image"] == "latecomer" and "entrypoint" not in each
    }
    assert started == {"airflow", "spark-class"}
    assert all((ROOT / ".venv" / "bin" / name).is_file() for name in started)


def test_what_the_image_copies_and_runs_is_there():
    lines = (INFRA / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = [name for line in lines if line.startswith("COPY") for name in line.split()[2:-1]]
    assert {"pyproject.toml", "requirements.lock", "infra/", "pipelines/"} <= set(copied)
    named = copied + re.findall(r"infra/[\w./]+\w", "\n".join(lines))
    assert [name for name in named if not (ROOT / name).exists()] == []
