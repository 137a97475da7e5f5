"""What is read first: from a checkpoint, a manifest, offsets by hand; and guards of other packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.checkpoint.source_offsets import KafkaOffset
from airflow_ckpt_provider.errors import NotACheckpointError, RefusedError
from airflow_ckpt_provider.guards import registry
from airflow_ckpt_provider.guards.kafka import KafkaGuard
from airflow_ckpt_provider.guards.query import from_checkpoint, from_facts, from_kafka_offsets, guard_query
from airflow_ckpt_provider.guards.registry import GuardedSource, GuardSettings
from airflow_ckpt_provider.guards.report import SourceReport
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict

_META = '{"batchWatermarkMs":0,"batchTimestampMs":1795000000000,"conf":{}}'


def checkpoint(root: Path, *batches: str, commits: int, initial: str | None = None) -> Location:
    """A checkpoint of one line an offset."""
    for name in ("offsets", "commits", "sources/0"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "metadata").write_text('{"id":"4f0bd2c5-0e5d-4b3c-8b1c-1f6d4a1f8f0a"}')
    for batch, lines in enumerate(batches):
        (root / "offsets" / str(batch)).write_text(f"v1\n{_META}\n{lines}")
    for batch in range(commits):
        (root / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    if initial is not None:
        (root / "sources/0/0").write_bytes(b"\0" + initial.encode())
    return open_location(str(root))


def partitions(source: GuardedSource) -> dict[str, dict[int, int]]:
    assert isinstance(source.start.offset, KafkaOffset)
    return source.start.offset.partitions


def test_next_batch(tmp_path: Path) -> None:
    query = from_checkpoint(checkpoint(tmp_path, '{"t":{"0":5}}', '{"t":{"0":9}}', commits=2))
    (source,) = query.sources
    assert (partitions(source), source.end, query.batch_id) == ({"t": {0: 9}}, None, 2)
    assert source.logged_at is not None
    assert source.logged_at.timestamp() == 1795000000


def test_replay(tmp_path: Path) -> None:
    query = from_checkpoint(checkpoint(tmp_path, '{"t":{"0":5}}', '{"t":{"0":9}}', commits=1))
    (source,) = query.sources
    assert partitions(source) == {"t": {0: 5}}
    assert isinstance(source.end, KafkaOffset)
    assert (source.end.partitions, query.batch_id) == ({"t": {0: 9}}, 1)


def test_replay_of_the_first_batch_begins_where_the_source_began(tmp_path: Path) -> None:
    place = checkpoint(tmp_path, '{"t":{"0":9}}', commits=0, initial='v1\n{"t":{"0":3}}')
    (source,) = from_checkpoint(place).sources
    assert partitions(source) == {"t": {0: 3}}


@pytest.mark.parametrize(
    ("batches", "asked_again"),
    [
        (('{"t":{"0":5}}\n{"u":{"0":1}}', '{"t":{"0":9}}\n{"u":{"0":2}}'), [5, 1]),
        (('{"t":{"0":5}}\n-', '{"t":{"0":9}}\n{"u":{"0":2}}'), [5, None]),
        (('{"t":{"0":9}}\n{"u":{"0":2}}',), [None, None]),
    ],
    ids=["both before", "one of them for the first time", "the first batch of all"],
)
def test_what_spark_asks_for_once_more(tmp_path: Path, batches: tuple[str, ...], asked_again: list[int | None]) -> None:
    """From the source's own end before the newest batch; a source that had none there, from its beginning."""
    query = from_checkpoint(checkpoint(tmp_path, *batches, commits=len(batches)))
    begins = [source.reread[0] for source in query.sources]
    found = [next(iter(o.partitions.values()))[0] if isinstance(o, KafkaOffset) else o for o in begins]
    assert found == asked_again


def test_nothing_planned_yet(tmp_path: Path) -> None:
    query = from_checkpoint(checkpoint(tmp_path, commits=0))
    assert query.sources == ()
    assert guard_query(query, GuardSettings(), guards=()).verdict is Verdict.UNKNOWN


def test_a_seal_is_looked_through(tmp_path: Path) -> None:
    place = checkpoint(tmp_path, '{"t":{"0":5}}', '{"t":{"0":9}}', commits=2)
    sentence = "airflow-ckpt: sealed by plan 7f3a (why, who, 2026-11-21T08:31:07Z); Spark must not start"
    (tmp_path / "offsets" / "2").write_text(sentence)
    query = from_checkpoint(place)
    assert [j.verdict for j in query.judgements] == [Verdict.SAFE]
    assert query.judgements[0].reason == "sealed by plan 7f3a: judged as if the seal were lifted"


def test_a_hole_in_the_logs_is_told(tmp_path: Path) -> None:
    place = checkpoint(tmp_path, *(f'{{"t":{{"0":{n}}}}}' for n in range(4)), commits=2)
    report = guard_query(from_checkpoint(place), GuardSettings(), guards=())
    assert report.verdict is Verdict.WILL_SKIP


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(NotACheckpointError):
        from_checkpoint(open_location(str(tmp_path)))


