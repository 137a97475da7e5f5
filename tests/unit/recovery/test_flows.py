"""Flows of Declarative Pipelines: which checkpoint is live, reset and restored into the next version, stopped anywhere."""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.sealing import seal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError, SealedError, StorageError, UnreadableLogError
from airflow_ckpt_provider.recovery.flows.flow import Flow, flow_named, flows_of
from airflow_ckpt_provider.recovery.flows.reset import FlowOutcome, _outcome, apply_flow_reset, plan_flow_reset
from airflow_ckpt_provider.recovery.flows.restore import apply_flow_restore, plan_flow_restore
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import stream
from tests.support.checkpoints import contents, metadata, plant
from tests.support.flows import NEWEST, stateless
from tests.support.restores import loud_seal
from tests.support.stopped import STOPPED
from tests.support.watched_stores import WRITES, Killed, forget_all, lives, watched

PATH = "_checkpoints/spark_catalog/default/orders/ingest"
SINK = Sink(kind="foreachBatch")
OTHER = "00000000-0000-0000-0000-0000000000ff"


@pytest.fixture
def storage(place: Location) -> Location:
    """A pipeline with one flow, whose version 0 has batches 0 to 3 committed."""
    plant(place / f"pipeline/{PATH}/0", stateless())
    return place / "pipeline"


def ingest(storage: Location) -> Flow:
    return flow_named(flows_of(storage), "ingest")


def reset(storage: Location, *, accept: Collection[str] = (), **options: Any) -> FlowOutcome:
    options = {"sink": SINK, "keep_position": True, **options}
    return apply_flow_reset(plan_flow_reset(ingest(storage), **options), accept=accept, rest=STOPPED)


class TestListing:
    def test_the_highest_number_is_live(self, storage: Location) -> None:
        for number, newest in ((2, 1), (10, 2)):
            plant(storage / f"{PATH}/{number}", stateless(newest))
        plant(storage, {f"{PATH}/_temporary/x": b"", f"{PATH}/9x/metadata": b""})
        flow = ingest(storage)
        assert (flow.versions, flow.live, flow.target) == ((0, 2, 10), 10, "spark_catalog.default.orders")
        assert flow.progress
        assert flow.progress.latest_committed == 2

    def test_not_started_and_unreadable(self, storage: Location) -> None:
        plant(storage, {"_checkpoints/c/d/t/f/3/metadata": b"{", "_checkpoints/c/d/t/g/0/x": b""})
        flows = {flow.name: flow for flow in flows_of(storage)}
        assert "expected" in (flows["f"].unread or "")
        assert (flows["g"].live, flows["g"].progress, flows["g"].unread) == (0, None, None)
        assert json.loads(json.dumps(flows["f"].to_json()))["live"] == 3

    def test_names(self, storage: Location) -> None:
        plant(storage, {"_checkpoints/spark_catalog/default/other/ingest/0/metadata": metadata()})
        flows = flows_of(storage)
        with pytest.raises(RefusedError, match="'ingest' is the name of 2 flows"):
            flow_named(flows, "ingest")
        assert flow_named(flows, "other.ingest").target.endswith("other")
        assert flow_named(flows, "spark_catalog/default/orders/ingest").target.endswith("orders")
        with pytest.raises(RefusedError, match="there is no flow 'ordersingest'"):
            flow_named(flows, "ordersingest")

    def test_no_pipeline(self, place: Location) -> None:
        with pytest.raises(RefusedError, match="holds no flows of Spark Declarative Pipelines"):
            flows_of(place)


