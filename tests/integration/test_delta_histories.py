"""Random histories of a Delta table that a stream and others write to: see ``sink_recovery.py`` for what has to hold.

In every fifth one a real streaming query writes. In the others each batch is written with its ``txnAppId`` and ``txnVersion``,
as Delta's sink does it, into a checkpoint that the test keeps: that is faster, and a replay can go to a copy of the table.

Histories without Spark: ``unit/sinks/test_delta_histories.py``.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from tests.support.delta_histories import happen
from tests.support.delta_history import FEW_TASKS, History, StreamHistory
from tests.support.delta_log_files import newest_version
from tests.support.sink_recovery import run_histories
from tests.support.streams.spark_host import SparkHost, coordinates

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(4 * 3600)]


def test_every_history_is_row_exact(tmp_path: Path) -> None:
    """60 by Spark."""
    host = SparkHost(tmp_path / "spark.log", packages=coordinates("spark-jars.txt"), conf=FEW_TASKS)

    def make(number: int, chance: random.Random) -> History:
        return (StreamHistory if number % 5 == 4 else History)(host, tmp_path / str(number), chance)

    run_histories(60, make, happen)
    host.kill()


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
