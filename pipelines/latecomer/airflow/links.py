"""The links that a task of Latecomer shows in Airflow's UI: the query's quality report, and Spark's own UI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.sdk import BaseOperatorLink, conf

from latecomer.quality.report_index import page_name

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

PAGES = "/latecomer"
"""The path below Airflow's own at which the plugin serves the report."""


def base_path() -> str:
    """Return the path of ``[api] base_url``, behind which a proxy serves Airflow; empty where there is none."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")


class ReportLink(BaseOperatorLink):
    """The link to the page of the task's query."""

    name = "Quality report"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """Return the address of the page, below the path of Airflow's base URL."""
        query = getattr(operator, "query_name", None)
        return f"{base_path()}{PAGES}/{page_name(query) if query else 'index.html'}"


class SparkUiLink(BaseOperatorLink):
    """The link to Spark's UI, where the extra of the Spark connection states one as ``ui``."""

    name = "Spark UI"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """Return the address that the connection states; empty where it states none."""
        return getattr(operator, "spark_ui", None) or ""