class TestReset:
    def test_keeping_the_position(self, storage: Location) -> None:
        before = contents(storage)
        outcome = reset(storage)
        after = contents(storage)
        assert {path: after[path] for path in before} == before
        assert set(after) - set(before) == {f"{PATH}/1/metadata", f"{PATH}/1/sources/0/0"}
        assert json.loads(after[f"{PATH}/1/metadata"]) == {"id": outcome.query_id}
        assert (outcome.version, ingest(storage).live) == (1, 1)
        assert reset(storage).already_done

    @pytest.mark.parametrize("torn", [b"", b"{", b"[]", b'{"id": 7}'])
    def test_a_query_id_that_cannot_be_read_afterwards(self, storage: Location, torn: bytes) -> None:
        """It was an error of Python, or the number."""
        plan = plan_flow_reset(ingest(storage), sink=SINK, keep_position=True)
        plant(storage, {f"{PATH}/1/metadata": torn})
        with pytest.raises(UnreadableLogError, match="metadata: expected"):
            _outcome(plan, storage / f"{PATH}/1", 0.0)

    def test_from_scratch(self, storage: Location) -> None:
        with pytest.raises(RefusedError, match=r"needs somebody to accept: sink_duplicates \("):
            reset(storage, keep_position=False)
        reset(storage, keep_position=False, accept=["sink_duplicates"])
        assert set(contents(storage / f"{PATH}/1")) == {"metadata"}

    def test_going_on_with_the_numbers(self, storage: Location) -> None:
        reset(storage, continue_numbers=True)
        made = contents(storage / f"{PATH}/1")
        assert set(made) == {"metadata", "sources/0/0", "offsets/2", "offsets/3", "commits/3"}
        assert made["offsets/3"].decode().splitlines()[2:] == ["-"]
        assert reset(storage, continue_numbers=True).already_done
        resume = Checkpoint.at(storage / f"{PATH}/1").resume_point()
        assert (resume.batch_id, resume.replay) == (NEWEST + 1, False)

    def test_not_with_state(self, place: Location) -> None:
        plant(place / f"pipeline/{PATH}/0", stream(NEWEST))
        with pytest.raises(RefusedError, match="keeps state, and its batch numbers go with its state"):
            reset(place / "pipeline", continue_numbers=True)

    def test_one_that_has_gone_on_since(self, storage: Location) -> None:
        query_id = reset(storage).query_id or ""
        plant(storage / f"{PATH}/1", {**stateless(1), "metadata": metadata(query_id)})
        assert reset(storage).version == 2

    def test_an_empty_version_of_a_full_refresh_does_for_a_new_start(self, storage: Location) -> None:
        plant(storage, {f"{PATH}/1/metadata": metadata("new")})
        with pytest.raises(RefusedError, match="needs somebody to accept: sink_duplicates"):
            reset(storage, keep_position=False)
        assert reset(storage, keep_position=False, accept=["sink_duplicates"]).already_done
        assert reset(storage).version == 2

    def test_one_that_never_ran(self, place: Location) -> None:
        plant(place, {f"{PATH}/0/metadata": metadata()})
        with pytest.raises(RefusedError, match="has not run yet"):
            reset(place)

    def test_one_that_runs(self, storage: Location) -> None:
        plan = plan_flow_reset(ingest(storage), keep_position=True, sink=SINK)
        plant(storage / f"{PATH}/0", stateless(NEWEST + 1))
        with pytest.raises(RefusedError, match=r"ingest/0 is not any more what plan"):
            apply_flow_reset(plan, rest=STOPPED)
        assert not loud_seal(storage / f"{PATH}/0")

    def test_one_whose_next_version_appears(self, storage: Location) -> None:
        """The pipeline was refreshed in the meantime: its former version is not left sealed either."""
        plan = plan_flow_reset(ingest(storage), keep_position=True, sink=SINK)
        plant(storage / f"{PATH}/1", stateless(0))
        before = contents(storage)
        with pytest.raises(RefusedError, match=r"ingest/1 is not any more what plan"):
            apply_flow_reset(plan, rest=STOPPED)
        assert contents(storage) == before

    def test_a_repository_that_is_full(self, tmp_path: Path) -> None:
        """On a disk: nothing was changed, and no empty version is left in which Spark would start from the beginning."""

        def full(operation: str, path: str) -> None:
            if operation in WRITES and "/set-aside/" in path:
                raise StorageError("could not replace it: no space left on device")

        storage = Location(LocalStore(), str(tmp_path / "pipeline"))
        plant(storage / f"{PATH}/0", stateless())
        with pytest.raises(StorageError, match="no space left"):
            reset(watched(storage, full)[0])
        assert ingest(storage).versions == (0,)
        assert contents(storage) == {f"{PATH}/0/{path}": data for path, data in stateless().items()}

    def test_sealed_by_somebody_else(self, storage: Location) -> None:
        seal(Checkpoint.at(storage / f"{PATH}/0"), reason="mine", plan_id="beef")
        with pytest.raises(SealedError, match="sealed by plan beef"):
            reset(storage)

    @pytest.mark.parametrize("continue_numbers", [False, True])
    def test_stopped_anywhere(self, place: Location, continue_numbers: bool) -> None:
        for life in lives(range(60), least=3):
            storage = place / f"s{life.writes}"
            plant(storage / f"{PATH}/0", stateless())
            dying, _ = watched(storage, life.before)
            with suppress(Killed):
                reset(dying, continue_numbers=continue_numbers)
            if not life.dead:
                continue
            flow = ingest(storage)
            live = flow.version(flow.live or 0)
            not_begun = contents(live) == stateless()
            complete = {"metadata", "sources/0/0"} <= set(contents(live)) and flow.live == 1
            assert loud_seal(live) or not_begun or complete, f"after write {life.writes}"
            reset(storage, continue_numbers=continue_numbers)
            assert ingest(storage).versions == (0, 1)
            assert contents(storage / f"{PATH}/0") == stateless()
            assert not loud_seal(storage / f"{PATH}/1")
            forget_all()

    def test_taken_back_on_a_disk_no_empty_version_is_left(self, tmp_path: Path) -> None:
        """Spark takes the highest number for the live one, an empty directory too, and would start from the beginning in it."""
        for life in lives(range(60), least=3):
            storage = Location(LocalStore(), str(tmp_path / str(life.writes)))
            plant(storage / f"{PATH}/0", stateless())
            reset(storage)
            repository = Repository.open(default_repository(storage))
            dying, _ = watched(storage, life.before)
            with suppress(Killed):
                undo(ingest(dying).version(1), repository, rest=STOPPED)
            if not life.dead:
                continue
            flow = ingest(storage)
            empty = flow.live == 1 and not (storage / f"{PATH}/1").walk()
            assert not empty or loud_seal(storage / f"{PATH}/0"), (
                f"after write {life.writes}: nobody sees that it is not ended"
            )
            undo(storage / f"{PATH}/0", repository, rest=STOPPED)
            assert ingest(storage).versions == (0,)
            assert contents(storage / f"{PATH}/0") == stateless()
        assert ingest(storage).versions == (0,)

    @pytest.mark.parametrize("sealed", [0, 1])
    def test_another_way_is_refused_meanwhile(self, storage: Location, sealed: int) -> None:
        """Stopped once the old version is sealed, and once the new one is, too."""

        def die(operation: str, path: str) -> None:
            if operation in WRITES and loud_seal(storage / f"{PATH}/{sealed}"):
                raise Killed(path)

        dying, _ = watched(storage, die)
        with pytest.raises(Killed):
            reset(dying)
        with pytest.raises(SealedError, match="which was not ended"):
            reset(storage, keep_position=False)
        assert reset(storage).version == 1


