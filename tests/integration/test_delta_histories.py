"""Random histories of a Delta table that a stream and others write to: see ``sink_recovery.py`` for what has to hold.

In every fifth one a real streaming query writes. In the others each batch is written with its ``txnAppId`` and ``txnVersion``,
as Delta's sink does it, into a checkpoint that the test keeps: that is faster, and a replay can go to a copy of the table.

Histories without Spark: ``unit/sinks/test_delta_histories.py``.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from tests.support.delta_history import FEW_TASKS, History, StreamHistory, newest_version
from tests.support.sink_model import rows_after
from tests.support.sink_recovery import recover, run_histories
from tests.support.streams.spark_host import SparkHost, coordinates

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(4 * 3600)]


def test_every_history_is_row_exact(tmp_path: Path) -> None:
    """60 by Spark."""
    host = SparkHost(tmp_path / "spark.log", packages=coordinates("spark-jars.txt"), conf=FEW_TASKS)

    def make(number: int, chance: random.Random) -> History:
        return (StreamHistory if number % 5 == 4 else History)(host, tmp_path / str(number), chance)

    run_histories(60, make, happen)
    host.kill()


def happen(history: History, count: Counter[str]) -> None:
    """Let things happen, and recover in the end."""
    chance, told = history.chance, history.told
    told.append(f"ran to {history.run(chance.randint(2, 4))[-1]}")
    for _ in range(chance.randint(3, 8)):
        what = chance.choices(["others", "run", "faulty", "recover"], [6, 2, 1, 2])[0]
        if what == "others":
            told.append(history.others())
        elif what == "recover":
            recover(history, count)
        else:
            history.run(chance.randint(1, 2), faulty=what == "faulty")
            told.append(f"{what} to {history.newest}")
        count[told[-1].partition(" (")[0]] += 1
        assert history.held() == rows_after(history.line), f"after {told[-1]}: the model is wrong"
    recover(history, count)


def test_a_deletion_vector_that_vacuum_removed(tmp_path: Path) -> None:
    """All data files are there, and Spark restores the version; it could not be read any more, so the plan refuses it."""
    host = SparkHost(tmp_path / "spark.log", packages=coordinates("spark-jars.txt"), conf=FEW_TASKS)
    history = History(host, tmp_path / "table", random.Random(1), kind="sink")
    table = f"delta.`{history.out}`"
    history.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    history.run(2)
    history.sql(f"OPTIMIZE {table}", f"DELETE FROM {table} WHERE id = '1-0'")
    version = newest_version(history.out)
    history.run(1)
    history.sql(f"DELETE FROM {table} WHERE id = '1-1'")
    rollback = history.plan(1, SinkPolicy.ROLLBACK).sink.rollback
    assert rollback
    assert (rollback.to_version, rollback.feature) == (version, "deletionVectors")
    history.others("vacuum")
    with pytest.raises(RefusedError, match=r"needs the data file deletion_vector_\S+\.bin, which is gone \(VACUUM\)"):
        history.plan(1, SinkPolicy.ROLLBACK)
    history.sql(f"RESTORE TABLE {table} TO VERSION AS OF {version}")
    with pytest.raises(AssertionError, match="deletion_vector"):
        history.held()
    host.kill()
