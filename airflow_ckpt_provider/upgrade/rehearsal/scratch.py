"""The scratch copy that a rehearsal runs on, and the batches that are planned in it exactly as another run had them.

The copy is another query, with an id of its own. Spark runs each id once in an application (and on Databricks a whole cluster is
one): under production's id the copy would stop production (``spark.sql.streaming.stopActiveRunOnRestart``, true by default;
seen on Spark 4.0.0).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, parse_offsets
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE
from airflow_ckpt_provider.checkpoint.sources import SOURCES, log_ends
from airflow_ckpt_provider.checkpoint.usage import partition_usage
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.recovery.reset.new_numbers import new_metadata
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.location import Location


@dataclass(frozen=True, slots=True)
class Scratch:
    """A restored copy.

    :param location: where it is.
    :param batch_id: the batch it was restored at; the next one to run is one more.
    :param state_bytes: bytes of the state that the next batch reads.
    """

    location: Location
    batch_id: int
    state_bytes: int


def check_apart(scratch: Location, *production: Location) -> None:
    """See that a scratch place and what must not be written do not lie one inside the other.

    :raises RefusedError: they do.
    """
    for place in production:
        if place.contains(scratch) or scratch.contains(place):
            raise RefusedError(
                f"the scratch place {scratch} and {place} lie one inside the other",
                hint="give a scratch place of its own: everything below it is deleted afterwards",
            )


def restore_scratch(
    repository: Repository, manifest: Manifest, target: Location, *, made_by: str, reason: str, batch: int | None = None
) -> Scratch:
    """Restore a backup to an empty scratch place, as a query of its own.

    :param target: the empty place.
    :param made_by: the run or user, for the audit record.
    :param reason: why, for the audit record.
    :param batch: the batch; by default the newest of the backup.
    :raises RefusedError: the place is not empty, or the backup is damaged.
    """
    plan = plan_restore(repository, manifest, target, batch=batch)
    apply_restore(plan, made_by=made_by, reason=reason)
    _put(target, METADATA_FILE, new_metadata(str(uuid.uuid4())).encode())
    return Scratch(target, plan.batch_id, state_bytes(target, plan.batch_id))


def state_bytes(location: Location, batch_id: int) -> int:
    """Bytes of state that a start after a committed batch needs."""
    checkpoint = Checkpoint.at(location)
    tree = checkpoint.tree()
    return sum(use.needed_bytes or 0 for use in partition_usage(tree, checkpoint.closure(batch_id)))


def plannable(reference: Location, *, after: int, at_most: int) -> list[int]:
    """Batches that another run has planned and that can be planned again just so.

    :param reference: the checkpoint of that run.
    :param after: the batch after which they begin.
    :param at_most: how many.
    """
    names = (file.path.rpartition("/")[2] for file in reference.list(OFFSETS).files)
    logged = {b for b in map(batch_id_of, names) if b is not None}
    committed = Checkpoint.at(reference).progress().committed
    newest = committed[-1] if committed else -1
    found = []
    for batch in range(after + 1, after + 1 + at_most):
        if batch not in logged or batch > newest:
            break
        found.append(batch)
    return found


def plan_as(target: Location, reference: Location, batch_id: int) -> None:
    """Plan a batch in a scratch copy exactly as another run had it: same offsets, time, watermark and settings.

    :param target: the scratch copy; a plan of its own for this batch is replaced.
    :param reference: the checkpoint of the other run; only read.
    :param batch_id: the batch.
    :raises RefusedError: the other run has cleaned the entry up.
    :raises UnreadableLogError: the other run's entry is damaged.
    """
    try:
        data = reference.read(f"{OFFSETS}/{batch_id}")
    except FileNotFoundError:
        raise RefusedError(
            f"{reference}/{OFFSETS}/{batch_id} was cleaned up while its batch was to be run again",
            hint="take a newer backup, or rehearse without --checkpoint",
        ) from None
    entry = parse_offsets(data, batch_id=batch_id)
    tree = Checkpoint.at(reference).tree()
    for source, end in log_ends(tree, entry).items():
        # A file source reads what its own log says; compacted entries hold the ones before them.
        for name, file in tree.files(f"{SOURCES}/{source}").items():
            number = batch_id_of(name.removesuffix(".compact"))
            if number is not None and number <= end:
                _put(target, f"{SOURCES}/{source}/{name}", tree.read(file))
        for file in target.list(f"{SOURCES}/{source}").files:
            number = batch_id_of(file.path.rpartition("/")[2].removesuffix(".compact"))
            if number is not None and number > end:
                _drop(target, file.path)
    _put(target, f"{OFFSETS}/{batch_id}", data)


def _put(target: Location, path: str, data: bytes) -> None:
    _drop(target, path)
    target.replace(path, data)


def _drop(target: Location, path: str) -> None:
    directory, slash, name = path.rpartition("/")
    # Hadoop's own checksum of what was there: it would not fit any more, and where there is one the file cannot be written again.
    target.delete(f"{directory}{slash}.{name}.crc")
    target.delete(path)


def remove_all(location: Location) -> None:
    """Delete everything at a scratch place."""
    for path in location.walk():
        location.delete(path)
    location.remove_empty_directories()
