"""A prune: which objects no manifest lists, which of them are deleted, and which packs are written again.

How they are deleted while backups and restores continue: :mod:`~airflow_ckpt_provider.backup.deletion`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_ckpt_provider import markdown
from airflow_ckpt_provider.backup.claims import ABANDONED_AFTER
from airflow_ckpt_provider.backup.contents import Places, listed_by, objects_there, stream_names
from airflow_ckpt_provider.backup.damaged import read_damaged
from airflow_ckpt_provider.backup.deletion import delete_unlisted
from airflow_ckpt_provider.backup.immutability import locks_on
from airflow_ckpt_provider.backup.pack_use import PackUse, pack_use
from airflow_ckpt_provider.backup.packing import PACK_SIZE
from airflow_ckpt_provider.backup.prune_marks import read_marks
from airflow_ckpt_provider.backup.records import new_plan_id
from airflow_ckpt_provider.backup.repack import damaged_in_words, repack
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.fingerprint import fingerprint_of
from airflow_ckpt_provider.parallel import WORKERS
from airflow_ckpt_provider.storage.packs import WITHOUT_RECORD, pack_size
from airflow_ckpt_provider.units import format_size, format_time, parse_size
from airflow_ckpt_provider.verdict import Verdict


@dataclass(frozen=True, slots=True)
class MaxUnused:
    """How much may be there that no backup needs: deleting it costs requests.

    :param bytes: so much.
    :param percent: so much of all; ``None``: ``bytes`` counts.
    """

    bytes: float = 0
    percent: float | None = None

    @classmethod
    def parse(cls, text: str) -> MaxUnused:
        """Understand ``5%``, ``200M`` or ``unlimited``, as restic has it.

        :raises RefusedError: it is none of them.
        """
        plain = text.strip()
        if plain == "unlimited":
            return cls(float("inf"))
        if (match := re.fullmatch(r"(\d+(?:\.\d+)?)%", plain)) and float(match[1]) < 100:
            return cls(percent=float(match[1]))
        try:
            return cls(float(parse_size(plain)))
        except RefusedError:
            hint = "give a size such as 200M, a share such as 5%, or unlimited"
            raise RefusedError(f"max-unused is {text!r}", hint=hint) from None

    def of(self, total: int) -> float:
        """Bytes that may stay, of a total."""
        return total * self.percent / 100 if self.percent is not None else self.bytes


#: What may be there in packs that no backup needs, where nobody says how much, as restic has it.
_IN_PACKS = MaxUnused(percent=5)


@dataclass(frozen=True, slots=True)
class StreamPrune:
    """What a prune does to one stream.

    :param objects: path -> bytes of each object to delete.
    :param unused_objects: how many objects no backup lists.
    :param unused_bytes: their bytes.
    :param total_bytes: bytes of all objects.
    :param left_alone: why nothing of this stream goes, or ``None``.
    :param locked: path -> until when Object Lock protects it, of what would go otherwise.
    :param locks_unknown: why it is not known what is locked, or ``None``.
    :param repacked: pack -> bytes that backups need of it, of each pack that is mostly garbage: these bytes are written
        again, and the pack is deleted.
    :param merged: the same of each small pack that is merged with others.
    """

    name: str
    objects: Mapping[str, int]
    unused_objects: int
    unused_bytes: int
    total_bytes: int
    left_alone: str | None = None
    locked: Mapping[str, datetime] = field(default_factory=dict)
    locks_unknown: str | None = None
    repacked: Mapping[str, int] = field(default_factory=dict)
    merged: Mapping[str, int] = field(default_factory=dict)

    @property
    def packed_anew(self) -> Mapping[str, int]:
        """The packs that are deleted after what backups need of them was written again, with these bytes."""
        return {**self.repacked, **self.merged}

    @property
    def repack_requests(self) -> int:
        """About how many requests repacking takes."""
        return _requests(self.repacked)

    @property
    def merge_requests(self) -> int:
        """About how many requests merging takes."""
        return _requests(self.merged)

    @property
    def lock_remarks(self) -> tuple[str, ...]:
        """What is locked, in words, or that it is not known."""
        found = [self.locks_unknown] if self.locks_unknown else []
        if self.locked:
            last = max(self.locked.values())
            found.append(f"{len(self.locked)} objects are locked, the last until {format_time(last)}: they stay")
        return tuple(found)

    @property
    def bytes(self) -> int:
        """Bytes that go."""
        return sum(self.objects.values())

    def to_json(self) -> dict[str, Any]:
        """The stream as plain JSON."""
        return {
            "name": self.name,
            "objects": len(self.objects),
            "bytes": self.bytes,
            "unused_objects": self.unused_objects,
            "unused_bytes": self.unused_bytes,
            "total_bytes": self.total_bytes,
            "left_alone": self.left_alone,
            "locked_objects": len(self.locked),
            "locked_until": max(self.locked.values()).isoformat() if self.locked else None,
            **self._repack_json(),
        }

    def _repack_json(self) -> dict[str, Any]:
        merged = {
            "merged_packs": len(self.merged),
            "merged_bytes": sum(self.merged.values()),
            "merged_into": -(-sum(self.merged.values()) // PACK_SIZE),
            "merge_requests": self.merge_requests,
        }
        repacked = {
            "repacked_packs": len(self.repacked),
            "repacked_bytes": sum(self.repacked.values()),
            "repack_frees": sum(pack_size(pack) or 0 for pack in self.repacked) - sum(self.repacked.values()),
            "repack_requests": self.repack_requests,
        }
        return (repacked if self.repacked else {}) | (merged if self.merged else {})


def _requests(packs: Mapping[str, int]) -> int:
    """About how many requests it takes to write packs again: reads of parts, packs written and read back, packs deleted, the
    record.

    :param packs: pack -> bytes that backups need of it.
    """
    written = -(-sum(packs.values()) // PACK_SIZE)
    return 2 * len(packs) + 2 * written + 8 if packs else 0


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """What a prune would delete.

    :param repository: URI of the repository.
    :param streams: what would go, by stream.
    """

    repository: str
    streams: tuple[StreamPrune, ...]

    @property
    def objects(self) -> int:
        """How many objects go."""
        return sum(len(s.objects) for s in self.streams)

    @property
    def bytes(self) -> int:
        """Bytes that go."""
        return sum(s.bytes for s in self.streams)

    @property
    def verdict(self) -> Verdict:
        """Always ``SAFE``: no backup lists the objects to delete."""
        return Verdict.SAFE

    @property
    def findings(self) -> tuple[str, ...]:
        """Streams that are left alone, and why."""
        return tuple(f"{s.name}: {s.left_alone}" for s in self.streams if s.left_alone)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What Object Lock protects, or that it is not known."""
        return tuple(f"{s.name}: {remark}" for s in self.streams for remark in s.lock_remarks)

    @property
    def fingerprint(self) -> str:
        """Changes with the objects to delete."""
        going = sorted(path for s in self.streams for path in (*s.objects, *s.packed_anew))
        return fingerprint_of("\n".join([self.repository, *going]))

    @property
    def steps(self) -> tuple[str, ...]:
        """What ``apply`` does, in order, for each stream."""
        packs, small = [s for s in self.streams if s.repacked], [s for s in self.streams if s.merged]
        if not self.objects and not packs and not small:
            return ()
        size, requests = sum(sum(s.repacked.values()) for s in packs), sum(s.repack_requests for s in packs)
        again = (
            f"repack {format_size(size)} of {sum(len(s.repacked) for s in packs)} packs that are mostly garbage, with about "
            f"{requests} requests; these packs are deleted with the objects",
        )
        size, requests = sum(sum(s.merged.values()) for s in small), sum(s.merge_requests for s in small)
        into = sum(-(-sum(s.merged.values()) // PACK_SIZE) for s in small)
        merged = (
            f"merge {sum(len(s.merged) for s in small)} small packs, {format_size(size)}, into about {into}, with about "
            f"{requests} requests; these packs are deleted with the objects",
        )
        return (
            *(again if packs else ()),
            *(merged if small else ()),
            "write a mark with the objects to delete: backups that begin now do not use them",
            "leave a stream for the next prune where a backup or restore is at work that began before",
            "read all manifests again",
            f"delete {self.objects} objects, {format_size(self.bytes)}, but for what is listed by then",
            "take the mark away",
        )

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON."""
        return {
            "kind": "prune",
            "repository": self.repository,
            "verdict": self.verdict.value,
            "objects": self.objects,
            "bytes": self.bytes,
            "streams": [s.to_json() for s in self.streams],
            "findings": list(self.findings),
            "remarks": list(self.remarks),
            "steps": list(self.steps),
            "fingerprint": self.fingerprint,
        }

    def to_markdown(self) -> str:
        """The plan for people."""

        def row(s: StreamPrune) -> tuple[str, ...]:
            why = "; ".join(filter(None, [s.left_alone, *s.lock_remarks]))
            unused = f"{format_size(s.unused_bytes)} of {format_size(s.total_bytes)}"
            return s.name, f"{len(s.objects):,}", format_size(s.bytes), unused, why

        table = markdown.table(("stream", "objects", "size", "unused", "left alone"), map(row, self.streams))
        return (
            f"### Prune\n\n{markdown.code(self.repository)}: objects to delete: {self.objects:,}, {format_size(self.bytes)}\n\n"
            f"{table}\n\n{markdown.steps(self.steps)}".rstrip()
            + "\n"
        )


@dataclass(frozen=True, slots=True)
class PruneOutcome:
    """A prune that was carried out.

    :param objects: objects deleted.
    :param waits_for: stream -> who is at work there; the next prune continues with these.
    """

    plan_id: str
    objects: int
    bytes: int
    waits_for: Mapping[str, tuple[str, ...]]

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain JSON."""
        return {
            "plan_id": self.plan_id,
            "objects": self.objects,
            "bytes": self.bytes,
            "waits_for": {name: list(who) for name, who in self.waits_for.items()},
        }


def plan_prune(
    repository: Repository,
    *,
    name: str | None = None,
    max_unused: MaxUnused | None = None,
    without: Mapping[str, Collection[str]] | None = None,
) -> PrunePlan:
    """Plan a prune; reads only.

    :param name: only this stream.
    :param max_unused: what may stay though nobody needs it; by default nothing.
    :param without: stream -> ids of backups that an expire would remove before.
    :raises NoSuchBackupError: nothing is there of that name.
    """
    names = stream_names(repository, name)
    gone = without or {}
    streams = tuple(_of_stream(repository, each, max_unused, gone.get(each, ())) for each in names)
    return PrunePlan(repository.location.uri, streams)


def _of_stream(repository: Repository, name: str, limit: MaxUnused | None, without: Collection[str]) -> StreamPrune:
    # In this order: what a backup adds between the two listings is listed and not looked for, and not the other way round.
    there = objects_there(repository, name)
    listed = listed_by(repository, name, without=without)
    damaged = read_damaged(repository.location, name)
    places = Places.read(repository, name, there, damaged)
    needed = places.files_needed(listed.objects)
    unused = {path: file.size for path, file in there.items() if path not in needed}
    found = StreamPrune(name, unused, len(unused), sum(unused.values()), sum(file.size for file in there.values()))
    if listed.unreadable:
        return replace(found, objects={}, left_alone=f"what its backups need is not known: {listed.unreadable[0]}")
    if places.moved.unreadable:
        return replace(found, objects={}, left_alone=f"{places.moved.unreadable[0]}. {WITHOUT_RECORD}")
    if there and not listed.backup_ids:
        why = "it has objects and no backup: its first one runs or was stopped, or this repository was copied in part"
        return replace(found, objects={}, left_alone=why)
    chosen = _chosen(repository, name, unused, (limit or MaxUnused()).of(found.total_bytes), places.damaged)
    use = pack_use(listed.objects, places, damaged=places.damaged) if repository.packs else PackUse()
    may_stay = (limit or _IN_PACKS).of(found.total_bytes)
    packs = _to_repack(use, may_stay - (found.unused_bytes - sum(chosen.values())))
    small = use.to_merge(without=packs)
    locked, unknown = locks_on(repository.location, [*chosen, *packs, *small], now=datetime.now(UTC))
    going = {path: size for path, size in chosen.items() if path not in locked}
    # An immutable backup would depend on a new pack that is not locked.
    repacked = {} if unknown else {pack: use.live[pack] for pack in packs if pack not in locked}
    merged = {} if unknown or not small else {p: use.live[p] for p in use.to_merge(without={*packs, *locked})}
    return replace(found, objects=going, locked=locked, locks_unknown=unknown, repacked=repacked, merged=merged)


def _to_repack(use: PackUse, may_stay: float) -> list[str]:
    """The packs to repack, until no more garbage is left in packs than may stay."""
    found = use.mostly_garbage()
    left = sum(map(use.unused, found))
    going = sorted(use.damaged)
    for pack in found:
        if left <= may_stay:
            break
        going.append(pack)
        left -= use.unused(pack)
    return list(dict.fromkeys(going))


def _chosen(
    repository: Repository, name: str, unused: Mapping[str, int], may_stay: float, damaged: Collection[str]
) -> dict[str, int]:
    """What an unfinished prune has named, what is damaged, and then the biggest, until no more is left than may stay."""
    named = read_marks(repository.location, name, for_prune=True).condemned | set(damaged)
    left = sum(unused.values())
    going: dict[str, int] = {}
    for path in sorted(unused, key=lambda p: (p not in named, -unused[p], p)):
        if left <= may_stay and path not in named:
            break
        going[path] = unused[path]
        left -= unused[path]
    return going


def apply_prune(
    repository: Repository,
    plan: PrunePlan,
    *,
    made_by: str = "",
    abandoned_after: timedelta = ABANDONED_AFTER,
    workers: int = WORKERS,
) -> PruneOutcome:
    """Delete what a plan names, as far as nobody needs it by now.

    :param plan: from :func:`plan_prune`.
    :param made_by: the run or user that does it.
    :param abandoned_after: a backup or restore that began longer ago and has not ended is given up: it cannot end any
        more. By the store's own clock.
    :param workers: requests under way at once.
    :raises StorageError: reading or writing failed; the same command again continues.
    """
    repository.refuse_unsigned()
    plan_id = new_plan_id()
    objects = size = 0
    waits_for: dict[str, tuple[str, ...]] = {}
    for stream in plan.streams:
        if stream.left_alone:
            continue
        if stream.packed_anew:
            packs, written, damaged = repack(repository, stream.name, stream.packed_anew, made_by=made_by)
            if damaged:
                waits_for[stream.name] = damaged_in_words(damaged)
            stream = replace(stream, objects={**stream.objects, **{pack: pack_size(pack) or 0 for pack in packs}})
            size -= written
        deleted, waiting = delete_unlisted(repository, stream.name, stream.objects, abandoned_after, made_by, workers)
        objects += len(deleted)
        size += sum(stream.objects.get(path, 0) for path in deleted)
        if waiting:
            waits_for[stream.name] = (*waits_for.get(stream.name, ()), *waiting)
    outcome = PruneOutcome(plan_id, objects, size, waits_for)
    if objects:
        repository.record(plan_id, {"kind": "prune", "made_by": made_by, **outcome.to_json()})
    return outcome
