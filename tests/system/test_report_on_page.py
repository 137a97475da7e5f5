"""What happens to a real stream is on the page after the next report: a drill, a killed driver, a lost checkpoint."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.airflow_runs import RunDag, states
from tests.support.command_line import run
from tests.support.declared_dags import declare_in
from tests.support.streams.data import SCHEMA, put_files

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

CHECKOUT = Path(__file__).parents[2]
#: The user's module, and an application that runs it until it has read all there is, or is killed in a batch.
STREAM = f"""
import os, signal
from pyspark.sql import SparkSession

def build(spark):
    frame = spark.readStream.schema("{SCHEMA}").option("maxFilesPerTrigger", 1).json("@INPUT@")
    return frame.groupBy("k").count()

def write(frame, batch):
    frame.count()
    if str(batch) == os.environ.get("KILLED_IN_BATCH"):
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    writer = build(spark).writeStream.outputMode("update").foreachBatch(write).trigger(availableNow=True)
    writer.option("checkpointLocation", "@CHECKPOINT@").start().awaitTermination()
"""


def row(pages: Path) -> dict[str, str]:
    """The row of the only stream on the page: title of the column -> text."""
    html = (pages / "index.html").read_text()
    titles = re.findall(r'<th scope="col">(.*?)</th>', html)
    [body] = re.findall(r"<tbody>\s*<tr>(.*?)</tr>", html, re.DOTALL)
    cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", body, re.DOTALL)
    plain = [" ".join(unescape(re.sub(r"<[^>]+>", " ", cell)).split()) for cell in cells]
    return dict(zip(titles, plain, strict=True))


def test_a_drill_a_killed_driver_and_a_lost_checkpoint(
    run_dag: RunDag, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    production, module = tmp_path / "production" / "orders", tmp_path / "orders_stream.py"
    module.write_text(STREAM.replace("@INPUT@", str(tmp_path / "in" / "a")).replace("@CHECKPOINT@", str(production)))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{CHECKOUT}")
    dags = declare_in(
        tmp_path,
        f"streams:\n  orders:\n    checkpoint: {production}\n    repository: {tmp_path}/backups\n"
        f"    sinks: [foreachBatch]\n    objectives: {{rpo: 1h, rto: 15m}}\n"
        f"    drill: {{build: 'orders_stream:build', scratch: {tmp_path}/scratch, output_mode: update, batches: 2}}\n",
    )

    def stream(**environment: str) -> int:
        """Run the stream; its exit code."""
        put_files(tmp_path / "in", 2, start=len(list((tmp_path / "in" / "a").glob("*"))))
        done = subprocess.run([sys.executable, module], timeout=240, cwd=tmp_path, env={**os.environ, **environment})
        return done.returncode

    def reported(state: str = "success") -> dict[str, str]:
        """One run of the report, which fails if it names a problem, then the page."""
        assert set(states(run_dag(dags["ckpt_report"])).values()) == {state}
        declaration = tmp_path / "dags" / "streams.yaml"
        made = run("report", tmp_path / "backups", "--html", tmp_path / "pages", "--streams", declaration)
        assert made.code == 0, made.err
        return row(tmp_path / "pages")

    (tmp_path / "in" / "a").mkdir(parents=True)
    assert stream() == 0
    repository = Repository.open_or_create(open_location(str(tmp_path / "backups")))
    create_backup(Checkpoint.at(open_location(str(production))), repository)
    before = reported()
    assert (before["Gap"], before["RPO"], before["RTO"]) == ("0", "met", "UNKNOWN")

    put_files(tmp_path / "in", 2, start=2)
    assert set(states(run_dag(dags["ckpt_drill"])).values()) == {"success"}
    drilled = reported()
    assert (drilled["Gap"], drilled["RPO"], drilled["RTO"]) == ("0", "met", "met")
    shown = " ".join(re.sub(r"<[^>]+>", " ", (tmp_path / "pages" / "stream-orders.html").read_text()).split())
    assert re.search(r"Last drill \S+ \S+ UTC , in [1-9]", shown), shown
    assert "RPO 1 h met RTO 15 min met" in shown

    assert stream(KILLED_IN_BATCH="3") == -signal.SIGKILL
    killed = reported()
    assert killed["Gap"] == "1"
    assert killed != drilled

    shutil.rmtree(production)
    lost = reported("failed")
    assert lost["Stands"].startswith("problem")
    assert lost["Gap"] == "UNKNOWN"
