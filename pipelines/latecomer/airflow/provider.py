"""The description by which Airflow lists this package among its providers. It imports nothing of Airflow."""

from __future__ import annotations

from typing import Any

from latecomer.airflow.settings import OPTIONS


def get_provider_info() -> dict[str, Any]:
    """Return what Airflow asks of a provider: operator, links, and the section of the configuration."""
    options = {
        name: {
            "description": meaning,
            "version_added": "0.2.0",
            "type": "string",
            "example": None,
            "default": None,
        }
        for name, meaning in OPTIONS.items()
    }
    return {
        "package-name": "latecomer",
        "name": "Latecomer",
        "description": "Continuous queries over event data that arrives out of order.",
        "operators": [{"integration-name": "Latecomer", "python-modules": ["latecomer.airflow.operator"]}],
        "integrations": [{"integration-name": "Latecomer", "external-doc-url": "", "tags": ["service"]}],
        "extra-links": ["latecomer.airflow.links.ReportLink", "latecomer.airflow.links.SparkUiLink"],
        "config": {"latecomer": {"description": "Places, schedules and limits of Latecomer.", "options": options}},
    }
