"""The quality report inside Airflow: static pages from the report folder, for whoever may see DAGs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any


def application() -> Any:
    """A FastAPI application that serves ``LATECOMER_REPORTS``; every request needs Airflow's login."""
    from airflow.api_fastapi.core_api.security import get_user
    from fastapi import Depends, FastAPI, HTTPException
    from fastapi.responses import FileResponse, RedirectResponse

    app = FastAPI(title="Latecomer quality", docs_url=None, redoc_url=None, openapi_url=None)
    folder = Path(os.environ.get("LATECOMER_REPORTS") or Path(__file__).resolve().parents[3] / "build" / "reports")

    def root(user: Annotated[Any, Depends(get_user)]) -> Any:
        """The index page, at a path that ends in a slash so that its links work."""
        return RedirectResponse("index.html")

    def page(path: str, user: Annotated[Any, Depends(get_user)]) -> Any:
        """One file of the report; nothing outside the folder."""
        wanted = (folder / path).resolve()
        if not wanted.is_relative_to(folder.resolve()) or not wanted.is_file():
            raise HTTPException(404, "no such page: has `latecomer check --report` been run?")
        return FileResponse(wanted)

    root.__annotations__["user"] = page.__annotations__["user"] = Annotated[Any, Depends(get_user)]
    app.get("/")(root)
    app.get("/{path:path}")(page)
    return app
