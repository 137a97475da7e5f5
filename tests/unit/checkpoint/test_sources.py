"""sources: how much of each source's own log belongs to a batch."""

from __future__ import annotations

import pytest

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.logs import FETCH_IT
from airflow_ckpt_provider.checkpoint.offsets import OffsetEntry, parse_offsets
from airflow_ckpt_provider.checkpoint.sources import source_closure
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import MissingFileError
from airflow_ckpt_provider.recovery.repair.planning import plan_repair
from airflow_ckpt_provider.storage.location import Location
from tests.support.checkpoints import batch_metadata, file_source_log, logs, offsets_log, plant


def entry(*offsets: str, version: int = 1) -> OffsetEntry:
    return parse_offsets(offsets_log(*offsets, metadata=batch_metadata(), version=version), batch_id=9)


def needed(place: Location, names: list[str], logged: OffsetEntry) -> list[str]:
    tree = Tree.of(plant(place, {f"sources/{name}": b"v1" for name in names}))
    return sorted(file.path.removeprefix("sources/") for file in source_closure(tree, logged))


def test_up_to_the_offset_and_nothing_beyond(place: Location) -> None:
    names = [f"0/{i}" for i in range(6)]
    assert needed(place, names, entry('{"logOffset":3}')) == ["0/0", "0/1", "0/2", "0/3"]


def test_from_the_newest_compacted_file_on(place: Location) -> None:
    """What was deleted before it is not missed; entries that were not deleted are not needed; one beyond is not taken.

    The compacted file before it is: from two of them Spark takes its interval. From 39.compact alone it derives another one
    than the 20 of the stream, and a restored stream failed with ``49.compact doesn't exist``.
    """
    names = ["0/7", "0/8", "0/9.compact", *(f"0/{i}" for i in range(10, 19)), "0/19.compact", "0/20"]
    assert needed(place, names, entry('{"logOffset":12}')) == ["0/10", "0/11", "0/12", "0/9.compact"]
    assert needed(place, names, entry('{"logOffset":19}')) == ["0/19.compact", "0/9.compact"]
    assert needed(place, names, entry('{"logOffset":20}')) == ["0/19.compact", "0/20", "0/9.compact"]
    names += [*(f"0/{i}" for i in range(21, 29)), "0/29.compact"]
    assert needed(place, names, entry('{"logOffset":29}')) == ["0/19.compact", "0/29.compact"]


def test_an_old_compacted_file_where_the_newest_is_beyond(place: Location) -> None:
    names = ["0/9.compact", "0/10", "0/11", "0/19.compact"]
    assert needed(place, names, entry('{"logOffset":11}')) == ["0/10", "0/11", "0/9.compact"]


@pytest.mark.parametrize("gone", ["0/0", "0/2", "0/3"])
def test_a_hole_is_named(place: Location, gone: str) -> None:
    names = [name for name in ("0/0", "0/1", "0/2", "0/3", "0/4") if name != gone]
    with pytest.raises(MissingFileError) as error:
        needed(place, names, entry('{"logOffset":3}'))
    assert error.value.path == f"sources/{gone}"
    assert error.value.message == f"sources/{gone} is missing: the file source's log must be whole up to 3"
    assert error.value.hint == f"Spark would fail with `batch … doesn't exist`; {FETCH_IT}"


def test_nothing_was_read_yet(place: Location) -> None:
    assert needed(place, ["0/0"], entry('{"logOffset":-1}')) == []


def test_other_sources_are_carried_whole(place: Location) -> None:
    names = ["0/0", "1/0", "1/shard-commit/3/s", "2/0", "2/1"]
    logged = entry('{"orders":{"0":7}}', "opaque", '{"logOffset":0}')
    assert needed(place, names, logged) == ["0/0", "1/0", "1/shard-commit/3/s", "2/0"]


def test_several_file_sources_each_by_its_own_offset(place: Location) -> None:
    names = [f"{s}/{i}" for s in (0, 1) for i in range(5)]
    assert needed(place, names, entry('{"logOffset":1}', '{"logOffset":3}')) == [
        "0/0",
        "0/1",
        "1/0",
        "1/1",
        "1/2",
        "1/3",
    ]


def test_named_sources(place: Location) -> None:
    names = [f"{s}/{i}" for s in ("orders", "returns") for i in range(5)]
    logged = entry('returns:{"logOffset":0}', 'orders:{"logOffset":2}', version=2)
    assert needed(place, names, logged) == ["orders/0", "orders/1", "orders/2", "returns/0"]


def test_named_directories_with_positional_offsets(place: Location) -> None:
    """Spark 4.2 does not record which is which: each is bounded by the largest offset."""
    names = ["orders/0", "orders/1", "orders/2", "orders/3", "returns/0"]
    logged = entry('{"logOffset":2}', '{"logOffset":0}')
    assert needed(place, names, logged) == ["orders/0", "orders/1", "orders/2", "returns/0"]


def test_a_named_file_source_beside_a_named_kafka_source(place: Location) -> None:
    """There was no backup of such a query: its ``sources/0/0`` was missing."""
    files = {f"sources/files/{i}": file_source_log(i) for i in range(5)}
    files |= {"sources/events/0": b'\0v1\n{"orders":{"0":0}}', "sources/ticks/0": b"v1\n1704067200000"}
    tree = Tree.of(plant(place, files))
    logged = entry('{"logOffset":2}', '{"orders":{"0":7}}', "5")
    found = sorted(file.path.removeprefix("sources/") for file in source_closure(tree, logged))
    assert found == ["events/0", "files/0", "files/1", "files/2", "ticks/0"]


def test_a_directory_that_somebody_left(place: Location) -> None:
    """Beside the log of the source it is no named source: the log was taken as one that nobody knows."""
    files = {f"sources/{name}/{i}": file_source_log(i) for name in ("0", "0.bak") for i in range(5)}
    files["sources/1/0"] = b'\0v1\n{"orders":{"0":0}}'
    logged = entry('{"logOffset":2}', '{"orders":{"0":7}}')
    found = sorted(file.path.removeprefix("sources/") for file in source_closure(Tree.of(plant(place, files)), logged))
    assert found == [*(f"0.bak/{i}" for i in range(5)), "0/0", "0/1", "0/2", "1/0"]
    del files["sources/0/1"]
    with pytest.raises(MissingFileError, match="sources/0/1 is missing"):
        source_closure(Tree.of(plant(place / "lost", files)), logged)


@pytest.mark.parametrize("content", [b"", b"v1\n{"], ids=["empty", "torn"])
def test_the_older_compacted_file_counts_by_its_name(content: bytes, place: Location) -> None:
    """Spark does not read it, so it may be as it is."""
    files = {**logs(range(21)), "sources/0/9.compact": content, "sources/0/19.compact": file_source_log(*range(20))}
    for i in range(20):
        del files[f"sources/0/{i}"]
    checkpoint = Checkpoint.at(plant(place, files))
    assert "sources/0/9.compact" in {file.path for file in checkpoint.closure(20).files}
    assert checkpoint.diagnose() == ()
    assert plan_repair(checkpoint).already_done


def test_a_source_without_a_log(place: Location) -> None:
    assert needed(place, [], entry('{"offset":10,"timestamp":2000}')) == []


def test_hidden_files_stay_behind(place: Location) -> None:
    assert needed(place, ["0/0", "0/.0.crc", "1/0", "1/.0.crc"], entry('{"logOffset":0}', "5")) == ["0/0", "1/0"]
