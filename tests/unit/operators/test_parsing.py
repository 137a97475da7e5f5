"""Parsing the example DAGs costs no I/O: the DAG processor does it again every few seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DAGS = sorted((Path(__file__).parents[3] / "dags").glob("*.py"))

#: Prints the id of each DAG, or what its file did that it should not.
_PARSE = """
import runpy, sys
# What these load once is not the DAG files' doing.
from airflow.sdk import DAG, AssetAlias, Param, task
from airflow.providers.apache.spark.operators import spark_submit  # with OpenLineage, where that is installed
from airflow.providers.databricks.operators import databricks
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow_ckpt_provider.operators import backup, restore, seal, verify

DAG("warm", schedule=None)
watching = False

def watch(event, arguments):
    if not watching:
        return
    remote = event in ("socket.connect", "socket.getaddrinfo", "sqlite3.connect", "subprocess.Popen")
    # A number is a file that was opened by its path before: Python writes the bytecode of what it loads first that way.
    if event == "open" and not isinstance(arguments[0], int):
        remote = not str(arguments[0]).endswith((".py", ".pyc")) and "__pycache__" not in str(arguments[0])
    if remote:
        raise AssertionError(event)

sys.addaudithook(watch)
for file in sys.argv[1:]:
    try:
        watching = True
        names = runpy.run_path(file)
        said = names["dag"].dag_id
    except AssertionError as e:
        said = str(e)
    finally:
        watching = False
    print(said)
"""


def test_no_io(tmp_path: Path) -> None:
    writes = tmp_path / "writes.py"
    writes.write_text(f"from pathlib import Path\nPath({str(tmp_path / 'x')!r}).write_text('')\n")
    asks = tmp_path / "asks.py"
    asks.write_text("import socket\nsocket.create_connection(('127.0.0.1', 9))\n")
    files = map(str, [*DAGS, writes, asks])
    done = subprocess.run([sys.executable, "-c", _PARSE, *files], capture_output=True, text=True, check=True)
    said = done.stdout.splitlines()[-len(DAGS) - 2 :]
    assert said[:-2] == [file.stem for file in DAGS]
    assert said[-2:] == ["open", "socket.getaddrinfo"], "the watch itself has to work"
