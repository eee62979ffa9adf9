"""The plugin that adds the pages of ``latecomer.airflow.web`` to Airflow's UI."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from latecomer.airflow.links import PAGES, base_path
from latecomer.airflow.web import application


class LatecomerPlugin(AirflowPlugin):
    """Register a page per query behind Airflow's login, shown inside the UI and linked from its menu (Browse)."""

    name = "latecomer"
    fastapi_apps = [{"app": application(), "url_prefix": PAGES, "name": "Latecomer quality"}]
    external_views = [
        {
            "name": "Latecomer quality",
            "href": f"{base_path()}{PAGES}/index.html",
            "destination": "nav",
            "category": "browse",
            "url_route": "latecomer_quality",
        }
    ]
