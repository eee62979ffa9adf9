"""The plugin that adds the data-quality pages of :mod:`latecomer.quality.web` to Airflow's UI."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin
from latecomer.quality.web import application


class LatecomerPlugin(AirflowPlugin):
    """Register a page per query behind Airflow's login, shown inside the UI and linked from its menu (Browse)."""

    name = "latecomer"
    fastapi_apps = [{"app": application(), "url_prefix": "/latecomer", "name": "Latecomer quality"}]
    external_views = [
        {
            "name": "Latecomer quality",
            "href": "/latecomer/index.html",
            "destination": "nav",
            "category": "browse",
            "url_route": "latecomer_quality",
        }
    ]
