"""The triggers: their own deadline, nothing that blocks the event loop, each incident once."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Asset, AssetWatcher

import airflow_ckpt_provider.checkpoint.incidents as incidents
import airflow_ckpt_provider.checkpoint.waiting as waiting
import airflow_ckpt_provider.places as places
import airflow_ckpt_provider.triggers.commit_gap as commit_gap
from airflow_ckpt_provider.change.sealing import seal, unseal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.conditions import Condition, Wait
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.triggers.commit_gap import CommitGapTrigger
from airflow_ckpt_provider.triggers.stream_event import StreamEventTrigger
from tests.support.growing_streams import DiskStream


@pytest.fixture
def stream(tmp_path: Path) -> DiskStream:
    return DiskStream(tmp_path / "orders").start().ran(range(6), age=60)


def trigger(stream: DiskStream, *, seconds: float = 20.0, **fields: Any) -> CommitGapTrigger:
    wait = Wait(Condition("committed_batch", 9)).to_json()
    fields = {"wait": wait, "end_time": time.time() + seconds, "poll_interval": 0.01, **fields}
    return CommitGapTrigger(checkpoint=str(stream), **fields)


def fired(made: Any, within: float = 120.0) -> dict[str, Any]:
    """The first event; the trigger is recreated from what it was stored as."""
    arguments = json.loads(json.dumps(made.serialize()[1]))

    async def first() -> Any:
        async for event in type(made)(**arguments).run():
            return event.payload

    payload: dict[str, Any] = asyncio.run(asyncio.wait_for(first(), within))
    return payload


class TestCommitGapTrigger:
    def test_arguments_survive(self, stream: DiskStream) -> None:
        made = trigger(stream, memory={"base": 3}, checkpoint_conn_id="lake", silent_fail=True)
        path, arguments = made.serialize()
        assert path == "airflow_ckpt_provider.triggers.commit_gap.CommitGapTrigger"
        assert CommitGapTrigger(**json.loads(json.dumps(arguments))).serialize() == (path, arguments)

    def test_own_deadline(self, stream: DiskStream) -> None:
        began = time.monotonic()
        event = fired(trigger(stream, seconds=0.3, poll_interval=3600.0))
        assert time.monotonic() - began > 0.2
        assert event["status"] == "timeout"
        assert event["message"] == f"{stream}: waiting for committed_batch 9: newest logged batch 5, newest committed 5"
        assert event["progress"]["latest_committed"] == 5

    def test_deadline_of_a_store_that_does_not_answer(
        self, stream: DiskStream, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answered = threading.Event()
        monkeypatch.setattr(commit_gap, "_LAST_LOOK", 0.2)
        monkeypatch.setattr(waiting, "look", lambda *_, **__: answered.wait(20))
        made = trigger(stream, seconds=0.2)

        async def run() -> Any:
            async for event in made.run():
                answered.set()
                return event.payload

        event = asyncio.run(run())
        assert (event["status"], event["message"]) == ("timeout", f"{stream}: no look was finished in time")

    def test_restarted_triggerer_goes_on(self, stream: DiskStream) -> None:
        """What was lost with the triggerer is read again; the beginning of the wait is not."""
        wait = Wait(Condition("progressed_by", 2)).to_json()
        made = trigger(stream, wait=wait, memory={"base": 5, "committed": 5})

        async def cancelled() -> None:
            running = asyncio.ensure_future(made.run().__anext__())  # type: ignore[arg-type]
            await asyncio.sleep(0.1)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

        asyncio.run(cancelled())
        stream.ran([6, 7])
        assert fired(made)["status"] == "done"
        stream.rewind(4)
        assert fired(made)["status"] == "went_back"

    def test_no_look_so_soon_after_the_workers(self, stream: DiskStream) -> None:
        from datetime import UTC, datetime

        memory = {"base": 5, "looked": datetime.now(UTC).isoformat()}
        began = time.monotonic()
        stream.ran(range(6, 10))
        assert fired(trigger(stream, memory=memory, poll_interval=0.5))["status"] == "done"
        assert time.monotonic() - began > 0.4

    def test_error_of_the_store(self, tmp_path: Path) -> None:
        file = tmp_path / "orders"
        file.write_text("")
        event = fired(trigger(DiskStream(file)))
        assert (event["status"], event["message"]) == ("error", f"could not read {file}/metadata: Not a directory")
        assert fired(trigger(DiskStream(file), seconds=0.2, silent_fail=True))["status"] == "timeout"

    def test_not_a_checkpoint(self, tmp_path: Path) -> None:
        event = fired(trigger(DiskStream(tmp_path)))
        assert event["status"] == "refused"
        assert "missing_ok=True" in event["hint"]

    def test_everything_of_the_store_happens_in_a_thread(
        self, stream: DiskStream, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also the opening: Airflow's S3 filesystem cannot be made inside an event loop."""
        seen = []

        def opened(*arguments: Any) -> Any:
            with pytest.raises(RuntimeError, match="no running event loop"):
                asyncio.get_running_loop()
            seen.append(threading.current_thread() is threading.main_thread())
            return open_place(*arguments)

        monkeypatch.setattr(places, "open_place", opened)
        fired(trigger(stream, wait=Wait(Condition("committed_batch", 5)).to_json()))
        events(stream.log(6, age=50), [lambda: None], stuck_after=30.0)
        assert seen == [False, False]


