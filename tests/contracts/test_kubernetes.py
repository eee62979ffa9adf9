"""The manifests of `infra/kubernetes` have the keys that Kubernetes knows, and agree with each other."""

import re
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

FOLDER = Path(__file__).parents[2] / "infra" / "kubernetes"
VERSION = "1.34"
CONNECT = FOLDER / "spark-connect.yaml"


def manifests():
    return {document["kind"]: document for document in YAML(typ="safe").load_all(CONNECT.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("kind", ["Deployment", "ConfigMap", "Service", "NetworkPolicy"])
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
    server, proxy = pod["spec"]["containers"]
    labels = pod["metadata"]["labels"]
    for selector in (
        known["Deployment"]["spec"]["selector"]["matchLabels"],
        known["Service"]["spec"]["selector"],
        known["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    assert proxy["ports"][0]["containerPort"] == known["Service"]["spec"]["ports"][0]["port"]
    assert proxy["ports"][0]["containerPort"] == known["NetworkPolicy"]["spec"]["ingress"][0]["ports"][0]["port"]
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    for mount in [*server["volumeMounts"], *proxy["volumeMounts"]]:
        assert mount["name"] in volumes
    assert volumes["proxy"]["configMap"]["name"] == known["ConfigMap"]["metadata"]["name"]


def test_tls_ends_within_the_pod():
    """The server listens on loopback alone, so what crosses the network is what the proxy has encrypted."""
    known = manifests()
    server, proxy = known["Deployment"]["spec"]["template"]["spec"]["containers"]
    settings = dict(word.split("=", 1) for word in server["command"] if word.startswith("spark.") and "=" in word)
    assert settings["spark.connect.grpc.binding.address"] == "127.0.0.1" and "ports" not in server
    lines = known["ConfigMap"]["data"]["haproxy.cfg"].splitlines()
    (bind,) = [line.split() for line in lines if line.strip().startswith("bind ")]
    (backend,) = [line.split()[2] for line in lines if line.strip().startswith("server ")]
    assert backend == f"127.0.0.1:{settings['spark.connect.grpc.binding.port']}"
    assert bind[1] == f":{proxy['ports'][0]['containerPort']}" and bind[-2:] == ["alpn", "h2"]  # gRPC is HTTP/2
    certificate = Path(bind[bind.index("crt") + 1])
    volumes = {volume["name"]: volume for volume in known["Deployment"]["spec"]["template"]["spec"]["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in proxy["volumeMounts"]}
    items = {item["path"]: item["key"] for item in mounts[str(certificate.parent)]["secret"]["items"]}
    assert items == {certificate.name: "tls.crt", f"{certificate.name}.key": "tls.key"}


def test_the_image_states_no_setting_of_the_machine_that_built_it(tmp_path):
    dockerfile = (FOLDER.parent / "Dockerfile").read_text(encoding="utf-8")
    assert "spark_properties.py --portable /opt/latecomer/connect.properties" in dockerfile
    (server, _) = manifests()["Deployment"]["spec"]["template"]["spec"]["containers"]
    words = " ".join(server["command"])
    assert all(given in words for given in ("--master", "--driver-memory", "spark.sql.shuffle.partitions="))
    written = {}
    for name, options in (("here", []), ("portable", ["--portable"])):
        file = tmp_path / name
        subprocess.run([sys.executable, FOLDER.parent / "spark_properties.py", *options, file], check=True)
        written[name] = dict(line.split(" ", 1) for line in file.read_text(encoding="utf-8").splitlines())
    left_out = {"spark.master", "spark.driver.memory", "spark.sql.shuffle.partitions", "spark.sql.warehouse.dir"}
    assert written["here"].keys() - written["portable"].keys() == left_out
    assert written["portable"].items() <= written["here"].items() and "spark.sql.extensions" in written["portable"]
    assert "/opt/latecomer/connect.properties" in (FOLDER.parent / "Dockerfile").read_text(encoding="utf-8")


def test_no_secret_stands_in_a_file_or_on_a_command_line():
    container, _ = manifests()["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert [variable["name"] for variable in container["env"] if "value" in variable] == []
    assert not [word for word in container["command"] if re.search("token|secret|password", word, re.I)]


@pytest.fixture
def values():
    return YAML(typ="safe").load((FOLDER / "airflow-values.yaml").read_text(encoding="utf-8"))


def test_values_of_the_chart_name_the_same_secrets_and_labels(values):
    (allowed,) = manifests()["NetworkPolicy"]["spec"]["ingress"][0]["from"]
    assert allowed["podSelector"]["matchLabels"].items() <= values["labels"].items()
    named = {source["secretRef"]["name"] for source in YAML(typ="safe").load(values["extraEnvFrom"])}
    texts = [(FOLDER / name).read_text(encoding="utf-8") for name in ("spark-connect.yaml", "airflow-values.yaml")]
    assert named <= set(re.findall(r"create secret generic ([\w-]+)", " ".join(texts)))


def test_every_pod_has_the_query_files_and_the_shared_reports(values):
    """Volumes and mounts are valid parts of a pod, and the settings name the folders of the mounts."""
    claim = YAML(typ="safe").load((FOLDER / "reports.yaml").read_text(encoding="utf-8"))
    kubernetes_validate.validate(claim, VERSION, strict=True)
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    container = {"name": "a", "image": "b", "env": values["env"], "volumeMounts": values["volumeMounts"]}
    pod = {"containers": [container], "volumes": values["volumes"]}
    kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", "spec": pod}, VERSION, strict=True)
    environment = {variable["name"]: variable["value"] for variable in values["env"]}
    volumes = {volume["name"]: volume for volume in values["volumes"]}
    places = {mount["mountPath"]: volumes[mount["name"]] for mount in values["volumeMounts"]}
    assert places[environment["LATECOMER_REPORTS"]]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    text = (FOLDER / "airflow-values.yaml").read_text(encoding="utf-8")
    for name in ("QUERIES", "STREAMS"):
        assert f"create configmap {places[environment[f'LATECOMER_{name}']]['configMap']['name']} " in text
    dockerfile = (FOLDER.parent / "Dockerfile").read_text(encoding="utf-8")
    for name, value in (("AIRFLOW_HOME", values["airflowHome"]), ("AIRFLOW__CORE__DAGS_FOLDER", None)):
        assert f"{name}={value or environment[name]}" in dockerfile
    assert "apache-airflow-providers-fab==" in dockerfile and ".fab." in values["config"]["core"]["auth_manager"]
    assert values["triggerer"]["enabled"] is True
