"""The plugin's pages for an environment whose installed package is older than the plugin's entry point."""

from importlib.metadata import entry_points

if not entry_points(group="airflow.plugins", name="latecomer"):
    from latecomer.airflow.plugin import LatecomerPlugin  # noqa: F401
