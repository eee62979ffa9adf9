"""The quality report inside Airflow: the static pages of the report folder, for users who may see DAGs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

EMPTY = """<!doctype html><html lang='en'><meta charset='utf-8'><title>Latecomer: quality</title>
<body style='font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:40rem'><h1>Latecomer: quality</h1>
<p>No report yet. A query's <code>check</code> task writes one; it runs after the query has new rows.</p>
</body></html>"""
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "object-src 'none'",
}


def application() -> Any:
    """Return a FastAPI application that serves the folder ``LATECOMER_REPORTS``.

    Airflow mounts a plugin's application beside its own and does not protect it. So every route here requires what the
    list of DAGs requires: 401 without a login, 403 for a user who may not see DAGs.
    """
    from airflow.api_fastapi.core_api.security import requires_access_dag
    from fastapi import Depends, FastAPI, HTTPException
    from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse

    folder = Path(os.environ.get("LATECOMER_REPORTS") or Path(__file__).resolve().parents[3] / "build" / "reports")
    app = FastAPI(
        title="Latecomer quality",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(requires_access_dag(method="GET"))],
    )

    def root() -> Any:
        """Redirect to the index page, so that its relative links work."""
        return RedirectResponse("index.html")

    def page(path: str) -> Any:
        """Return one file of the report; no file outside the folder, and no hidden file."""
        file = (folder / path).resolve()
        inside = file.is_relative_to(folder.resolve())
        hidden = inside and any(part.startswith(".") for part in file.relative_to(folder.resolve()).parts)
        if inside and not hidden and file.is_file():
            return FileResponse(file, headers=HEADERS)
        if path == "index.html":
            return HTMLResponse(EMPTY, headers=HEADERS)
        raise HTTPException(404, "no such page: has `latecomer check --report` been run?")

    # added by call: with annotations as text, decorators would look for these names in the module
    app.get("/")(root)
    app.get("/{path:path}")(page)
    return app
