"""What a poke asks of a real S3 server, counted in the requests that leave this machine; and that no cache hides progress."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import fsspec
import pytest
from airflow.sdk import ObjectStoragePath
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.checkpoint.conditions import Condition, Wait
from airflow_ckpt_provider.checkpoint.waiting import State, look
from airflow_ckpt_provider.checkpoint.waiting_memory import Memory
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.sensors.commit_gap import CommitGapSensor
from airflow_ckpt_provider.storage.fsspec_store import FsspecStore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import location_of, open_location
from airflow_ckpt_provider.storage.s3_store import S3Store
from tests.support.checkpoints import batch_metadata, commit_log, compact, metadata, offsets_log
from tests.support.s3_gate import Gate
from tests.support.s3_server import STRANGER, S3Server


@pytest.fixture
def gate(s3_server: S3Server) -> Iterator[Gate]:
    made = Gate(s3_server)
    yield made
    made.close()


class Stream:
    """A stream that lives in the S3 server; whoever watches it does not see how it is written."""

    def __init__(self, server: S3Server) -> None:
        self.root = f"{server.make_bucket()}/checkpoints/orders"
        self._fs = server.filesystem()
        self._fs.pipe_file(f"{self.root}/metadata", metadata())

    def ran(self, batches: range) -> Stream:
        files = {}
        for batch in batches:
            entry = offsets_log(compact({"orders": {"0": batch}}), metadata=batch_metadata(batch))
            files[f"{self.root}/offsets/{batch}"] = entry
            files[f"{self.root}/commits/{batch}"] = commit_log()
        self._fs.pipe(files)
        return self


WAYS = ["obstore", "s3fs with a listings cache"]


@pytest.fixture(params=WAYS)
def location(request: pytest.FixtureRequest, s3_server: S3Server, gate: Gate) -> Location:
    stream = Stream(s3_server).ran(range(4))
    options = s3_server.options() | {"endpoint_url": gate.endpoint}
    if request.param == "obstore":
        return open_location(f"s3://{stream.root}", storage_options=options)
    fs = fsspec.filesystem("s3", **options, use_listings_cache=True, skip_instance_cache=True)
    return Location(FsspecStore(fs), stream.root)


def test_two_listings_and_at_most_one_read(location: Location, gate: Gate, s3_server: S3Server) -> None:
    writer = Stream(s3_server)
    writer.root = location.root
    wait = Wait(Condition("progressed_by", 6), stuck_after=timedelta(hours=1))
    _, memory = look(location, wait, Memory())  # the first one may ask whether the bucket is there
    for begin, newest in ((4, 4), (5, 5), (6, 7), (8, 9)):
        writer.ran(range(begin, newest + 1))
        with gate.counted() as requests:
            answer, memory = look(location, wait, memory)
        kinds = [r.split()[0] for r in requests]
        assert kinds.count("LIST") == 2, requests
        assert kinds.count("GET") <= 1, requests
        # s3fs asks for an object's size before it reads it.
        assert set(kinds) <= {"LIST", "GET", "HEAD"}, requests
        assert kinds.count("HEAD") <= (0 if isinstance(location.store, S3Store) else 1), requests
        assert answer.progress["latest_committed"] == newest, "a cache has hidden progress"
    assert answer.state is State.DONE


def test_more_batches_than_a_page_of_a_listing_holds(gate: Gate, s3_server: S3Server) -> None:
    """Each listing is then as many requests as it has pages, of a thousand names each, and still there are two."""
    stream = Stream(s3_server).ran(range(2))
    entry = offsets_log("1", metadata=batch_metadata(2))
    s3_server.filesystem().pipe({f"{stream.root}/offsets/{batch}": entry for batch in range(2, 1010)})
    options = s3_server.options() | {"endpoint_url": gate.endpoint}
    location = open_location(f"s3://{stream.root}", storage_options=options)
    wait, memory = Wait(Condition("max_gap", 1), stuck_after=timedelta(hours=1)), Memory()
    for _ in range(2):
        with gate.counted() as requests:
            answer, memory = look(location, wait, memory)
        assert [r.split()[0] for r in requests] == ["LIST", "LIST", "GET"]
        assert (answer.state, answer.progress["uncommitted"]) == (State.WAITING, 1008)


def test_cached_filesystem_of_airflow_hides_nothing(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow keeps one filesystem for each connection, and s3fs keeps listings."""
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", s3_server.airflow_connection())
    stream = Stream(s3_server).ran(range(4))
    path = ObjectStoragePath(f"s3://lake@{stream.root}")
    assert len(list((path / "commits").iterdir())) == 4
    stream.ran(range(4, 6))
    shared = path.fs
    assert shared.ls(f"{stream.root}/commits") is not None
    place = open_place(f"s3://{stream.root}", "lake")
    memory = Memory()
    for newest in (5, 7, 9):
        stream.ran(range(newest - 1, newest + 1))
        for opened in (place, location_of(shared, stream.root)):
            answer, memory = look(opened, Wait(Condition("committed_batch", 99)), memory)
            assert answer.progress["latest_committed"] == newest


@pytest.mark.parametrize("deferrable", [False, True])
class TestTrouble:
    def _sensor(self, checkpoint: str, conn_id: str, deferrable: bool) -> Any:
        return CommitGapSensor(
            task_id="w",
            checkpoint=checkpoint,
            checkpoint_conn_id=conn_id,
            deferrable=deferrable,
            poll_interval=0.01,
            timeout=1,
        )

    def test_not_allowed(self, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, deferrable: bool) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_STRANGER", s3_server.airflow_connection(STRANGER))
        stream = Stream(s3_server)
        with pytest.raises(StorageError) as e:
            self._sensor(f"s3://{stream.root}", "stranger", deferrable).execute({})
        assert f"s3://{stream.root}/commits" in str(e.value)
        assert "HINT: check" in str(e.value)

    def test_no_bucket(self, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, deferrable: bool) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", s3_server.airflow_connection())
        with pytest.raises(StorageError, match="s3://no-such-bucket-1"):
            self._sensor("s3://no-such-bucket-1/ck", "lake", deferrable).execute({})

    def test_no_connection(self, s3_server: S3Server, deferrable: bool) -> None:
        with pytest.raises(AirflowFailException, match="there is no Airflow connection 'typo'"):
            self._sensor("s3://bucket/ck", "typo", deferrable).execute({})


def test_nobody_answers(s3_server: S3Server, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried again by the client, then left to the task's retries, with the path."""
    stream = Stream(s3_server).ran(range(2))
    connection = s3_server.airflow_connection().replace(s3_server.endpoint, gate.endpoint)
    monkeypatch.setenv("AIRFLOW_CONN_FAR_AWAY", connection)
    gate.close()
    with pytest.raises(StorageError) as e:
        CommitGapSensor(task_id="w", checkpoint=f"s3://{stream.root}", checkpoint_conn_id="far_away").execute({})
    assert f"could not list s3://{stream.root}/commits" in str(e.value)
    assert "HINT: check the address, the credentials and that the store is reachable" in str(e.value)
