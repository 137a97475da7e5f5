from __future__ import annotations

import json

import pytest
from hypothesis import given

from airflow_ckpt_provider.checkpoint.logs import FETCH_IT
from airflow_ckpt_provider.checkpoint.operators import (
    JOIN_STORES,
    OperatorMetadata,
    metadata_file,
    parse_operator_metadata,
    partitions,
    store_directory,
    stores,
)
from airflow_ckpt_provider.checkpoint.operators import (
    operator_metadata as read_operator_metadata,
)
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import UnreadableLogError
from airflow_ckpt_provider.storage.location import Location
from tests.support.checkpoints import operator_metadata, plant, schema_file
from tests.support.damaged_bytes import anything, flipped_bits, truncated, unreadable_at_most

PATH = "state/0/_metadata/metadata"
V2 = "state/0/_metadata/v2"
URI = "file:/old/ck/state/0/_stateSchema/default/0_f2e361a0"


def tree_of(place: Location, *paths: str, **files: bytes) -> Tree:
    return Tree.of(plant(place, dict.fromkeys(paths, b"x") | files))


def test_version_1() -> None:
    found = parse_operator_metadata(operator_metadata(partitions=5), path=PATH)
    assert found == OperatorMetadata("stateStoreSave", 5, ())


def test_version_2() -> None:
    data = operator_metadata(name="transformWithStateExec", schema_files=[URI, URI + "b"])
    assert parse_operator_metadata(data, path=PATH) == OperatorMetadata("transformWithStateExec", 2, (URI, URI + "b"))


@pytest.mark.parametrize("data", [b"", b"v1", b"v1\n", b"v1\n{}", b"v1\n[]", b'v1\n{"stateStoreInfo":[]}', b"v1\n\xff"])
def test_no_metadata(data: bytes) -> None:
    with pytest.raises(UnreadableLogError) as error:
        parse_operator_metadata(data, path=PATH)
    assert error.value.message.startswith(f"{PATH}: not readable operator metadata (")
    assert (error.value.path, error.value.hint) == (
        PATH,
        FETCH_IT,
    )


@pytest.mark.parametrize("paths", [[5], [None], [URI, {}], 5])
def test_schema_paths_that_are_no_text(paths: object) -> None:
    store = {"numPartitions": 2, "stateSchemaFilePaths": paths}
    content = {"operatorInfo": {"operatorId": 0, "operatorName": "x"}, "stateStoreInfo": [store]}
    with pytest.raises(UnreadableLogError, match="not readable operator metadata") as error:
        parse_operator_metadata(b"v2\n" + json.dumps(content).encode(), path=PATH)
    assert error.value.path == PATH


@pytest.mark.parametrize("stores", [[5], [None], 5, [{"numPartitions": 1e400}]])
def test_stores_of_another_form(stores: object) -> None:
    content = {"operatorInfo": {"operatorId": 0, "operatorName": "x"}, "stateStoreInfo": stores}
    with pytest.raises(UnreadableLogError, match="not readable operator metadata"):
        parse_operator_metadata(b"v2\n" + json.dumps(content).encode(), path=PATH)


def test_cut_off_anywhere() -> None:
    for data in truncated(operator_metadata(schema_files=[URI])):
        with pytest.raises(UnreadableLogError):
            parse_operator_metadata(data, path=PATH)


def test_a_flipped_bit_raises_nothing_else() -> None:
    for data in flipped_bits(operator_metadata(schema_files=[URI])):
        with unreadable_at_most(PATH):
            parse_operator_metadata(data, path=PATH)


@given(anything(b"v1\n", b'v1\n{"operatorInfo":{"operatorName":1},"stateStoreInfo":'))
def test_arbitrary_bytes_raise_nothing_else(data: bytes) -> None:
    with unreadable_at_most(PATH):
        parse_operator_metadata(data, path=PATH)


@pytest.mark.parametrize(
    ("batch_id", "path"),
    [(0, f"{V2}/0"), (3, f"{V2}/0"), (4, f"{V2}/4"), (9, f"{V2}/4"), (10, f"{V2}/10"), (99, f"{V2}/10")],
)
def test_the_newest_version_2_up_to_the_batch(place: Location, batch_id: int, path: str) -> None:
    tree = tree_of(place, f"{V2}/0", f"{V2}/4", f"{V2}/10", PATH)
    file = metadata_file(tree, 0, batch_id=batch_id)
    assert file is not None
    assert file.path == path


def test_version_1_where_version_2_has_only_later_ones(place: Location) -> None:
    file = metadata_file(tree_of(place, f"{V2}/7", PATH), 0, batch_id=3)
    assert file is not None
    assert file.path == PATH


def test_before_spark_4_there_is_none(place: Location) -> None:
    tree = tree_of(place, "state/0/0/1.delta")
    assert metadata_file(tree, 0, batch_id=3) is None
    assert read_operator_metadata(tree, 0, batch_id=3) is None


