"""The quality report inside Airflow: the static pages of the report folder, each for users who may see its DAG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from latecomer.airflow.settings import place
from latecomer.quality import report_index

EMPTY = """<!doctype html><html lang='en'><meta charset='utf-8'><title>Latecomer: quality</title>
<body style='font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:40rem'><h1>Latecomer: quality</h1>
<p>No report yet. A query's check writes one; it runs after the query has new rows.</p>
</body></html>"""
MISSING = "no such page: has `latecomer check --report` been run?"
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "object-src 'none'",
}


def application() -> Any:
    """Return a FastAPI application that serves the folder of reports.

    Airflow mounts a plugin's application beside its own and does not protect it. So every route here requires what
    Airflow's own pages require: 401 without a login, 403 for a user who may not see the DAG of the page's query. The
    index lists the queries whose DAGs the user may see. Links within the pages are relative, so they work behind a
    proxy that serves Airflow below a path.
    """
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.core_api.security import get_user, requires_access_dag
    from fastapi import Depends, FastAPI, HTTPException
    from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse

    app = FastAPI(title="Latecomer quality", docs_url=None, redoc_url=None, openapi_url=None)
    logged_in = Depends(get_user)

    def folder() -> Path:
        return Path(place("reports")).resolve()

    def send(path: str) -> Any:
        """Return one file of the report; no file outside the folder, and no hidden file."""
        file = (folder() / path).resolve()
        inside = file.is_relative_to(folder())
        hidden = inside and any(part.startswith(".") for part in file.relative_to(folder()).parts)
        if inside and not hidden and file.is_file():
            return FileResponse(file, headers=HEADERS)
        raise HTTPException(404, MISSING)

    def root() -> Any:
        """Redirect to the index page, so that its relative links work."""
        return RedirectResponse("index.html")

    def index(user: Any = logged_in) -> Any:
        """Return the index of the queries whose DAGs the user may see."""
        if not any(path.name != "index.html" for path in folder().glob("*.html")):
            return HTMLResponse(EMPTY, headers=HEADERS)
        visible = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
        return HTMLResponse(report_index.text(folder(), visible.__contains__), headers=HEADERS)

    def page(dag_id: str) -> Any:
        """Return the page of a query; its DAG has its name."""
        return send(report_index.page_name(dag_id))

    def page_of_index() -> Any:
        """Return the page of a query that is named as the index."""
        return page("index")

    def nothing(path: str) -> Any:
        """Return no other file, under whatever name."""
        raise HTTPException(404, MISSING)

    def data_docs(dag_id: str, path: str) -> Any:
        """Return a file of the Data Docs of a query."""
        if "/" in dag_id or dag_id in (".", ".."):
            raise HTTPException(404, MISSING)
        file = (folder() / report_index.DATA_DOCS / dag_id / path).resolve()
        if not file.is_relative_to(folder() / report_index.DATA_DOCS / dag_id):
            raise HTTPException(404, MISSING)
        return send(f"{report_index.DATA_DOCS}/{dag_id}/{path}")

    # added by call: with annotations as text, decorators would look for these names in the module
    any_dag, its_dag = Depends(requires_access_dag(method="GET")), Depends(requires_access_dag(method="GET"))
    app.get("/", dependencies=[any_dag])(root)
    app.get("/index.html", dependencies=[any_dag])(index)
    of_index = Depends(requires_access_dag(method="GET", param_dag_id="index"))
    app.get("/index.query.html", dependencies=[of_index])(page_of_index)
    app.get("/{dag_id}.html", dependencies=[its_dag])(page)
    app.get(f"/{report_index.DATA_DOCS}/{{dag_id}}/{{path:path}}", dependencies=[its_dag])(data_docs)
    app.get("/{path:path}", dependencies=[any_dag])(nothing)
    return app
