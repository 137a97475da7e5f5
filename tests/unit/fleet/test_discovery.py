"""Which checkpoints there are below a place: all of them, nothing else, and with few requests."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.names import checked_name
from airflow_ckpt_provider.backup.repository import SAFETY_SUFFIX, Repository
from airflow_ckpt_provider.change.sealing import seal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.fleet.discovery import Discovery, State, discover
from airflow_ckpt_provider.fleet.names import backup_names
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.backups import stream
from tests.support.checkpoints import Files, hdfs_aggregation, logs, metadata, plant
from tests.support.watched_stores import forget_all, in_memory, watched

WHOLE = logs(range(3))


def at(place: Location, discovery: Discovery) -> dict[str, State]:
    return {f.place.root.removeprefix(place.root).strip("/"): f.state for f in discovery.found}


def without(files: Files, *parts: str) -> Files:
    return {path: data for path, data in files.items() if not path.startswith(parts)}


def test_by_what_a_checkpoint_has(place: Location) -> None:
    plant(place / "orders", hdfs_aggregation(3))
    plant(place / "team/payments", WHOLE)
    plant(place / "team/payments/inner", WHOLE)  # a query whose checkpoint lies in that of another one
    plant(place / "iceberg", {"metadata": b"something else", "data/0": b"x"})
    plant(place / "app", {"offsets/readme.txt": b"x", "commits/log": b"x"})
    plant(place / "app/offsets/nested", WHOLE)
    plant(place / ".snapshot/orders", WHOLE)
    found = discover([place])
    assert at(place, found) == dict.fromkeys(
        ["orders", "team/payments", "team/payments/inner", "app/offsets/nested"], State.WHOLE
    )
    assert found.ok
    assert {f.name for f in found.found} == {"orders", "payments", "inner", "nested"}
    (orders,) = [f.to_json() for f in found.found if f.name == "orders"]
    assert (orders["latest_committed"], orders["query_id"]) == (3, Checkpoint.at(place / "orders").progress().query_id)


def test_a_root_that_is_a_checkpoint(place: Location) -> None:
    plant(place, WHOLE)
    assert at(place, discover([place])) == {"": State.WHOLE}


def test_state_is_never_listed_and_a_checkpoint_costs_five_requests(place: Location) -> None:
    streams = 20
    for n in range(streams):
        plant(place / f"s{n}", {**hdfs_aggregation(3), "_schema_log_x/0": b"v1"})
    watching, store = watched(place)
    assert len(discover([watching]).found) == streams
    assert len(store.requests) == 1 + 5 * streams
    assert store.count("list", "read") == len(store.requests)
    assert not [path for path in store.paths("list") if "/state" in path or "/sources" in path]


def test_tables_are_not_looked_into(place: Location) -> None:
    table = {"_delta_log/00.json": b"{}", **{f"day={d}/part-0.parquet": b"x" for d in range(50)}}
    plant(place / "orders", table)
    plant(place / "orders/_checkpoints/ingest", WHOLE)
    plant(place / "payments", {"_spark_metadata/0": b"v1", "part-0.json": b"{}"})
    plant(place / "payments/_checkpoint", WHOLE)
    watching, store = watched(place)
    found = discover([watching])
    assert at(place, found) == {"orders/_checkpoints/ingest": State.WHOLE, "payments/_checkpoint": State.WHOLE}
    assert {f.name for f in found.found} == {"ingest", "payments"}
    assert not [path for path in store.paths("list") if "day=" in path or "_delta_log" in path]


class TestPipelines:
    def test_declarative_pipelines(self, place: Location) -> None:
        flows = place / "pipeline/_checkpoints/spark_catalog/default"
        plant(flows / "orders/orders/0", WHOLE)
        plant(flows / "orders/backfill/0", WHOLE)
        plant(flows / "orders/backfill/10", logs(range(1)))
        plant(flows / "orders/backfill/9", WHOLE)
        found = discover([place])
        assert {f.name: f.versions for f in found.found} == {"orders": (0,), "orders.backfill": (0, 9, 10)}
        assert [f.place.name for f in found.found] == ["10", "0"]
        # The same from any place on the way down.
        for below in ("pipeline", "pipeline/_checkpoints", "pipeline/_checkpoints/spark_catalog/default/orders"):
            assert [f.name for f in discover([place / below]).found] == ["orders.backfill", "orders"]

    def test_a_full_refresh_leaves_an_empty_version(self, tmp_path: Path) -> None:
        flow = tmp_path / "_checkpoints/c/d/orders/ingest"
        plant(open_location(str(flow / "0")), WHOLE)
        (flow / "1").mkdir()
        (found,) = discover([open_location(str(tmp_path))]).found
        assert (found.place.name, found.state, found.versions) == ("1", State.NO_BATCH, (0, 1))

    def test_lakeflow(self, place: Location) -> None:
        plant(place / "dlt", {"system/events/x": b"", "tables/orders/_delta_log/0.json": b"{}"})
        plant(place / "dlt/checkpoints/orders/0", WHOLE)
        plant(place / "dlt/checkpoints/orders/1", WHOLE)
        (found,) = discover([place]).found
        assert (found.name, found.versions, found.place.name) == ("orders", (0, 1), "1")

    def test_streams_that_have_numbers_for_names_are_no_versions(self, place: Location) -> None:
        for n in (1, 2, 30):
            plant(place / f"checkpoints/team/{n}", WHOLE)
        assert len(discover([place]).found) == 3


class TestHowTheyStand:
    @pytest.mark.parametrize(
        ("lost", "missing"),
        [
            (("metadata",), ("metadata",)),
            (("commits",), ("commits",)),
            (("offsets",), ("offsets/4",)),
            (("offsets/4",), ("offsets/4",)),
            (("offsets/3",), ("offsets/3",)),
            (("offsets/0", "offsets/1", "offsets/2", "offsets/3"), ("offsets/3",)),
            (("metadata", "offsets/3"), ("metadata", "offsets/3")),
        ],
    )
    def test_torn(self, place: Location, lost: tuple[str, ...], missing: tuple[str, ...]) -> None:
        plant(place / "orders", without(logs(range(5)), *lost))
        found = discover([place])
        (orders,) = found.found
        assert (orders.state, orders.missing) == (State.TORN, missing)
        assert orders.message == f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
        assert not found.ok

    def test_history_that_was_purged_is_not_missing(self, place: Location) -> None:
        plant(place / "orders", without(logs(range(5)), "offsets/0", "offsets/1", "commits/0", "commits/1"))
        assert at(place, discover([place])) == {"orders": State.WHOLE}

    def test_asynchronous_progress_leaves_batches_out(self, place: Location) -> None:
        plant(
            place / "orders",
            without(logs(range(9)), *(f"{log}/{n}" for log in ("offsets", "commits") for n in (1, 3, 4, 6, 7))),
        )
        assert at(place, discover([place])) == {"orders": State.WHOLE}

    @pytest.mark.parametrize("uncommitted", [(), ("commits/4",)])
    def test_young_asynchronous_progress_is_whole(self, place: Location, uncommitted: tuple[str, ...]) -> None:
        """Two entries so far, with batches left out of both logs."""
        gone = [f"{log}/{n}" for log in ("offsets", "commits") for n in (1, 2, 3)]
        plant(place / "orders", without(logs(range(5)), *gone, *uncommitted))
        assert at(place, discover([place])) == {"orders": State.WHOLE}

    def test_with_state_two_entries_apart_are_torn(self, place: Location) -> None:
        gone = [f"{log}/{n}" for log in ("offsets", "commits") for n in (1, 2, 3)]
        plant(place / "orders", {**without(logs(range(5)), *gone), "state/0/0/1.delta": b"x"})
        assert at(place, discover([place])) == {"orders": State.TORN}

    @pytest.mark.parametrize("path", ["metadata", "offsets/2"])
    def test_a_file_that_cannot_be_parsed(self, place: Location, path: str) -> None:
        plant(place / "orders", {**WHOLE, path: b""})
        (orders,) = discover([place]).found
        assert orders.state is State.TORN
        assert path in orders.message

    def test_not_begun(self, place: Location) -> None:
        plant(place / "new", {"metadata": metadata()})
        plant(place / "first", without(logs(range(1)), "commits"))
        assert at(place, discover([place])) == {"new": State.NO_BATCH, "first": State.NO_BATCH}

    def test_sealed(self, place: Location) -> None:
        plant(place / "orders", stream())
        seal(Checkpoint.at(place / "orders"), reason="lunch", plan_id="beef")
        watching, store = watched(place)
        (orders,) = discover([watching]).found
        assert orders.state is State.SEALED
        assert "lunch" in str(orders.to_json()["sealed"])
        assert orders.to_json()["latest_logged"] == 4, "a seal is no batch"
        assert len(store.requests) == 1 + 6


class TestWhatIsNotOurs:
    def test_repositories_and_what_they_keep(self, place: Location) -> None:
        plant(place / "orders", stream())
        create_backup(Checkpoint.at(place / "orders"), Repository.open_or_create(place / "backups"))
        for kept in (place / "backups", default_repository(place / "orders")):
            Repository.open_or_create(kept)
            plant(kept / "set-aside/orders/beef/files", stream())
        found = discover([place])
        assert at(place, found) == {"orders": State.WHOLE}
        assert set(found.repositories) == {(place / "backups").uri, default_repository(place / "orders").uri}

    def test_another_file_of_that_name_hides_nothing(self, place: Location) -> None:
        plant(place, {"repository.json": b'{"type": "git"}'})
        plant(place / "orders", WHOLE)
        assert at(place, discover([place])) == {"orders": State.WHOLE}

    def test_a_folder_that_cannot_be_listed_is_a_row(self, place: Location) -> None:
        plant(place / "orders", WHOLE)
        plant(place / "secret/payments", WHOLE)
        plant(place / "half", WHOLE)

        def refuse(operation: str, path: str) -> None:
            if path.endswith(("/secret", "/half/offsets")):
                raise StorageError(f"could not {operation} {path}: permission denied")

        found = discover([watched(place, refuse)[0]])
        assert at(place, found) == {"orders": State.WHOLE, "half": State.UNREADABLE}
        assert [u.uri for u in found.unread] == [(place / "secret").uri]
        assert "permission denied" in found.unread[0].message
        assert not found.ok

    def test_a_root_that_cannot_be_listed(self, place: Location) -> None:
        def refuse(operation: str, path: str) -> None:
            raise StorageError("wrong key")

        plant(place, WHOLE)
        bad = watched(in_memory(), refuse)[0]
        assert at(place, discover([place, bad])) == {"": State.WHOLE}
        with pytest.raises(StorageError, match="wrong key"):
            discover([bad])

    def test_a_root_with_nothing_in_it_is_not_fine(self, place: Location) -> None:
        found = discover([place / "typo"])
        assert not found.ok
        assert found.unread[0].message == "there is nothing there: is the address right?"


def test_depth(place: Location) -> None:
    plant(place / "a/b/c/orders", WHOLE)
    for depth in range(4):
        found = discover([place], depth=depth)
        assert found.found == ()
        assert found.too_deep == ((place / "/".join("abc"[:depth])).uri.rstrip("/"),)
    assert at(place, discover([place], depth=4)) == {"a/b/c/orders": State.WHOLE}


def test_roots_within_each_other(place: Location) -> None:
    plant(place / "a/orders", WHOLE)
    roots = [place, place / "a", place / "a/orders", place]
    assert at(place, discover(roots)) == {"a/orders": State.WHOLE}


def test_links_and_loops(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    plant(open_location(str(inside / "orders")), WHOLE)
    plant(open_location(str(outside / "payments")), WHOLE)
    plant(open_location(str(outside / "payments/inner")), WHOLE)
    os.symlink(inside, inside / "loop")
    os.symlink(inside / "orders", inside / "same")
    os.symlink("itself", inside / "itself")
    os.symlink(tmp_path / "nowhere", inside / "dangling")
    os.symlink(outside / "payments", inside / "payments")
    os.symlink("/", inside / "everything")
    place = open_location(str(inside))
    found = discover([place])
    assert at(place, found) == {"orders": State.WHOLE, "payments": State.WHOLE}
    assert str(inside / "everything") in found.too_deep


SEGMENT = st.sampled_from(["a", "b", "orders", "checkpoint", "_checkpoints", "1", "data", "x y", "ä", ".x", "-"])
PATHS = st.lists(st.lists(SEGMENT, min_size=1, max_size=4).map("/".join), max_size=8, unique=True)


@given(paths=PATHS, others=PATHS)
def test_any_tree(paths: list[str], others: list[str]) -> None:
    """All that was planted is found, but what is hidden; files beside it change nothing."""
    place = in_memory("root")
    try:
        for path in others:
            plant(place / path, {"readme.txt": b"x"})
        for path in paths:
            plant(place / path, logs(range(2)))
        found = discover([place])
        visible = {p for p in paths if not any(part.startswith(".") for part in p.split("/"))}
        assert set(at(place, found)) == visible
        names = [f.name for f in found.found]
        assert len(set(names)) == len(names)
        assert [checked_name(name) for name in names] == names
    finally:
        forget_all()


class TestNames:
    @pytest.mark.parametrize(
        ("paths", "names"),
        [
            (["/lake/ck/orders"], ["orders"]),
            (["/lake/orders/_checkpoint", "/lake/payments/checkpoint"], ["orders", "payments"]),
            (["/a/orders", "/b/orders", "/b/other"], ["a.orders", "b.orders", "other"]),
            (["/x/a/orders", "/y/a/orders"], ["x.a.orders", "y.a.orders"]),
            (["/a/b/c", "/a/b.c", "/x/c"], ["a.b.c", "a.b.c", "x.c"]),
            (["/a/Größe", "/a/-x"], ["Gr__e", "_-x"]),
            (["/a/orders.before-restore"], ["orders_before-restore"]),
        ],
    )
    def test_as_short_as_they_can_be(self, paths: list[str], names: list[str]) -> None:
        made = backup_names([(path, 1) for path in paths])
        assert [re.sub(r"-[0-9a-f]{8}$", "", name) for name in made] == names
        assert len(set(made)) == len(made)

    @given(
        st.lists(
            st.text("ab/.-_ä= ", min_size=1, max_size=12),
            unique_by=lambda p: tuple(s for s in p.split("/") if s),
            max_size=9,
        )
    )
    def test_valid_different_and_of_any_order(self, paths: list[str]) -> None:
        made = dict(zip(paths, backup_names([(path, 1) for path in paths]), strict=True))
        assert len(set(made.values())) == len(paths)
        assert all(checked_name(name) and not name.endswith(SAFETY_SUFFIX) for name in made.values())
        backwards = paths[::-1]
        assert dict(zip(backwards, backup_names([(path, 1) for path in backwards]), strict=True)) == made