def test_no_kafka_source(tmp_path: Path) -> None:
    query = from_checkpoint(checkpoint(tmp_path, '{"logOffset":1}', '{"logOffset":2}', commits=2))
    with pytest.raises(RefusedError) as e:
        query.of_kind("kafka")
    assert str(e.value) == f"{query.subject} has no kafka source\nHINT: its sources are: 0 (file)"


def test_one_of_several_sources(tmp_path: Path) -> None:
    both = '{"a":{"0":1}}\n{"b":{"0":2}}'
    query = from_checkpoint(checkpoint(tmp_path, both, both, commits=2))
    assert [s.name for s in query.of_kind("kafka").sources] == ["0", "1"]
    assert partitions(query.of_kind("kafka", "1").sources[0]) == {"b": {0: 2}}
    with pytest.raises(RefusedError) as e:
        query.of_kind("kafka", "2")
    assert "its sources are: 0 (kafka), 1 (kafka)" in str(e.value)


def test_from_a_manifest() -> None:
    facts = {
        "batch_times": {"7": "2026-11-21T08:30:00+00:00"},
        "end_offsets": [
            {"index": 0, "kind": "kafka", "offset": {"t": {"0": 9}}},
            {"name": "x", "kind": "unknown", "offset": "z"},
        ],
        "sources": {"0": {"kind": "kafka", "topics": {}}},
    }
    query = from_facts(facts, subject="backup b", batch_id=7)
    first, second = query.sources
    assert (partitions(first), query.batch_id, first.known) == ({"t": {0: 9}}, 8, {"kind": "kafka", "topics": {}})
    assert (second.name, second.start.kind) == ("x", "unknown")
    assert (first.reread, second.reread) == ((), ())
    # What Spark asks for again at the start after a restore.
    before = {"start_offsets": [{"index": 0, "kind": "kafka", "offset": {"t": {"0": 5}}}]}
    first, second = from_facts({**facts, **before}, subject="backup b", batch_id=7).sources
    assert first.reread[0] is not None
    assert (first.reread[0].to_json(), second.reread) == ({"t": {"0": 5}}, (None,))
    assert from_facts(facts, subject="backup b", batch_id=0).sources[0].reread == (None,)


@pytest.mark.parametrize(
    "offsets",
    [
        "",
        "earliest",
        "{",
        "[]",
        "{}",
        '{"t": 5}',
        '{"t": {"x": 1}}',
        '{"t": {"0": "1"}}',
        '{"t": {"0": -3}}',
        '{"t": {}}',
        "5",
    ],
)
def test_malformed_offsets(offsets: str) -> None:
    with pytest.raises(RefusedError) as e:
        from_kafka_offsets(offsets)
    assert str(e.value).startswith("offsets are malformed")
    assert "startingOffsets" in (e.value.hint or "")


def test_sparks_own_words_for_offsets() -> None:
    assert partitions(from_kafka_offsets('{"t": {"0": -2, "1": -1, "2": 7}}').sources[0]) == {"t": {0: -2, 1: -1, 2: 7}}


def test_without_a_connection_nothing_is_known() -> None:
    report = guard_query(from_kafka_offsets({"t": {"0": 1}}), GuardSettings(), guards=[KafkaGuard(GuardSettings())])
    assert (report.verdict, report.lost) == (Verdict.UNKNOWN, None)
    assert report.reasons[0].startswith("no Kafka connection was given: --kafka-config FILE (kafka_config_id). ")


class _Entry:
    """A guard of another package, as an entry point has it."""

    name = "kinesis"

    class Guard:
        kind = "kinesis"

        def __init__(self, settings: GuardSettings) -> None:
            self.stream = settings.options["kinesis"]["stream"]

        def recognises(self, source: GuardedSource) -> bool:
            offset = source.start.offset
            return offset is not None and "shardId-" in offset.text

        def judge(self, source: GuardedSource) -> SourceReport:
            return SourceReport(source.name, self.kind, facts={"stream": self.stream})

    def load(self) -> type[Guard]:
        return self.Guard


def test_a_guard_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = '{"metadata":{"streamName":"s"},"shardId-000":{"iteratorPosition":"1"}}\n{"whatever":[1]}\n17'
    query = from_checkpoint(checkpoint(tmp_path, lines, lines, commits=2))

    def found(group: str) -> list[Any]:
        assert group == "airflow_ckpt_provider.guards"
        return [_Entry()]

    monkeypatch.setattr(registry, "entry_points_of", found)
    report = guard_query(query, GuardSettings(options={"kinesis": {"stream": "s"}}))
    kinesis, unknown, rate = report.sources
    assert (kinesis.kind, kinesis.verdict, kinesis.facts) == ("kinesis", Verdict.SAFE, {"stream": "s"})
    assert unknown.verdict is Verdict.UNKNOWN
    assert unknown.reasons[0].startswith(
        "nobody here knows this source by its offset '{\"whatever\":[1]}'; there are guards for: "
    )
    assert (rate.kind, rate.verdict) == ("rate", Verdict.UNKNOWN)
    assert report.verdict is Verdict.UNKNOWN
