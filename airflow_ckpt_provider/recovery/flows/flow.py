"""Flows of Spark Declarative Pipelines on open Spark (4.1+): where their checkpoints are, and which one is live.

A pipeline keeps the checkpoint of each flow below its storage root, in ``_checkpoints/<catalog>/<database>/<table or
sink>/<flow>/<n>``. The directory with the highest whole number is the live one, and a normal checkpoint with a query id
of its own (``SystemMetadata.scala``; run with pyspark 4.2.1). A full refresh leaves ``<n>`` and makes an empty ``<n+1>``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.flow_path import CHECKPOINTS, FLOW_DEPTH, flow_path
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.progress import Progress
from airflow_ckpt_provider.errors import NotACheckpointError, RefusedError, UnreadableLogError
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.storage.location import Location


@dataclass(frozen=True, slots=True)
class Flow:
    """One flow of a pipeline.

    :param path: ``<catalog>/<database>/<table or sink>/<flow>``.
    :param place: the directory that holds its versions.
    :param versions: numbers of its checkpoints, ascending; the last is the live one.
    :param progress: how far the live one is; ``None`` where it was not started yet, or cannot be read.
    :param unread: why it cannot be read, where it cannot.
    """

    path: str
    place: Location
    versions: tuple[int, ...]
    progress: Progress | None
    unread: str | None = None

    @property
    def name(self) -> str:
        """The flow's own name."""
        return self.path.rpartition("/")[2]

    @property
    def target(self) -> str:
        """The table or sink that it writes to, with database and catalog."""
        return ".".join(self.path.split("/")[:-1])

    @property
    def live(self) -> int | None:
        """The version that the next run uses; ``None`` if there is none yet."""
        return self.versions[-1] if self.versions else None

    @property
    def storage(self) -> Location:
        """The pipeline's ``storage``, which holds the checkpoints of all its flows."""
        return Location(self.place.store, self.place.root.removesuffix(f"/{CHECKPOINTS}/{self.path}"))

    def version(self, number: int) -> Location:
        """The checkpoint of a version."""
        return self.place / str(number)

    def to_json(self) -> dict[str, Any]:
        """The flow as plain JSON."""
        return {
            "flow": self.name,
            "target": self.target,
            "path": self.path,
            "versions": list(self.versions),
            "live": self.live,
            "checkpoint": self.version(self.live).uri if self.live is not None else None,
            "progress": self.progress.to_json() if self.progress else None,
            "sealed": self.progress.seal.sentence if self.progress and self.progress.seal else None,
            "unread": self.unread,
        }


def flows_of(storage: Location) -> list[Flow]:
    """The flows of a pipeline, by path.

    :param storage: the pipeline's ``storage``.
    :raises RefusedError: no pipeline keeps its checkpoints there.
    """
    root = storage / CHECKPOINTS
    paths = sorted(_directories(root, "", FLOW_DEPTH))
    if not paths:
        raise RefusedError(
            f"{storage} holds no flows of Spark Declarative Pipelines: no {CHECKPOINTS}/<catalog>/<database>/<table>/<flow>",
            hint="give the `storage` of the pipeline's spark-pipeline.yml; before its first run there is nothing either",
        )
    return in_parallel(lambda path: read_flow(root, path), paths)


def read_flow(root: Location, path: str) -> Flow:
    """Read one flow."""
    place = root / path
    versions = tuple(sorted(int(name) for name in place.list().directories if name.isdecimal()))
    progress, unread = None, None
    if versions:
        try:
            progress = Checkpoint.at(place / str(versions[-1])).progress()
        except NotACheckpointError:
            pass  # not started yet
        except UnreadableLogError as e:
            unread = e.message
    return Flow(path, place, versions, progress, unread)


def flow_words(option: str, version: str) -> list[str]:
    """The storage of a pipeline, and one of its flows, as a command names them.

    :param option: what is done to the flow: ``--reset`` or ``--restore-into-next``.
    :param version: URI of a version of the flow.
    :raises RefusedError: it is none.
    """
    path = flow_path(version)
    if path is None:
        raise RefusedError(
            f"{version} is no version of a flow", hint="the plan was damaged or forged: see who wrote it"
        )
    return [path.storage, option, path.flow.replace("/", ".")]


def flow_named(flows: list[Flow], name: str) -> Flow:
    """Find a flow by its name, or as much of ``catalog.database.table.flow`` as it needs to be the only one.

    :raises RefusedError: there is none such, or more than one.
    """
    wanted = name.replace("/", ".").split(".")
    found = [flow for flow in flows if flow.path.split("/")[-len(wanted) :] == wanted]
    if len(found) == 1:
        return found[0]
    names = ", ".join(flow.path.replace("/", ".") for flow in found or flows)
    if found:
        raise RefusedError(f"{name!r} is the name of {len(found)} flows", hint=f"say which: {names}")
    raise RefusedError(f"there is no flow {name!r}", hint=f"the flows: {names}")


def _directories(root: Location, path: str, depth: int) -> Iterator[str]:
    if not depth:
        yield path
        return
    for name in root.list(path).directories:
        yield from _directories(root, f"{path}/{name}" if path else name, depth - 1)
