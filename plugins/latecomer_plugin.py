"""Registers the data-quality pages with Airflow's UI; the pages themselves are :mod:`latecomer.quality.web`."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin
from latecomer.quality.web import application


class LatecomerPlugin(AirflowPlugin):
    """A page per query behind Airflow's own login, linked from the menu."""

    name = "latecomer"
    fastapi_apps = [{"app": application(), "url_prefix": "/latecomer", "name": "Latecomer quality"}]
    external_views = [
        {
            "name": "Latecomer quality",
            "href": "/latecomer/",
            "destination": "nav",
            "category": "browse",
            "url_route": "latecomer_quality",
        }
    ]
