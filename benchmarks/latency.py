"""How long one poll takes on a distant store: ``make bench-latency``, or ``python -m benchmarks.latency``.

A gate in front of a real S3 server holds back every request for 20, 50 or 100 ms. No program can be faster than its longest chain
of requests of which each needs the answer to the one before, times the latency: that chain is counted too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.conditions import Condition, Wait
from airflow_ckpt_provider.checkpoint.waiting import look
from airflow_ckpt_provider.checkpoint.waiting_memory import Memory
from airflow_ckpt_provider.guards.query import from_checkpoint, guard_query
from airflow_ckpt_provider.guards.registry import GuardSettings
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from benchmarks.page import write_part
from tests.support.checkpoints import commit_log, compact, metadata, offsets_log, rocksdb_aggregation
from tests.support.delta_tables import fresh, id_of, new_table, offset
from tests.support.s3_gate import Gate, by_kind, longest_chain
from tests.support.s3_server import S3Server, running_s3_server

LATENCIES = (0.02, 0.05, 0.1)
#: Versions of the Delta table, entries of the file source's log, partitions of the state.
VERSIONS = ENTRIES = 12
PARTITIONS = 20


@dataclass(frozen=True)
class Place:
    """A bucket with two streams: one with state, one that reads a Delta table and files.

    :param server: the server.
    :param bucket: the bucket.
    """

    server: S3Server
    bucket: str

    @classmethod
    def filled(cls, server: S3Server, scratch: Path) -> Place:
        """Make the streams, the table, the files, and a backup.

        :param scratch: an empty directory.
        """
        place = cls(server, server.make_bucket("latency"))
        table = new_table(scratch / "table", VERSIONS)
        files = {f"state/{path}": data for path, data in rocksdb_aggregation(6, partitions=PARTITIONS).items()}
        files |= {f"table/{file.relative_to(table)}": file.read_bytes() for file in table.rglob("*") if file.is_file()}
        files |= {f"in/part-{number:05}.json": b"{}\n" for number in range(ENTRIES)}
        root = open_location(f"s3://{place.bucket}", storage_options=server.options())
        with ThreadPoolExecutor(32) as pool:
            list(pool.map(lambda item: root.replace(*item), files.items()))
        modified = {path.rpartition("/")[2]: file.modified for path, file in root.walk("in").items()}
        sources = {f"sources/{path}": data for path, data in place._reading_stream(id_of(table), modified).items()}
        with ThreadPoolExecutor(32) as pool:
            list(pool.map(lambda item: root.replace(*item), sources.items()))
        repository = Repository.open_or_create(root / "repository")
        create_backup(Checkpoint.at(root / "state"), repository, name="orders")
        return place

    def _reading_stream(self, table_id: str, modified: dict[str, datetime | None]) -> dict[str, bytes]:
        """A stream that has read two versions of the table and half of the files; the last batch is not committed."""
        content = {"metadata": metadata()}
        half = ENTRIES // 2
        for batch, (version, read) in enumerate(((1, half - 2), (2, half - 1), (VERSIONS - 1, ENTRIES - 1))):
            ends = offset(table_id, version), compact({"logOffset": read})
            content[f"offsets/{batch}"] = offsets_log(*ends, metadata=fresh(batch))
            if batch < 2:
                content[f"commits/{batch}"] = commit_log()
        for number in range(ENTRIES):
            name = f"part-{number:05}.json"
            at = modified[name]
            stamp = int(at.timestamp() * 1000) if at else 0
            entry = {"path": f"s3a://{self.bucket}/in/{name}", "timestamp": stamp, "batchId": number}
            content[f"sources/1/{number}"] = b"v1\n" + compact(entry).encode()
        return content

    def open(self, gate: Gate, path: str) -> Location:
        """Open a place through a gate, with nothing known and no connection made."""
        return open_location(f"s3://{self.bucket}/{path}", storage_options=gate.options())


def poke(place: Place, gate: Gate) -> None:
    """One poll of ``CommitGapSensor``."""
    answer, _ = look(place.open(gate, "state"), Wait(Condition("max_gap", 0), stuck_after=timedelta(hours=1)), Memory())
    assert answer.progress["latest_committed"] == 6


def inspect(place: Place, gate: Gate) -> None:
    """``airflow-ckpt inspect``."""
    found = Checkpoint.at(place.open(gate, "state")).inspect()
    assert found.resume.batch_id == 7
    assert len(found.partitions) == PARTITIONS
    assert not found.findings


def guard(place: Place, gate: Gate) -> None:
    """``airflow-ckpt guard``, with a Delta table and files."""
    settings = GuardSettings(
        options={
            "delta": {"tables": {"0": place.open(gate, "table")}},
            "file": {"open": lambda uri: open_location(uri, storage_options=gate.options())},
        }
    )
    report = guard_query(from_checkpoint(place.open(gate, "sources")), settings)
    assert report.verdict is Verdict.SAFE, report.to_json()
    assert [source.kind for source in report.sources] == ["delta", "file"]


def nothing_new(place: Place, gate: Gate) -> None:
    """A backup of what was backed up before."""
    repository = Repository.open(place.open(gate, "repository"))
    done = create_backup(Checkpoint.at(place.open(gate, "state")), repository, name="orders")
    assert done.copied_files == 0


def nothing_committed(place: Place, gate: Gate) -> None:
    """A backup that is not taken: nothing was committed since the last one."""
    repository = Repository.open(place.open(gate, "repository"))
    checkpoint = Checkpoint.at(place.open(gate, "state"))
    assert create_backup(checkpoint, repository, name="orders", skip_if_unchanged=True).unchanged


def plan_of_restore(place: Place, gate: Gate) -> None:
    """The plan of a restore to an empty place."""
    repository = Repository.open(place.open(gate, "repository"))
    plan = plan_restore(repository, repository.manifest("latest", name="orders"), place.open(gate, "elsewhere"))
    assert plan.entries


@dataclass(frozen=True)
class Operation:
    """Something that people wait for.

    :param requests: how many it may make at most.
    :param chain: the longest chain of dependent requests that it may have.
    """

    name: str
    run: Callable[[Place, Gate], None]
    requests: int
    chain: int


#: The bounds are those of these streams; tests/component/test_latency.py holds them.
OPERATIONS = (
    Operation("sensor poke", poke, requests=3, chain=3),
    Operation("inspect", inspect, requests=14 + PARTITIONS, chain=6),
    Operation("guard (Delta and files)", guard, requests=12 + VERSIONS + ENTRIES, chain=8),
    Operation("backup, nothing new", nothing_new, requests=30 + PARTITIONS, chain=17),
    Operation("backup, nothing committed", nothing_committed, requests=10, chain=4),
    Operation("plan of a restore", plan_of_restore, requests=8, chain=5),
)


@dataclass(frozen=True)
class Measured:
    """One run.

    :param chain: the longest chain of requests that did not overlap.
    """

    requests: int
    chain: int
    seconds: float
    kinds: str


def measure(operation: Operation, place: Place, latency: float) -> Measured:
    """Run an operation once through a gate of its own."""
    gate = Gate(place.server, delay=latency)
    try:
        with gate.watched() as requests:
            began = time.monotonic()
            operation.run(place, gate)
            seconds = time.monotonic() - began
    finally:
        gate.close()
    kinds = ", ".join(f"{count} {kind}" for kind, count in by_kind(requests).most_common())
    return Measured(len(requests), longest_chain(requests), seconds, kinds)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-report", action="store_true", help="leave docs/benchmarks.md alone")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as directory:
        for name in ("server", "scratch"):
            Path(directory, name).mkdir()
        with running_s3_server(Path(directory, "server")) as server:
            place = Place.filled(server, Path(directory, "scratch"))
            for operation in OPERATIONS:
                measure(operation, place, 0.0)  # whatever Python loads on first use
            rows = [
                (operation, latency, [measure(operation, place, latency) for _ in range(arguments.rounds)])
                for operation in OPERATIONS
                for latency in LATENCIES
            ]
    text = report(rows, rounds=arguments.rounds, load=load)
    print(text)
    if not arguments.no_report:
        write_part("benchmarks.latency", text)


def report(rows: list[tuple[Operation, float, list[Measured]]], *, rounds: int, load: float) -> str:
    """The table."""
    lines = [
        "## Polls of a distant store",
        "",
        "    make bench-latency",
        "",
        f"A gate in front of the S3 server holds back every request for so long. Medians of {rounds} runs. The *chain* is the"
        " longest row of requests of which each began after the one before had ended; chain x latency is what no program with"
        " these dependencies can beat, and the last but one column is how close it comes. The last one is what asking one after"
        f" the other would take. A stream of {PARTITIONS} state partitions with a RocksDB snapshot each; a Delta table of"
        f" {VERSIONS} versions and a file source of {ENTRIES} files.",
        "",
        "| what | latency | requests | chain | time | time / (chain x latency) | time / (requests x latency) |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for operation, latency, runs in rows:
        seconds = statistics.median(run.seconds for run in runs)
        chain = statistics.median_low(run.chain for run in runs)
        requests = statistics.median_low(run.requests for run in runs)
        lines.append(
            f"| {operation.name} | {latency * 1000:.0f} ms | {requests} | {chain} | {seconds:.2f} s"
            f" | {seconds / (chain * latency):.2f} | {seconds / (requests * latency):.2f} |"
        )
    lines += [
        "",
        "Requests by kind: "
        + "; ".join(f"{operation.name} {runs[0].kinds}" for operation, latency, runs in rows if latency == LATENCIES[0])
        + ".",
        "",
        f"Load average before the first run {load:.1f} on {os.cpu_count()} cores. Measured {datetime.now(UTC):%Y-%m-%d}.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
