"""What looks cost on a distant store, in requests and in the longest chain of them: ``benchmarks/latency.py`` has the figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.storage.opening import open_location
from benchmarks import page
from benchmarks.latency import LATENCIES, OPERATIONS, Measured, Operation, Place, measure, report
from tests.support.s3_gate import Request, longest_chain
from tests.support.s3_server import S3Server

#: Seconds that each answer takes, in one try after the other.
_LATENCIES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
#: Requests more of a repository of format 2: whether contents were moved.
_WITH_PACKS = {"backup, nothing new": 1}


@pytest.fixture(scope="module")
def place(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place.filled(s3_server, tmp_path_factory.mktemp("latency"))


def has_packs(place: Place) -> bool:
    options = place.server.options()
    return Repository.open(open_location(f"s3://{place.bucket}/repository", storage_options=options)).packs


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_requests_and_the_longest_chain(operation: Operation, place: Place) -> None:
    """On a busy machine requests of one moment are sent late: the longer each answer takes, the less that matters."""
    allowed = operation.requests + (_WITH_PACKS.get(operation.name, 0) if has_packs(place) else 0)
    for latency in _LATENCIES:
        run = measure(operation, place, latency)
        assert run.requests <= allowed, run
        if run.chain <= operation.chain:
            return
    raise AssertionError(f"{operation.name}: {run}, where {operation} is right")


def test_a_chain_is_counted_by_what_does_not_overlap() -> None:
    def request(began: float, ended: float) -> Request:
        return Request("GET", "/", "", began, ended, 200, 1)

    assert longest_chain([]) == 0
    assert longest_chain([request(0, 1), request(0, 1), request(0.5, 1.5)]) == 1
    assert longest_chain([request(0, 3), request(0, 1), request(1, 2), request(2.5, 3)]) == 3


def test_the_page_keeps_the_parts_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    page.PAGE.write_text("# Benchmarks\n\nold\n")
    run = Measured(3, 3, 0.2, "3 GET")
    page.write_part("benchmarks.latency", report([(OPERATIONS[0], LATENCIES[0], [run])], rounds=1, load=0.0))
    page.write_part("benchmarks.main", "# Benchmarks\n\nnew\n")
    page.write_part("benchmarks.other", "## Other\n")
    page.write_part("benchmarks.latency", "## Looks\n")
    assert page.PAGE.read_text() == (
        "# Benchmarks\n\nnew\n\n<!-- written by benchmarks.latency -->\n## Looks\n\n"
        "<!-- written by benchmarks.other -->\n## Other\n"
    )
