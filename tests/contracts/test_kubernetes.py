"""The manifests of `infra/kubernetes` have the keys that Kubernetes knows, and agree with each other."""

import re
from pathlib import Path

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

FOLDER = Path(__file__).parents[2] / "infra" / "kubernetes"
VERSION = "1.34"
CONNECT = FOLDER / "spark-connect.yaml"


def manifests():
    return {document["kind"]: document for document in YAML(typ="safe").load_all(CONNECT.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("kind", ["Deployment", "Service", "NetworkPolicy"])
def test_a_manifest_is_valid(kind):
    kubernetes_validate.validate(manifests()[kind], VERSION, strict=True)


def test_a_wrong_key_is_refused():
    wrong = manifests()["Deployment"]
    wrong["spec"]["template"]["spec"]["container"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="container"):
        kubernetes_validate.validate(wrong, VERSION, strict=True)


def test_the_parts_agree():
    known = manifests()
    pod = known["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    labels = pod["metadata"]["labels"]
    for selector in (
        known["Deployment"]["spec"]["selector"]["matchLabels"],
        known["Service"]["spec"]["selector"],
        known["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    assert f"spark.connect.grpc.binding.port={container['ports'][0]['containerPort']}" in container["command"]
    assert container["ports"][0]["containerPort"] == known["Service"]["spec"]["ports"][0]["port"]
    assert "/opt/latecomer/connect.properties" in (FOLDER.parent / "Dockerfile").read_text(encoding="utf-8")


def test_no_secret_stands_in_a_file_or_on_a_command_line():
    (container,) = manifests()["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert [variable["name"] for variable in container["env"] if "value" in variable] == []
    assert not [word for word in container["command"] if re.search("token|secret|password", word, re.I)]


def test_values_of_the_chart_name_the_same_secrets_and_labels():
    values = YAML(typ="safe").load((FOLDER / "airflow-values.yaml").read_text(encoding="utf-8"))
    (allowed,) = manifests()["NetworkPolicy"]["spec"]["ingress"][0]["from"]
    assert allowed["podSelector"]["matchLabels"].items() <= values["labels"].items()
    named = {source["secretRef"]["name"] for source in YAML(typ="safe").load(values["extraEnvFrom"])}
    made = set(re.findall(r"create secret generic ([\w-]+)", CONNECT.read_text() + str(FOLDER)))
    assert "latecomer-store" in named & made
