"""Shows query files and stream files that are wrong as an import error in Airflow, with file, key and remedy.

It defines no DAG. Airflow parses only files that contain the words "airflow" and "DAG": these two are why it parses
this one.
"""

from __future__ import annotations

from latecomer_common import read_query_files

if _problems := read_query_files().problems:
    raise ImportError("\n".join(_problems))
