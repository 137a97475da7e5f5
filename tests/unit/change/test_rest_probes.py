"""Probes say that a query has ended only where that is known."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from airflow_ckpt_provider.change.rest_probes import ProgressLinesEnded, probes_of
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.spark_rest import SparkApplicationEnded
from airflow_ckpt_provider.storage.location import Location
from tests.support.checkpoints import BEGAN, QUERY_ID, logs, plant
from tests.support.seals import seal_at

#: Batch 2, the newest, was triggered two seconds after batch 0.
NEWEST = datetime.fromtimestamp(BEGAN / 1000, UTC) + timedelta(seconds=2)


@pytest.fixture
def checkpoint(place: Location) -> Location:
    return plant(place / "orders", logs(range(3)))


def beside(checkpoint: Location, name: str) -> Location:
    return Location(checkpoint.store, f"{checkpoint.root.rpartition('/')[0]}/{name}")


def ended(checkpoint: Location, *events: tuple[str, str, float], query: str = QUERY_ID, **more: Any) -> str | None:
    """Ask, where the lines are these: event, run, seconds after the newest batch."""
    lines = beside(checkpoint, "lines.jsonl")
    said = (
        {"event": event, "run_id": run, "query_id": query, "at": (NEWEST + timedelta(seconds=at)).isoformat(), **more}
        for event, run, at in events
    )
    lines.replace("", "".join(json.dumps(line) + "\n" for line in said).encode())
    return ProgressLinesEnded(lines, checkpoint).ended()


class TestProgressLines:
    def test_it_ended(self, checkpoint: Location) -> None:
        said = ended(checkpoint, ("started", "a", -9), ("progress", "a", 1), ("terminated", "a", 5))
        assert said is not None
        assert said.endswith(
            f"says that run a of query {QUERY_ID} ended at {NEWEST + timedelta(seconds=5):%Y-%m-%d %H:%M:%S} UTC"
        )
        said = ended(checkpoint, ("terminated", "a", 5), error="[X] no such customer\n\tat y")
        assert said is not None
        assert said.endswith(" by an error: [X] no such customer")

    @pytest.mark.parametrize(
        "events",
        [
            [],
            [("started", "a", -9), ("progress", "a", 1)],
            [("terminated", "a", 5), ("started", "b", 6)],
            [("terminated", "a", 5), ("progress", "b", 6)],
            # It was killed, or runs still: another run beside it says nothing of it.
            [("started", "a", -9), ("started", "b", 1), ("terminated", "b", 2)],
            # Said late: the newest line is no end.
            [("terminated", "a", 5), ("progress", "a", 6)],
            # A batch after that end is of a run that wrote no lines.
            [("started", "a", -9), ("terminated", "a", -1)],
        ],
    )
    def test_it_is_not_known(self, checkpoint: Location, events: list[tuple[str, str, float]]) -> None:
        assert ended(checkpoint, *events) is None

    def test_lines_of_another_query(self, checkpoint: Location) -> None:
        assert ended(checkpoint, ("started", "a", -9), ("terminated", "a", 5), query="another") is None

    def test_a_line_without_a_time(self, checkpoint: Location) -> None:
        lines = beside(checkpoint, "lines.jsonl")
        lines.replace("", json.dumps({"event": "terminated", "run_id": "a", "query_id": QUERY_ID}).encode())
        assert ProgressLinesEnded(lines, checkpoint).ended() is None

    def test_what_cannot_be_read(self, checkpoint: Location) -> None:
        assert ProgressLinesEnded(beside(checkpoint, "no-such-file"), checkpoint).ended() is None
        checkpoint.delete("metadata")
        assert ended(checkpoint, ("terminated", "a", 5)) is None
        assert ProgressLinesEnded(beside(checkpoint, "lines.jsonl"), checkpoint, QUERY_ID).ended() is not None
        checkpoint.replace("metadata", b"")
        assert ended(checkpoint, ("terminated", "a", 5)) is None

    def test_the_newest_entry_that_tells_a_time(self, checkpoint: Location) -> None:
        plant(checkpoint, seal_at(4) | {"offsets/3": b"torn"})
        assert ended(checkpoint, ("terminated", "a", 5)) is not None
        assert ended(checkpoint, ("terminated", "a", -1)) is None

    def test_no_batch_yet(self, place: Location) -> None:
        checkpoint = plant(place / "orders", {"metadata": logs(range(0))["metadata"]})
        assert ended(checkpoint, ("started", "a", 1), ("terminated", "a", 2)) is not None


@contextmanager
def server(answer: tuple[int, dict[str, str], bytes]) -> Iterator[str]:
    """A server that gives one answer to all."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = answer
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()


