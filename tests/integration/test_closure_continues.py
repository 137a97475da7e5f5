"""The closure of a batch alone, copied elsewhere, starts in the Spark that wrote it and continues row-exact.

The samples of 4.0.0 are run always, those of the other versions by ``make samples``.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.samples.archives import HOME, VERSIONS, kinds_of, offset_lines, sample
from tests.samples.kinds import KINDS, batches
from tests.samples.service import SampleService
from tests.samples.sparks import Sparks
from tests.support.moved_spark import Moved

#: A test may have to install a Spark first, and to start it.
pytestmark = pytest.mark.timeout(900)

#: One or two of each way of keeping state: the batch three before the newest has its closure too.
REWOUND = (
    "hdfs_agg",
    "hdfs_agg_maint",
    "rocks_agg",
    "rocks_changelog_maint",
    "rocks_ckptv2_maint",
    "hdfs_ssjoin",
    "rocks_ssjoin_v3",
    "rocks_ckptv2_ssjoin",
    "tws_rocks_ckptv2",
)
#: The same, and a source log and a sink's log; backed up into packs and restored from them.
RESTORED = (*REWOUND, "file_to_file_compact")
#: Of the locked Spark, what every run of the tests starts, beside a join in Spark's own state store: RocksDB. A source log comes
#: out of packs.
QUICK = ("tws_rocks",)
#: kind -> files of its closure, each of which Spark cannot do without.
NEEDED = {
    "file_to_file_compact": ("offsets/6", "sources/0/5.compact", "sources/0/7"),
    "file_to_noop": ("sources/0/*",),
    "hdfs_agg_maint": ("*.snapshot", "*.delta"),
    "hdfs_ssjoin": ("state/0/1/left-keyToNumValues/1.delta", "state/0/0/right-keyWithIndexToValue/7.delta"),
    "rocks_agg": ("state/0/0/6.zip", "*.sst"),
    "rocks_changelog_agg": ("state/0/1/1.changelog",),
    "rocks_changelog_maint": ("*.zip", "*.sst", "*.changelog"),
    "rocks_ckptv2_agg": ("*.changelog",),
    "rocks_ckptv2_maint": ("*.zip", "*.sst", "*.changelog"),
    "tws_rocks": ("state/0/_metadata/v2/0", "state/0/_stateSchema/default/*", "*.zip", "*.sst"),
}


def marks(version: str, kind: str, *, quick: tuple[str, ...] = QUICK) -> list[pytest.MarkDecorator]:
    """What stands between a case and the default run."""
    if version != "4.0.0":
        return [pytest.mark.other_spark]
    return [pytest.mark.spark] if kind in quick else [pytest.mark.spark, pytest.mark.slow]


def of_each_version(kinds: tuple[str, ...] | None = None, *, quick: tuple[str, ...] = QUICK) -> Any:
    """Parametrize with (version, kind); versions other than the locked one behind their marker."""
    return pytest.mark.parametrize(
        ("version", "kind"),
        [
            pytest.param(
                version,
                kind,
                marks=marks(version, kind, quick=quick),
                id=f"{version}-{kind}",
            )
            for version in VERSIONS
            for kind in kinds_of(version)
            if kinds is None or kind in kinds
        ],
    )


@pytest.fixture
def spark(sparks: Sparks, version: str, kind: str) -> SampleService:
    """The Spark of the test's version. It is kept for the next test: no checkpoint is given to it twice."""
    return sparks.of(version, KINDS[kind].jvm)


@of_each_version()
def test_the_closure_of_the_newest_batch_alone_goes_on(spark: SampleService, kind: str, tmp_path: Path) -> None:
    moved = Moved(sample(spark.spark_version, kind), tmp_path)
    if KINDS[kind].on_the_clock:
        assert_offsets_go_on(spark, moved)
    else:
        assert_rows_go_on(spark, moved)


