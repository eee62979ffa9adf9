"""`latecomer expire`: remove files that no version of a table needs any more."""

from __future__ import annotations

from dataclasses import asdict

import click

from latecomer.jobs.command_options import JSON, LAKE, show_result
from latecomer.specs.errors import quantity


@click.command()
@LAKE
@click.option("--dry-run", is_flag=True, help="Count the files, and remove none.")
@JSON
def expire(lake_uri: str, dry_run: bool, as_json: bool) -> None:
    """Remove files that no version of a table needs any more.

    Commands maintain the tables that they write. This does it for tables whose commands run no more, and removes what
    killed commands have left. No row is removed. Files are kept for a week after they were replaced. Tables at which a
    command is at work are left alone, and named.
    """
    from latecomer.lake import expire as job
    from latecomer.lake.lake import Lake

    done = job.expire(Lake(lake_uri), dry_run=dry_run)
    size = f"{done.size_bytes / 1e6:,.1f} MB"
    lines = [f"{'would remove' if dry_run else 'removed'} {quantity(done.files, 'file')} ({size})"]
    lines += [f"left alone, a command is at work: {', '.join(done.busy)}"] if done.busy else []
    lines += [f"could not be read: {', '.join(done.unread)}"] if done.unread else []
    show_result(as_json, asdict(done), "; ".join(lines))
