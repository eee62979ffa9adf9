"""The files `infra/compose.yaml` and `infra/Dockerfile` agree with the files that they name. No container is run."""

import re
from pathlib import Path

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
COMPOSE = (INFRA / "compose.yaml").read_text(encoding="utf-8")
SERVICES = YAML(typ="safe").load(COMPOSE)["services"]


def test_one_service_builds_the_image_of_all():
    services = {name: service for name, service in SERVICES.items() if service["image"] == "latecomer"}
    assert [name for name, service in services.items() if "build" in service] == ["prepare"]
    assert {service["pull_policy"] for name, service in services.items() if name != "prepare"} == {"never"}
    build = SERVICES["prepare"]["build"]
    assert (INFRA / build["context"] / build["dockerfile"]).is_file()


def test_every_variable_is_in_the_example():
    example = (INFRA / "compose.env.example").read_text(encoding="utf-8")
    given = {line.partition("=")[0] for line in example.splitlines() if "=" in line and not line.startswith("#")}
    assert set(re.findall(r"\$\{(\w+)", COMPOSE)) == given


def test_every_bound_folder_exists_before_the_engine_starts():
    volumes = [volume for service in SERVICES.values() for volume in service.get("volumes", ())]
    for volume in volumes:
        if isinstance(volume, dict):
            assert volume["bind"] == {"create_host_path": False} and f"mkdir -p {volume['source'][3:]}" in COMPOSE
        elif volume.startswith("."):
            assert (INFRA / volume.partition(":")[0]).is_dir(), volume


def test_every_condition_of_a_dependency_can_be_met():
    for name, service in SERVICES.items():
        for other, dependency in service.get("depends_on", {}).items():
            condition = dependency["condition"]
            if condition == "service_healthy":
                assert "healthcheck" in SERVICES[other], (name, other)
            else:  # a service that is always restarted never completes
                assert condition == "service_completed_successfully", (name, other)
                assert SERVICES[other]["restart"] == "on-failure", (name, other)


def test_ports_are_open_to_the_machine_alone():
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)


def test_programs_of_the_services_come_with_the_project():
    services = [service for service in SERVICES.values() if service["image"] == "latecomer"]
    started = {service["command"][0] for service in services if "entrypoint" not in service}
    assert started == {"airflow", "spark-class"}
    assert all((ROOT / ".venv" / "bin" / name).is_file() for name in started)


def test_the_files_that_the_image_copies_and_runs_exist():
    lines = (INFRA / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = [name for line in lines if line.startswith("COPY") for name in line.split()[2:-1]]
    assert {"pyproject.toml", "requirements.lock", "infra/", "pipelines/"} <= set(copied)
    named = copied + re.findall(r"infra/[\w./]+\w", "\n".join(lines))
    assert [name for name in named if not (ROOT / name).exists()] == []
