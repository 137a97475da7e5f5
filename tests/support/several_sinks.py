"""Two queries of one application: orders and returns, which read nothing of each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.sets import BackupSet, create_set
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.recovery.chains.set_plan import SetRestorePlan
from airflow_ckpt_provider.recovery.chains.set_restore import restore_set
from airflow_ckpt_provider.recovery.chains.stream import ChainStream
from airflow_ckpt_provider.recovery.chains.together import ChainOutcome
from airflow_ckpt_provider.recovery.chains.undo import undo_chain
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import repository, stream
from tests.support.checkpoints import Files, metadata, plant
from tests.support.stopped import STOPPED
from tests.support.watched_stores import Before, watched

IDS = {
    "orders": "0d000000-0000-4000-8000-000000000001",
    "returns": "0e000000-0000-4000-8000-000000000002",
}
#: The newest batch of each: they are at different ones.
NEWEST = {"orders": 4, "returns": 6}


@dataclass(frozen=True)
class Application:
    """The application with its checkpoints, and the repository of its backups.

    :param root: the place that has all of it.
    """

    root: Location

    @classmethod
    def planted(cls, root: Location) -> Application:
        made = cls(root)
        for name, newest in NEWEST.items():
            plant(root / name, files(name, newest))
        repository(root)
        return made

    @property
    def repository(self) -> Repository:
        return repository(self.root)

    def checkpoints(self) -> dict[str, Checkpoint]:
        return {name: Checkpoint.at(self.root / name) for name in IDS}

    def streams(self, *, below: str = "", before: Before | None = None) -> tuple[ChainStream, ...]:
        """The streams, at their checkpoints or somewhere else; with ``before``, requests are watched."""
        found = []
        for name in IDS:
            place = self.root / below / name if below else self.root / name
            found.append(ChainStream(name, watched(place, before)[0] if before else place, (Sink(),), (None,)))
        return tuple(found)

    def watched_repository(self, before: Before) -> Repository:
        return self.repository.at(watched(self.root / "backups", before)[0])

    def backed_up(self, **options: Any) -> BackupSet:
        return create_set(self.checkpoints(), self.repository, **options)

    def go_on(self) -> None:
        """Both queries commit two more batches."""
        for name, newest in NEWEST.items():
            plant(self.root / name, files(name, newest + 2))

    def restored(
        self, streams: Sequence[ChainStream] | None = None, held: Repository | None = None, **options: Any
    ) -> tuple[SetRestorePlan, ChainOutcome]:
        how: dict[str, Any] = {"rest": lambda _: STOPPED, "replace_there": True, **options}
        return restore_set(streams or self.streams(), held or self.repository, **how)

    def taken_back(self, streams: Sequence[ChainStream] | None = None, **options: Any) -> ChainOutcome:
        named = [replace(each, repository=self.repository.location) for each in streams or self.streams()]
        return undo_chain(named, rest=lambda _: STOPPED, **options)

    def content(self, below: str = "") -> Mapping[str, Files]:
        """What each checkpoint holds, the seal left out."""
        places = {name: self.root / below / name if below else self.root / name for name in IDS}
        return {name: {p: place.read(p) for p in inspect_target(place).visible} for name, place in places.items()}

    def sealed(self) -> list[str]:
        return [name for name in IDS if inspect_target(self.root / name).seal]


def files(name: str, newest: int) -> Files:
    return {**stream(newest), "metadata": metadata(IDS[name])}