class TestRestore:
    @pytest.fixture
    def repository(self, storage: Location, place: Location) -> Repository:
        kept = Repository.open_or_create(place / "backups")
        create_backup(Checkpoint.at(storage / f"{PATH}/0"), kept, name="ingest")
        return kept

    def restore(self, storage: Location, repository: Repository, accept: Collection[str] = ()) -> int:
        manifest = repository.manifest(name="ingest")
        plan = plan_flow_restore(ingest(storage), repository, manifest, sink=SINK)
        apply_flow_restore(plan, accept=accept, rest=STOPPED)
        return plan.version

    def test_into_the_next_version(self, storage: Location, repository: Repository) -> None:
        plant(storage / f"{PATH}/0", stateless(5))
        before = contents(storage / f"{PATH}/0")
        with pytest.raises(RefusedError, match=r"needs somebody to accept: sink_duplicates \("):
            self.restore(storage, repository)
        assert self.restore(storage, repository, ["sink_duplicates"]) == 1
        assert contents(storage / f"{PATH}/0") == before
        assert Checkpoint.at(storage / f"{PATH}/1").progress().latest_committed == NEWEST
        assert self.restore(storage, repository, ["sink_duplicates"]) == 1  # there already

    def test_of_another_flow(self, storage: Location, repository: Repository, place: Location) -> None:
        plant(place / "elsewhere", stateless())
        other = create_backup(Checkpoint.at(place / "elsewhere"), repository, name="other").manifest
        with pytest.raises(RefusedError, match="not of flow spark_catalog/default/orders/ingest"):
            plan_flow_restore(ingest(storage), repository, other)

    def test_of_a_flow_whose_catalog_ends_alike(self, storage: Location, repository: Repository) -> None:
        theirs = storage / PATH.replace("spark_catalog", "not_spark_catalog") / "0"
        plant(theirs, stateless())
        other = create_backup(Checkpoint.at(theirs), repository, name="other").manifest
        mine = next(flow for flow in flows_of(storage) if flow.path.startswith("spark_catalog/"))
        with pytest.raises(RefusedError, match="not of flow spark_catalog/default/orders/ingest"):
            plan_flow_restore(mine, repository, other)

    def test_of_another_query_of_that_name(self, storage: Location, repository: Repository, place: Location) -> None:
        """A pipeline in another storage may have a flow of the same name."""
        theirs = plant(place / f"theirs/{PATH}/0", stateless() | {"metadata": metadata(OTHER)})
        manifest = create_backup(Checkpoint.at(theirs), repository, name="theirs").manifest
        plan = plan_flow_restore(ingest(storage), repository, manifest, sink=SINK)
        own = ingest(storage).progress
        assert own
        assert [risk.why for risk in plan.restore.risks if risk.word == "other_query"] == [
            f"the former version of the flow holds query {own.query_id}, and the backup is of query {OTHER} of "
            f"{theirs.uri}; nothing shows that they are one stream"
        ]
        with pytest.raises(RefusedError, match="needs somebody to accept: other_query"):
            apply_flow_restore(plan, accept=["sink_duplicates"], rest=STOPPED)
        apply_flow_restore(plan, accept=["sink_duplicates", "other_query"], rest=STOPPED)
        assert (storage / f"{PATH}/1").read("metadata") == metadata(OTHER)

    def test_of_an_earlier_version_with_an_id_of_its_own(self, storage: Location, repository: Repository) -> None:
        """A full refresh makes a version with a new id: the backup of the version before is one of this flow."""
        plant(storage / f"{PATH}/1", stateless(5) | {"metadata": metadata(OTHER)})
        plan = plan_flow_restore(ingest(storage), repository, repository.manifest(name="ingest"), sink=SINK)
        assert (plan.version, plan.restore.other_query) == (2, "")

    def test_stopped_anywhere(self, storage: Location, repository: Repository) -> None:
        plant(storage / f"{PATH}/0", stateless(5))
        for life in lives(range(60), least=3):
            for path in (storage / f"{PATH}/1").walk():
                (storage / f"{PATH}/1").delete(path)
            dying, _ = watched(storage, life.before)
            with suppress(Killed):
                assert self.restore(dying, repository, ["sink_duplicates"]) == 1
            if not life.dead:
                continue
            flow = ingest(storage)
            complete = bool(flow.progress and flow.progress.latest_committed == NEWEST)
            assert flow.live == 0 or loud_seal(flow.version(1)) or complete, f"after write {life.writes}"
            assert self.restore(storage, repository, ["sink_duplicates"]) == 1
            assert not loud_seal(flow.version(1))