def application(*attempts: dict[str, Any], name: str = "app-7") -> tuple[int, dict[str, str], bytes]:
    return 200, {}, json.dumps({"id": name, "name": "orders", "attempts": attempts}).encode()


def attempt(number: int, completed: object) -> dict[str, Any]:
    """As a history server shows it."""
    return {
        "attemptId": str(number),
        "startTime": f"2026-11-2{number}T08:00:00.000GMT",
        "endTime": f"2026-11-2{number}T09:00:00.000GMT",
        "startTimeEpoch": number,
        "completed": completed,
    }


def asked(answer: tuple[int, dict[str, str], bytes]) -> str | None:
    with server(answer) as base:
        return SparkApplicationEnded.at(f"{base}/api/v1/applications/app-7").ended()


class TestSparkRest:
    def test_it_ended(self) -> None:
        said = asked(application(attempt(1, False), attempt(2, True)))
        assert said is not None
        assert said.endswith("says that application app-7, attempt 2, ended at 2026-11-22T09:00:00.000GMT")

    def test_it_runs(self) -> None:
        with pytest.raises(RefusedError, match=r"application app-7, attempt 2, runs since 2026-11-22T08:00:00.000GMT"):
            asked(application(attempt(1, True), attempt(2, False)))

    @pytest.mark.parametrize(
        "answer",
        [
            (404, {}, b"unknown app: app-7"),
            (500, {}, b""),
            (200, {}, b"<html>a proxy wants a login</html>"),
            (200, {}, b"[]"),
            (200, {}, b"null"),
            application(),
            application(attempt(1, "yes")),
            application({"completed": True}),
            application(attempt(1, True), name="app-8"),
        ],
    )
    def test_it_is_not_known(self, answer: tuple[int, dict[str, str], bytes]) -> None:
        assert asked(answer) is None

    def test_nobody_answers(self) -> None:
        with server(application()) as base:
            pass
        assert SparkApplicationEnded.at(f"{base}/api/v1/applications/app-7").ended() is None

    def test_a_redirect_to_another_host_is_not_followed(self) -> None:
        with server(application(attempt(1, True))) as elsewhere:
            there = f"{elsewhere}/api/v1/applications/app-7"
            assert SparkApplicationEnded.at(there).ended() is not None
            assert asked((302, {"Location": there}, b"")) is None

    @pytest.mark.parametrize(
        "address",
        [
            "",
            "host:4040",
            "http://host:4040",
            "ftp://h/api/v1/applications/a",
            "http://me:secret@h/api/v1/applications/a",
        ],
    )
    def test_what_is_no_address(self, address: str) -> None:
        with pytest.raises(RefusedError, match="is not the address of an application"):
            SparkApplicationEnded.at(address)

    def test_addresses(self) -> None:
        found = SparkApplicationEnded.at(
            " https://proxy/gateway/history/api/v1/applications/app-7/1/jobs?status=running "
        )
        assert (found.base, found.application_id) == ("https://proxy/gateway/history", "app-7")


def test_those_that_are_given(checkpoint: Location) -> None:
    assert probes_of(checkpoint) == ()
    found = probes_of(
        checkpoint, progress_log=checkpoint / "x", spark_rest="http://h/api/v1/applications/a", query_id="q"
    )
    assert found == (ProgressLinesEnded(checkpoint / "x", checkpoint, "q"), SparkApplicationEnded("http://h", "a"))
