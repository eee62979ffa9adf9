"""Shows query files and stream files that are wrong as an import error in Airflow, with file, key and remedy.

It defines no DAG. Airflow parses only files that contain the words "airflow" and "DAG": these two are why it parses
this one.
"""

from __future__ import annotations

from latecomer.specs.deployment import stream_file_problems
from latecomer_common import STREAMS, read_query_files

_problems = [*read_query_files().problems.values(), *stream_file_problems(STREAMS).values()]
if _problems:
    raise ImportError("\n".join(_problems))
