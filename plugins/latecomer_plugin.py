"""Registers the data-quality pages with Airflow's UI; the pages themselves are :mod:`latecomer.quality.web`."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin
from latecomer.quality.web import application


class LatecomerPlugin(AirflowPlugin):
    """A page per query behind Airflow's own login: shown inside the UI, and linked from its menu (Browse)."""

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