@of_each_version(RESTORED, quick=("file_to_file_compact",))
def test_what_packs_restore_goes_on(spark: SampleService, kind: str, tmp_path: Path) -> None:
    assert_rows_go_on(spark, Moved(sample(spark.spark_version, kind), tmp_path, through_packs=True))


@of_each_version(REWOUND, quick=("hdfs_ssjoin",))
def test_the_closure_of_an_older_batch_goes_on(spark: SampleService, kind: str, tmp_path: Path) -> None:
    back = 2 if kind.endswith("_maint") else 3  # these keep no more
    assert_rows_go_on(spark, Moved(sample(spark.spark_version, kind), tmp_path, before_newest=back))


def assert_rows_go_on(spark: SampleService, moved: Moved) -> None:
    query_id = (moved.place / "metadata").read_bytes()
    moved.add_input()
    answer = spark.go_on(moved.sample.kind, moved.place, moved.input)
    assert "error" not in answer, answer["error"]
    rows = {int(batch): of_batch for batch, of_batch in answer["rows"].items()}
    assert sorted(rows) == list(range(moved.batch + 1, moved.batch + 1 + len(rows)))
    assert Counter(row for of_batch in rows.values() for row in of_batch) == moved.sample.rows_after(moved.batch)
    assert (moved.place / "metadata").read_bytes() == query_id
    assert not Path(HOME).exists(), "Spark returned to where the sample was made"


def assert_offsets_go_on(spark: SampleService, moved: Moved) -> None:
    end = offset_lines(moved.sample.files, moved.batch)
    answer = spark.go_on(moved.sample.kind, moved.place, moved.input)
    assert "error" not in answer, answer["error"]
    committed = [batch for batch in batches(moved.place, "commits") if batch > moved.batch]
    assert committed
    if moved.sample.kind == "rate_continuous":
        assert committed[0] == moved.batch + 1
        logs = [
            offset_lines({f"offsets/{b}": (moved.place / "offsets" / str(b)).read_bytes()}, b)[0] for b in committed
        ]
        for before, after in pairwise([end[0], *logs]):
            assert all(after[partition]["value"] >= before[partition]["value"] for partition in ("0", "1"))
        return
    reports = answer["batches"]
    assert [report["batch"] for report in reports] == list(range(moved.batch + 1, moved.batch + 1 + len(reports)))
    assert _same_offsets(reports[0]["start"], end)
    for before, after in pairwise(reports):
        assert after["start"] == before["end"]
    # The rate sources number their rows: none is left out and none comes twice.
    values = [
        json.loads(row)["value"] for _, rows in sorted(answer["rows"].items(), key=lambda i: int(i[0])) for row in rows
    ]
    if values:
        first = _as_json(end[0])
        begin = first["offset"] if isinstance(first, dict) else first * 5
        assert sorted(values) == list(range(begin, begin + len(values)))


def _same_offsets(reported: list[Any], logged: list[Any]) -> bool:
    return [_as_json(offset) for offset in reported] == [_as_json(offset) for offset in logged]


def _as_json(offset: Any) -> Any:
    return json.loads(offset) if isinstance(offset, str) else offset


@pytest.mark.parametrize(
    ("version", "kind", "pattern"),
    [
        pytest.param(
            version,
            kind,
            pattern,
            marks=marks(version, kind, quick=("rocks_changelog_maint", "file_to_file_compact")),
            id=f"{version}-{kind}-{pattern}",
        )
        for version in VERSIONS
        for kind, patterns in NEEDED.items()
        if kind in kinds_of(version)
        for pattern in patterns
    ],
)
def test_no_file_of_a_closure_is_too_many(spark: SampleService, kind: str, pattern: str, tmp_path: Path) -> None:
    moved = Moved(sample(spark.spark_version, kind), tmp_path, leave_out=pattern)
    moved.add_input()
    answer = spark.go_on(kind, moved.place, moved.input)
    assert "error" in answer, f"Spark continued without {moved.left_out}"