def test_the_log_tells_the_partitions_not_the_directories(place: Location) -> None:
    """Old directories of a repartition are no partitions; one that a torn copy lacks is one."""
    tree = tree_of(place, "state/0/0/1.delta", "state/0/2/1.delta", "state/0/7/1.delta")
    assert partitions(tree, 0, logged=3, batch_id=0) == (0, 1, 2)
    assert partitions(tree, 0, logged=None, batch_id=None) == (0, 2, 7)


#: Keys of operators whose rows all go to partition 0, and the names that their metadata gives them.
KEYLESS = [
    ([], "stateStoreSave"),
    ([("key", "void")], "globalLimit"),
    ([("key", "null")], "globalLimit"),
    ([("sessionStartTime", "timestamp")], "sessionWindowStateStoreSaveExec"),
]


def keyless(key: list[tuple[str, str]], name: str) -> dict[str, bytes]:
    return {
        PATH: operator_metadata(name=name, partitions=4),
        "state/0/0/_metadata/schema": schema_file(key),
        "state/0/0/1.delta": b"x",
        "state/0/0/2.delta": b"x",
    }


@pytest.mark.parametrize(("key", "name"), KEYLESS)
def test_a_keyless_operator_has_one_partition(place: Location, key: list[tuple[str, str]], name: str) -> None:
    tree = Tree.of(plant(place, keyless(key, name)))
    assert partitions(tree, 0, logged=4, batch_id=1) == (0,)


@pytest.mark.parametrize(("key", "name"), KEYLESS)
@pytest.mark.parametrize("other", ["state/0/3/1.delta", "state/0/3/2.snapshot", "state/0/3/store/2.zip"])
def test_an_operator_with_state_elsewhere_has_all_partitions(
    place: Location, key: list[tuple[str, str]], name: str, other: str
) -> None:
    """The schema of its keys only hints at one partition: the user's own column can have the same name and type."""
    tree = Tree.of(plant(place, keyless(key, name) | {other: b"x"}))
    assert partitions(tree, 0, logged=4, batch_id=1) == (0, 1, 2, 3)


@pytest.mark.parametrize("other", ["state/0/3/3.zip", "state/0/4/1.delta", "state/0/3/SSTs/000001-x.sst"])
def test_later_state_and_partitions_that_are_not_logged_show_nothing(place: Location, other: str) -> None:
    """They are of an offline repartition, before or after the batch."""
    tree = Tree.of(plant(place, keyless([], "stateStoreSave") | {other: b"x"}))
    assert partitions(tree, 0, logged=4, batch_id=1) == (0,)


def test_a_column_of_the_name_that_spark_uses_has_all_partitions(place: Location) -> None:
    """Also where a torn copy has only partition 0: the metadata names another operator."""
    files = keyless([("sessionStartTime", "timestamp")], "stateStoreSave")
    assert partitions(Tree.of(plant(place, files)), 0, logged=4, batch_id=1) == (0, 1, 2, 3)


def test_damaged_metadata_does_not_name_the_operator(place: Location) -> None:
    files = keyless([("key", "void")], "globalLimit") | {PATH: b"v1\n{"}
    assert partitions(Tree.of(plant(place, files)), 0, logged=4, batch_id=1) == (0,)


def test_a_damaged_schema_is_named(place: Location) -> None:
    files = {"state/0/0/1.delta": b"x", "state/0/0/_metadata/schema": b"\x00"}
    with pytest.raises(UnreadableLogError, match=r"^state/0/0/_metadata/schema: not a readable state schema"):
        partitions(Tree.of(plant(place, files)), 0, logged=2, batch_id=0)


def test_the_default_store_and_named_ones(place: Location) -> None:
    tree = tree_of(
        place,
        "state/0/0/1.zip",
        "state/0/0/SSTs/a.sst",
        "state/0/0/logs/a.log",
        "state/0/0/_metadata/schema",
        "state/1/0/b/1.delta",
        "state/1/1/a/1.delta",
        "state/2/0/_metadata/schema",
    )
    assert stores(tree, 0, (0,)) == ("default",)
    assert stores(tree, 1, (0, 1)) == ("a", "b")
    assert stores(tree, 2, (0,)) == ()
    assert store_directory(0, 3, "default") == "state/0/3"
    assert store_directory(1, 3, "a") == "state/1/3/a"


def test_the_stores_of_a_join_in_the_order_of_their_ids(place: Location) -> None:
    tree = tree_of(place, *(f"state/0/{p}/{s}/1.delta" for p in (0, 1) for s in sorted(JOIN_STORES, reverse=True)))
    assert stores(tree, 0, (0, 1)) == (
        "left-keyToNumValues",
        "left-keyWithIndexToValue",
        "right-keyToNumValues",
        "right-keyWithIndexToValue",
    )