class AssetStore(dict[str, Any]):
    """Where Airflow 3.3 keeps what a watcher knows of its asset."""

    async def aget(self, key: str) -> Any:
        return self.get(key)

    async def aset(self, key: str, value: Any) -> None:
        self[key] = json.loads(json.dumps(value))


def events(
    stream: DiskStream, steps: list[Callable[[], object]], *, store: Any = None, **limits: Any
) -> list[tuple[str, str]]:
    """Run the watch; before each step a few looks are made. Returns incidents and messages."""
    found: list[tuple[str, str]] = []
    limits = {"stuck_after": None, "poll_interval": 0.01, **limits}
    made = StreamEventTrigger(checkpoint=str(stream), **limits)
    made.asset_state_store = store  # type: ignore[assignment]
    looks = 0
    inner = made._look

    def counted(*arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        return inner(*arguments)

    made._look = counted  # type: ignore[method-assign]

    async def watch() -> None:
        async for event in made.run():
            assert json.loads(json.dumps(event.payload)) == event.payload
            found.append((event.payload["incident"], event.payload["message"]))

    async def play() -> None:
        watching = asyncio.ensure_future(watch())
        for step in [*steps, lambda: None]:
            seen = looks
            while looks < seen + 3 and not watching.done():
                await asyncio.sleep(0.01)
            assert not watching.done(), watching.exception()
            await asyncio.to_thread(step)
        watching.cancel()

    asyncio.run(asyncio.wait_for(play(), 30))
    return found


class TestStreamEventTrigger:
    def test_stuck_is_announced_once(self, stream: DiskStream) -> None:
        stream.log(6, age=50)
        found = events(stream, [lambda: None] * 3, stuck_after=30.0)
        assert [kind for kind, _ in found] == ["stuck"]
        assert f"{stream} is stuck: batch 6 was begun and is not committed" in found[0][1]

    def test_a_watch_that_cannot_ask_airflow_for_its_connection_asks_again(
        self, stream: DiskStream, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stream.log(6, age=50)
        opened: list[str] = []

        def at_the_third_time(uri: str, conn_id: str | None = None) -> Any:
            opened.append(uri)
            if len(opened) < 3:
                raise ConnectionError("the API server does not answer")
            return open_place(uri)

        monkeypatch.setattr(places, "open_place", at_the_third_time)
        assert [kind for kind, _ in events(stream, [lambda: None], stuck_after=30.0)] == ["stuck"]
        assert len(opened) == 3

    def test_and_again_when_it_is_stuck_again(self, stream: DiskStream) -> None:
        stream.log(6, age=50)
        steps = [lambda: stream.commit(6), lambda: stream.log(7, age=0).commit(6, age=55).log(7, age=40)]
        # Only what was seen to change is trusted to be new; so the second standstill takes its time.
        found = events(stream, [*steps, lambda: time.sleep(1.3)], stuck_after=1.0)
        assert [kind for kind, _ in found if kind == "stuck"] == ["stuck", "stuck"]

    def test_fell_behind(self, stream: DiskStream) -> None:
        stream.log(6, age=50)
        assert events(stream, [], behind_after=30.0) == [
            ("fell_behind", f"{stream} fell behind: batch 6 runs for 50 s")
        ]
        assert events(stream, [], behind_after=90.0) == []
        stream.log(7).log(8)
        assert events(stream, [], max_gap=2) == [
            ("fell_behind", f"{stream} fell behind: 3 logged batches are uncommitted")
        ]
        assert events(stream, [], max_gap=3) == []

    def test_silent(self, stream: DiskStream) -> None:
        found = events(stream, [lambda: stream.ran([6])], silent_after=30.0)
        assert found == [("silent", f"{stream} is silent: its newest batch 5 was committed 60 s ago")]
        assert events(stream, []) == [], "an idle stream is no incident unless asked for"

    def test_history_rewritten(self, stream: DiskStream) -> None:
        found = events(stream, [lambda: stream.rewind(3), lambda: stream.ran([4]), lambda: stream.rewind(2)])
        assert [kind for kind, _ in found] == ["history_rewritten"] * 2

    def test_a_sealed_stream_has_no_incidents(self, stream: DiskStream) -> None:
        stream.log(6, age=50)
        checkpoint = Checkpoint.at(open_place(str(stream)))
        seal(checkpoint, reason="repair", made_by="me", plan_id="p")
        steps = [lambda: None, lambda: unseal(checkpoint, plan_id="p")]
        found = events(stream, steps, stuck_after=30.0)
        assert [kind for kind, _ in found] == ["stuck"], "after the seal was lifted"

    def test_a_checkpoint_that_is_still_to_come(self, tmp_path: Path) -> None:
        stream = DiskStream(tmp_path / "new")
        found = events(stream, [lambda: stream.start().log(0, age=50)], behind_after=30.0)
        assert [kind for kind, _ in found] == ["fell_behind"]

    def test_a_store_that_fails_is_looked_at_again(self, stream: DiskStream, monkeypatch: pytest.MonkeyPatch) -> None:
        stream.log(6, age=50)
        inner, failed = incidents.glance, []

        def fail_twice(*arguments: Any) -> Any:
            if len(failed) < 2:
                failed.append(1)
                raise StorageError("no answer")
            return inner(*arguments)

        monkeypatch.setattr(incidents, "glance", fail_twice)
        assert [kind for kind, _ in events(stream, [lambda: None], stuck_after=30.0)] == ["stuck"]

    def test_a_watch_whose_memory_cannot_be_reached_goes_on(self, stream: DiskStream) -> None:
        class NoStore:
            async def aget(self, key: str) -> Any:
                raise ConnectionError("the API server does not answer")

            aset: Any = aget

        stream.log(6, age=50)
        found = events(stream, [lambda: stream.commit(6)], store=NoStore(), stuck_after=30.0)
        assert [kind for kind, _ in found] == ["stuck"]

    def test_a_restarted_triggerer_does_not_announce_it_again(self, stream: DiskStream) -> None:
        store = AssetStore()
        stream.log(6, age=50)
        assert len(events(stream, [], store=store, stuck_after=30.0)) == 1
        assert events(stream, [], store=store, stuck_after=30.0) == []
        assert len(events(stream, [], store=store, stuck_after=31.0)) == 1, "another watch"
        stream.commit(6)
        assert events(stream, [], store=store, stuck_after=30.0) == []
        stream.log(7, age=50).commit(6, age=50)
        assert [kind for kind, _ in events(stream, [], stuck_after=30.0, store=AssetStore())] == ["stuck"]

    def test_a_triggerer_that_stops_leaves_it_to_the_next_one(self, stream: DiskStream) -> None:
        """It was kept as announced before it was announced: an event was lost with the first triggerer."""

        class LastWord(AssetStore):
            async def aset(self, key: str, value: Any) -> None:
                await super().aset(key, value)
                raise asyncio.CancelledError

        store = LastWord()
        stream.log(6, age=50)
        made = StreamEventTrigger(checkpoint=str(stream), stuck_after=30.0, poll_interval=0.01)
        made.asset_state_store = store  # type: ignore[assignment]
        found: list[str] = []

        async def until_it_stops() -> None:
            async for event in made.run():
                found.append(event.payload["incident"])

        with pytest.raises(asyncio.CancelledError):
            asyncio.run(until_it_stops())
        assert (found, len(store)) == (["stuck"], 1)

    def test_what_ended_is_kept_although_the_store_failed_at_that_time(self, stream: DiskStream) -> None:
        class FailsOnce(AssetStore):
            is_down = False

            async def aset(self, key: str, value: Any) -> None:
                if self.is_down:
                    self.is_down = False
                    raise ConnectionError("the API server does not answer")
                await super().aset(key, value)

        def commit_all() -> None:
            store.is_down = True
            stream.commit(6).commit(7).commit(8)

        store = FailsOnce()
        stream.log(6).log(7).log(8)
        assert [kind for kind, _ in events(stream, [commit_all], store=store, max_gap=2)] == ["fell_behind"]
        assert not store.is_down
        stream.log(9).log(10).log(11)
        again = events(stream, [], store=store, max_gap=2)
        assert [kind for kind, _ in again] == ["fell_behind"], "a new one, to the triggerer that starts after it began"

    def test_watches_an_asset_through_the_database(self, stream: DiskStream) -> None:
        from airflow.sdk import DAG
        from airflow.serialization.serialized_objects import DagSerialization

        made = StreamEventTrigger(checkpoint=str(stream), stuck_after=600.0)
        asset = Asset("orders_incidents", watchers=[AssetWatcher(name="incidents", trigger=made)])
        with DAG("on_incident", schedule=[asset]) as dag:
            pass
        text = json.dumps(DagSerialization.to_dict(dag))
        assert "airflow_ckpt_provider.triggers.stream_event.StreamEventTrigger" in text
        path, arguments = made.serialize()
        assert StreamEventTrigger(**arguments).serialize() == (path, arguments)
        same = StreamEventTrigger.hash(path, arguments)
        assert same == StreamEventTrigger.hash(*StreamEventTrigger(**arguments).serialize())
