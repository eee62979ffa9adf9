"""The pages of the quality report in Airflow's own API server: who sees which, and links behind a proxy."""

import json

import pytest

from tests.dags.support import Project

MANAGER = '''
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

class PerDag(SimpleAuthManager):
    """Users see the DAGs that have their own name as a beginning, and admins all."""

    def is_authorized_dag(self, *, method, user, access_entity=None, details=None):
        inner = super().is_authorized_dag(method=method, user=user, access_entity=access_entity, details=details)
        own = details is None or details.id is None or details.id.startswith(user.username)
        return inner and (own or user.role == "ADMIN")
'''
ASK = """
import json, sys
from airflow.api_fastapi.app import create_app
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.sdk import conf
from starlette.testclient import TestClient
DagBundlesManager().sync_bundles_to_db()
sync_bag_to_db(DagBag(conf.get("core", "dags_folder")), "dags-folder", None)
app = create_app()
from airflow import plugins_manager
(plugin,) = [plugin for plugin in plugins_manager._get_plugins()[0] if plugin.name == "latecomer"]
answers = {"href": plugin.external_views[0]["href"]}
with TestClient(app, base_url="http://localhost", follow_redirects=False) as client:
    manager = app.state.auth_manager
    for name, role in (("near", "VIEWER"), ("boss", "ADMIN"), ("", None)):
        token = manager.generate_jwt(SimpleAuthManagerUser(username=name, role=role)) if name else ""
        headers = {"Authorization": f"Bearer {token}"} if name else {}
        for path in json.loads(sys.argv[1]):
            answer = client.get(path, headers=headers)
            answers[f"{name}{path}"] = [answer.status_code, answer.headers.get("location", ""), answer.text]
print(json.dumps(answers))
"""
PATHS = ["", "index.html", "near.html", "pairs.html", "data_docs/near/index.html", "data_docs/pairs/index.html"]
TRICKS = [
    "./pairs.html",
    "%2e/pairs.html",
    "data_docs/near/../pairs/index.html",
    "data_docs/near/%2e%2e/pairs/index.html",
    "data_docs/near%2f..%2fpairs/index.html",
    "..%2fqueries/near.yaml",
    ".lock",
    "data_docs/",
]
SCRIPT = "<script>alert(1)</script>"


class BehindProxy(Project):
    """A project whose Airflow is served below ``/data/airflow``, with permissions by DAG."""

    @property
    def settings(self):
        return super().settings | {
            "AIRFLOW__CORE__AUTH_MANAGER": "per_dag.PerDag",
            "AIRFLOW__API__BASE_URL": "http://localhost/data/airflow",
            "AIRFLOW__API_AUTH__JWT_SECRET": "x" * 64,
        }

    @property
    def environment(self):
        inherited = super().environment
        return inherited | {"PYTHONPATH": f"{self.folder}:{inherited.get('PYTHONPATH', '')}"}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    project = BehindProxy(tmp_path_factory.mktemp("pages") / "project").write(("near", "pairs"))
    (project.folder / "per_dag.py").write_text(MANAGER)
    reports = project.folder / "reports"
    for name in ("near", "pairs"):
        (reports / "data_docs" / name).mkdir(parents=True)
        (reports / "data_docs" / name / "index.html").write_text(f"docs of {name}")
        row = (
            json.dumps({"query": name, "kind": SCRIPT, "unjudged": SCRIPT}).replace("<", "&lt;").replace('"', "&quot;")
        )
        page = f"<meta name='latecomer-summary' content='{row}'>page of {name}"
        (reports / f"{name}.html").write_text(page)
    (reports / "index.html").write_text("an index that lists near and pairs")
    (reports / ".lock").write_text("")
    project.migrate()
    return project.python(ASK, json.dumps([f"/data/airflow/latecomer/{path}" for path in [*PATHS, *TRICKS]]))


def status(answers, user, path):
    return answers[f"{user}/data/airflow/latecomer/{path}"][0]


def test_every_page_needs_a_login(answers):
    assert {status(answers, "", path) for path in [*PATHS, *TRICKS]} <= {401, 404}
    assert {status(answers, "", path) for path in PATHS} == {401}


def test_a_page_is_for_users_who_may_see_the_dag_of_its_query(answers):
    assert [status(answers, "boss", path) for path in PATHS] == [307, 200, 200, 200, 200, 200]
    assert [status(answers, "near", path) for path in PATHS] == [307, 200, 200, 403, 200, 403]
    shown = {path: answers[f"near/data/airflow/latecomer/{path}"] for path in TRICKS}
    assert all(code in (403, 404) and "of pairs" not in text for code, _, text in shown.values()), shown


def test_the_index_lists_what_its_user_may_see(answers):
    of_boss, of_near = (answers[f"{user}/data/airflow/latecomer/index.html"][2] for user in ("boss", "near"))
    assert "href='near.html'" in of_boss and "href='pairs.html'" in of_boss
    assert "href='near.html'" in of_near and "pairs" not in of_near


def test_links_work_below_the_path_of_a_proxy(answers):
    assert answers["href"] == "/data/airflow/latecomer/index.html"
    assert answers["boss/data/airflow/latecomer/"][1] == "index.html"
    index = answers["boss/data/airflow/latecomer/index.html"][2]
    assert "href='/" not in index and 'href="/' not in index


def test_names_stay_text(answers):
    index = answers["boss/data/airflow/latecomer/index.html"][2]
    assert SCRIPT not in index and index.count("&lt;script&gt;") == 4
