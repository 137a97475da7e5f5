"""Applications as processes of their own: one that commits batches, one that fails, one that hangs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.jobs.application_trial import run_application
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.upgrade.rehearsal.report import Failure, TrialBatch
from tests.support.one_checkpoint import NEWEST, unpack

#: Stands in for a stream: it commits a batch more, by the checkpoint it is given, and continues until it is asked to stop.
COMMITS = """
import pathlib, sys, time
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
ck = pathlib.Path(given["--checkpoint"])
assert given["--sink"]
n = max(int(p.name) for p in (ck / "commits").iterdir() if p.name.isdigit())
for log in ("offsets", "commits"):
    (ck / log / str(n + 1)).write_bytes((ck / log / str(n)).read_bytes())
time.sleep(600)
"""
FAILS = """
import sys
print("pyspark.errors.StreamingQueryException: [STREAM_FAILED] Query terminated with exception: "
      "[STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA] Streaming stateful operator name does not match")
sys.exit(1)
"""


def run(tmp_path: Path, program: str, *, timeout: float = 60.0) -> tuple[list[TrialBatch], Failure | None]:
    script = tmp_path / "app.py"
    script.write_text(program)
    place = unpack(tmp_path / "ck")
    return run_application(
        f"{sys.executable} {script}",
        open_location(str(place)),
        checkpoint=str(place),
        sink=str(tmp_path / "sink"),
        after=NEWEST,
        last=NEWEST + 1,
        timeout=timeout,
    )


def test_it_is_ended_once_it_has_committed(tmp_path: Path):
    batches, failure = run(tmp_path, COMMITS, timeout=600.0)
    assert failure is None
    assert [batch.batch_id for batch in batches] == [NEWEST + 1]


def test_what_spark_said_is_explained(tmp_path: Path):
    batches, failure = run(tmp_path, FAILS)
    assert batches == []
    assert failure is not None
    assert failure.code == "OPERATORS-CHANGED"
    assert failure.advice
    assert failure.advice["steps"]


def test_an_exit_that_nobody_knows(tmp_path: Path):
    _, failure = run(tmp_path, "import sys; print('no such customer'); sys.exit(7)")
    assert failure is not None
    assert (failure.code, failure.message) == ("APPLICATION-EXIT", "exit code 7: no such customer")


def test_it_has_its_time(tmp_path: Path):
    batches, failure = run(tmp_path, "import time; time.sleep(600)", timeout=0.5)
    assert (batches, failure and failure.code) == ([], "TIMEOUT")


def test_no_such_command(tmp_path: Path):
    place = unpack(tmp_path / "ck")
    with pytest.raises(RefusedError, match="cannot be started"):
        run_application(
            "no-such-command-here", open_location(str(place)), checkpoint="c", sink="s", after=5, last=6, timeout=1.0
        )
