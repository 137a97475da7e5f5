"""Three streams that read each other's Delta tables: bronze → silver → gold, each batch of one a version of its table."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from deltalake import DeltaTable

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.recovery.chains.stream import ChainStream
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.backups import stream
from tests.support.checkpoints import Files, batch_metadata, compact, metadata, offsets_log, plant
from tests.support.delta_batches import append
from tests.support.watched_stores import Before, watched

IDS = {
    "bronze": "0b000000-0000-4000-8000-000000000001",
    "silver": "05000000-0000-4000-8000-000000000002",
    "gold": "09000000-0000-4000-8000-000000000003",
}
NEWEST = 6


def table_id(table: Path) -> str:
    return str(DeltaTable(str(table)).metadata().id)


def end_of(table: Path, version: int, *, index: int = -1, initial: bool = False) -> str:
    """The offset at which all of a version is read, as Delta writes it; with an index, part of the version after it."""
    return compact(
        {
            "sourceVersion": 1,
            "reservoirId": table_id(table),
            "reservoirVersion": version + 1,
            "index": index,
            "isStartingVersion": initial,
        }
    )


def reader(name: str, ends: Sequence[str | Sequence[str]], *, committed: int | None = None) -> Files:
    """A stateful stream whose batches end at these offsets."""
    newest = len(ends) - 1
    files = {path: data for path, data in stream(newest).items() if not path.startswith("sources/")}
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    for batch, offsets in enumerate(ends):
        lines = [offsets] if isinstance(offsets, str) else list(offsets)
        files[f"offsets/{batch}"] = offsets_log(*lines, metadata=batch_metadata(batch, provider=provider))
    last = newest if committed is None else committed
    gone = {f"commits/{batch}" for batch in range(last + 1, newest + 1)}
    return {**{path: data for path, data in files.items() if path not in gone}, "metadata": metadata(IDS[name])}


class Chained:
    """The three streams, with batches 0 to 6 of each; batch n of a reader ends at version n of what it reads.

    :param root: directory for all of it.
    :param silver: batches of silver -> the version of bronze's table at which each ends.
    """

    def __init__(self, root: Path, *, silver: Sequence[int] = range(NEWEST + 1)) -> None:
        self.root = root
        if (root / "checkpoints").exists():
            return
        plant(self.checkpoint("bronze"), {**stream(NEWEST), "metadata": metadata(IDS["bronze"])})
        self.write("bronze", range(NEWEST + 1))
        plant(self.checkpoint("silver"), reader("silver", [end_of(self.table("bronze"), v) for v in silver]))
        self.write("silver", range(len(silver)))
        plant(self.checkpoint("gold"), reader("gold", [end_of(self.table("silver"), v) for v in range(len(silver))]))
        self.write("gold", range(len(silver)))

    @classmethod
    def copied(cls, template: Path, root: Path) -> Chained:
        shutil.copytree(template, root)
        return cls(root)

    def table(self, name: str) -> Path:
        return self.root / "tables" / name

    def checkpoint(self, name: str) -> Location:
        return open_location(str(self.root / "checkpoints" / name))

    def write(self, name: str, batches: Sequence[int]) -> None:
        for batch in batches:
            append(self.table(name), batch, app_id=IDS[name])

    def streams(self, *names: str, before: Before | None = None) -> tuple[ChainStream, ...]:
        """The streams as a person names them; with ``before``, requests to checkpoints and repositories are watched."""
        found = []
        for name in names or tuple(IDS):
            place, held = self.checkpoint(name), default_repository(self.checkpoint(name))
            if before:
                place, held = watched(place, before)[0], watched(held, before)[0]
            found.append(ChainStream(name, place, (Sink(place=open_location(str(self.table(name)))),), repository=held))
        return tuple(found)

    def content(self) -> Mapping[str, object]:
        """What readers see of each table, what it remembers, and every visible file of each checkpoint."""
        found: dict[str, object] = {}
        for name, query_id in IDS.items():
            table = DeltaTable(str(self.table(name)))
            found[name] = sorted(table.to_pyarrow_table()["batch"].to_pylist())
            found[f"{name} remembers"] = table.transaction_version(query_id)
            place = self.checkpoint(name)
            found[f"{name} files"] = {path: place.read(path) for path in place.walk()}
        return found
