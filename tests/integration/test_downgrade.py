"""Checkpoints of Spark 4.3.0 started by Spark 4.0.0: what the comparison says before, and what Spark does."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.query_shape import read_query_shape
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.upgrade.compatibility.compatibility import compare
from airflow_ckpt_provider.upgrade.compatibility.description import QueryDescription
from tests.samples.archives import sample
from tests.samples.kinds import KINDS
from tests.samples.service import SampleService
from tests.samples.sparks import Sparks
from tests.support.moved_spark import Moved

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

NEEDS, NEWER = "NEEDS-NEWER-SPARK", "WRITTEN-BY-NEWER-SPARK"
#: kind of the 4.3.0 sample -> the kind as which 4.0.0 runs it, what the comparison says, and
#: what Spark's error holds (empty: it continues).
CASES = {
    "file_to_foreachbatch": ("file_to_foreachbatch", NEWER, ""),
    "hdfs_agg": ("hdfs_agg", NEWER, ""),
    "rocks_changelog_agg": ("rocks_changelog_agg", NEWER, ""),
    "hdfs_ssjoin": ("hdfs_ssjoin", NEWER, ""),
    "offset_log_v2": (
        "two_sources_union",
        NEEDS,
        "MALFORMED_LOG_FILE|UnsupportedLogVersion|maximum supported log version",
    ),
    "commit_log_v3": ("rocks_ckptv2_agg", NEEDS, "MALFORMED_LOG_FILE|maximum supported log version|v3"),
    "rocks_rowchecksum": ("rocks_changelog_agg", NEEDS, "STATE_STORE_VALUE_ROW_FORMAT_VALIDATION_FAILURE"),
    "rocks_ssjoin_v4": ("rocks_ssjoin_v2", NEEDS, r"stateFormatVersion is invalid\. Valid versions are 1 and 2"),
}


@pytest.fixture
def spark(sparks: Sparks, kind: str) -> SampleService:
    return sparks.of("4.0.0", KINDS[CASES[kind][0]].jvm)


@pytest.mark.parametrize("kind", CASES)
def test_downgrade(kind: str, spark: SampleService, tmp_path: Path):
    runs_as, code, says = CASES[kind]
    moved = Moved(sample("4.3.0", kind), tmp_path)
    moved.add_input()
    checkpoint = Checkpoint.at(open_location(str(moved.place)))
    newest = checkpoint.progress().newest
    assert newest
    shape = read_query_shape(checkpoint.tree(), newest)
    known = {
        k: v for k, v in shape.conf.items() if "always" not in k and "rowChecksum" not in k and "Evolution" not in k
    }
    unknown_here = ("protobufExtensions", "mergeOperator", "deterministicKeyOrder")
    known = {k: v for k, v in known.items() if not any(word in k for word in unknown_here)}
    new = QueryDescription(
        "k:q", "4.0.0", "", "update", 2 if "ckptv2" in runs_as else 1, (), replace(shape, conf=known)
    )
    assert code in {change.kind.code for change in compare(checkpoint, new).changes}
    answer = spark.go_on(runs_as, moved.place, moved.input)
    if says:
        assert "error" in answer
        assert re.search(says, answer["error"]), answer["error"][:2000]
    else:
        assert "error" not in answer, answer["error"][:2000]
        rows = Counter(row for rows in answer["rows"].values() for row in rows)
        assert rows == moved.sample.rows_after(moved.batch)
