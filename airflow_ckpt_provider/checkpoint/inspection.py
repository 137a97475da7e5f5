"""All that can be said of a checkpoint from one listing: what is in it, and what Spark will do next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.checkpoint.offsets import OffsetEntry
from airflow_ckpt_provider.checkpoint.operators import STATE, operator_metadata, partitions, stores
from airflow_ckpt_provider.checkpoint.progress import Progress
from airflow_ckpt_provider.checkpoint.resume import ResumePoint
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.verdict import Verdict

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.usage import DirectoryUsage, PartitionUsage


@dataclass(frozen=True, slots=True)
class Operator:
    """A stateful operator.

    :param operator_id: its number, counted from the sink.
    :param name: its name, or ``None`` where no metadata shows (before Spark 4.0).
    :param stores: names of its stores, in each partition.
    :param partitions: number of partitions.
    :param provider: class of the state store provider.
    """

    operator_id: int
    name: str | None
    stores: tuple[str, ...]
    partitions: int
    provider: str | None

    def to_json(self) -> dict[str, Any]:
        """The operator as plain JSON."""
        return {
            "id": self.operator_id,
            "name": self.name,
            "stores": list(self.stores),
            "partitions": self.partitions,
            "provider": self.provider,
        }


@dataclass(frozen=True, slots=True)
class Inspection:
    """A checkpoint at one moment.

    :param files: number of files that Spark can see.
    :param bytes: their total size.
    :param findings: what is wrong with it, in words.
    :param directories: where the files and bytes are.
    :param partitions: the same for each store of each partition of the state, with its keys where the files show.
    """

    progress: Progress
    resume: ResumePoint
    operators: tuple[Operator, ...]
    files: int
    bytes: int
    findings: tuple[str, ...]
    directories: tuple[DirectoryUsage, ...] = ()
    partitions: tuple[PartitionUsage, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """That of the logs; ``UNKNOWN`` where they are fine and a file is missing that the next batch needs."""
        is_safe = self.resume.verdict is Verdict.SAFE
        return Verdict.UNKNOWN if is_safe and self.findings else self.resume.verdict

    def to_json(self) -> dict[str, Any]:
        """The documented keys of ``airflow-ckpt inspect --json``."""
        return {
            **self.progress.to_json(),
            "verdict": self.verdict.value,
            "resume": self.resume.to_json(),
            "state": {
                "operators": [operator.to_json() for operator in self.operators],
                "partitions": [partition.to_json() for partition in self.partitions],
            },
            "files": self.files,
            "bytes": self.bytes,
            "directories": [directory.to_json() for directory in self.directories],
            "findings": list(self.findings),
        }


def operators_of(tree: Tree, entry: OffsetEntry | None) -> tuple[Operator, ...]:
    """Describe the stateful operators as of a batch."""
    found = []
    for number in tree.numbered_directories(STATE):
        metadata = operator_metadata(tree, number, batch_id=entry.batch_id if entry else 0)
        logged = entry.state_partitions if entry else None
        in_partitions = partitions(tree, number, logged=logged, batch_id=entry.batch_id if entry else None)
        found.append(
            Operator(
                operator_id=number,
                name=metadata.name if metadata else None,
                stores=stores(tree, number, in_partitions),
                partitions=len(in_partitions),
                provider=entry.state_provider if entry else None,
            )
        )
    return tuple(found)
