"""The files `infra/compose.yaml` and `infra/Dockerfile` are valid, and agree with the files that they name.

No container is run. `tests/end_to_end/test_image.py` runs the steps of the image's build.
"""

import base64
import json
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from compose_spec import PyCompose
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
COMPOSE = (INFRA / "compose.yaml").read_text(encoding="utf-8")
SERVICES = YAML(typ="safe").load(COMPOSE)["services"]


def validated(compose):
    """Return a compose file as the specification's parser reads it; a ValueError says where it is wrong."""
    return PyCompose.from_json(json.dumps(compose))


def test_the_file_is_one_of_the_compose_specification():
    assert set(validated(YAML(typ="safe").load(COMPOSE)).service_names()) == set(SERVICES)


@pytest.mark.parametrize(
    ("service", "says"),
    [
        ({"commands": ["x"]}, "commands"),
        ({"healthcheck": {"test": ["CMD", "x"], "interval": "soon"}}, "soon"),
        ({"depends_on": {"b": {"condition": "service_helthy"}}}, "service_helthy"),
    ],
)
def test_a_wrong_key_or_value_is_refused(service, says):
    with pytest.raises(ValueError, match=says):
        validated({"services": {"a": {"image": "x"} | service}})


def test_services_have_no_rights_that_they_do_not_need():
    ours = [service for service in SERVICES.values() if service["image"] == "latecomer"]
    assert all("user" not in service and service["cap_drop"] == ["ALL"] for service in ours)
    assert re.findall(r"^USER (.*)$", (INFRA / "Dockerfile").read_text(), re.M)[-1] == "latecomer"
    for name, service in SERVICES.items():
        limits = service["deploy"]["resources"]["limits"]
        assert limits.keys() == {"cpus", "memory", "pids"}, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert name == "prepare" or "healthcheck" in service, name


def test_secrets_are_made_once_and_for_their_owner_alone(tmp_path):
    file = tmp_path / "compose.env"
    command = [sys.executable, INFRA / "make_env.py", file]
    subprocess.run(command, check=True)
    text = file.read_text()
    values = dict(line.split("=", 1) for line in text.splitlines())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert values["STORE_USER"] == "latecomer" and len(set(values.values())) == len(values) == 6
    assert all(len(value) == 64 for name, value in values.items() if name.endswith(("PASSWORD", "SECRET")))
    assert len(base64.urlsafe_b64decode(values["FERNET_KEY"])) == 32
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 1 and "is there already" in again.stderr and file.read_text() == text


def test_one_service_builds_the_image_of_all():
    services = {name: service for name, service in SERVICES.items() if service["image"] == "latecomer"}
    assert [name for name, service in services.items() if "build" in service] == ["store"]
    assert {service["pull_policy"] for name, service in services.items() if name != "store"} == {"never"}
    build = SERVICES["store"]["build"]
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
    assert started == {"airflow", "spark-class", "weed"}
    assert all((ROOT / ".venv" / "bin" / name).is_file() for name in started)


def test_the_files_that_the_image_copies_and_runs_exist():
    lines = (INFRA / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = [name for line in lines if line.startswith("COPY") and "--from" not in line for name in line.split()[1:-1]]
    copied = [name for name in copied if not name.startswith("--")]
    assert {"pyproject.toml", "requirements.lock", "dags/", "pipelines/"} <= set(copied)
    named = copied + re.findall(r"infra/\w+\.py", "\n".join(lines))
    assert [name for name in named if not (ROOT / name).exists()] == []
    ignored = (INFRA / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert {name.split("/")[0] for name in copied} <= {line[1:] for line in ignored if line.startswith("!")}
