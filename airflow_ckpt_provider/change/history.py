"""The changes of a checkpoint, as the audit records and the plans in a repository show them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.plan import chain_command, undo_command, undone_by
from airflow_ckpt_provider.change.set_aside import SetAside
from airflow_ckpt_provider.change.target import Target, inspect_target
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.storage.location import Location, plain_uri
from airflow_ckpt_provider.storage.store import StoredFile
from airflow_ckpt_provider.units import shown_time, zoned_time

#: Kinds of plans that can be undone.
UNDOABLE = ("rewind", "reset", "repair", "restore", "flow-reset")
UNDO = "undo"


def not_undone(records: Iterable[dict[str, Any]], *, kinds: Container[str]) -> Iterator[dict[str, Any]]:
    """Records of changes that were not undone, newest first.

    :param records: audit records of one checkpoint, newest first.
    :param kinds: kinds of the changes.
    """
    undone = set()
    for record in records:
        if record.get("kind") == UNDO:
            undone.add(undone_by(record["plan_id"]))
        elif record.get("kind") in kinds and record["plan_id"] not in undone:
            yield record


def newest_change(place: Location, repository: Repository) -> str | None:
    """The newest change of a checkpoint: one that was ended, or one that was begun and whose seal somebody has lifted.

    A plan without an audit record counts where it has set files aside: before that nothing was changed.
    """
    # By the time in the record: names of records tell seconds apart, no less.
    records = sorted(records_of(place, repository), key=lambda record: str(record["at"]))
    found = {undone_by(record["plan_id"]): str(record["at"]) for record in records}
    begun: dict[str, str] = {}
    for each in _without_record(place, repository, found):
        (found if each.has_set_aside else begun)[each.plan_id] = each.kept.isoformat() if each.kept else ""
    newest = found or begun
    return max(newest, key=lambda plan_id: newest[plan_id]) if newest else None


def check_is_latest(
    place: Location, repository: Repository, document: Mapping[str, Any], record: Mapping[str, Any] | None
) -> None:
    """See that no later change of a checkpoint is in force: it may have removed what a query had written in between.

    The files do not show that: two rewinds to one batch leave the same ones, and two resets leave an empty place.

    :param place: the checkpoint.
    :param repository: the one that the change was carried out with.
    :param document: the plan of the change that is to be undone.
    :param record: its audit record; ``None`` where it was not ended.
    :raises RefusedError: one is; it has to be undone first.
    """
    plan_id, records = str(document["plan_id"]), records_of(place, repository)
    began = zoned_time(record["at"]) if record else _kept_at(repository, plan_id)
    later: dict[str, tuple[datetime, Mapping[str, Any]]] = {}
    for each in not_undone(records, kinds=UNDOABLE):
        at = zoned_time(each["at"])
        if each["plan_id"] != plan_id and (began is None or at > began):
            later[each["plan_id"]] = at, each
    now: Target | None = None
    for begun in _without_record(place, repository, {plan_id, *(undone_by(r["plan_id"]) for r in records)}):
        if begun.has_set_aside and (began is None or begun.kept is None or begun.kept > began):
            now = now or inspect_target(place)
            if not is_at(str(begun.document.get("checkpoint_fingerprint")), now, repository):
                later[begun.plan_id] = begun.kept or datetime.max.replace(tzinfo=UTC), begun.document
    if later:
        newest = max(later, key=lambda each: later[each][0])
        raise _later(place, repository, f"{document['kind']} {plan_id}", later[newest][1])


def is_at(fingerprint: str, now: Target, repository: Repository) -> bool:
    """Whether a checkpoint is as it was, with nothing but later changes in between, each undone since.

    :param fingerprint: of the checkpoint, as it was.
    """
    records = [r for r in records_of(now.location, repository) if r.get("kind") == UNDO]
    undos = {str(r.get("after")): undone_by(r["plan_id"]) for r in records}
    at: str | None = now.fingerprint
    while at != fingerprint and at in undos:  # an undo puts back what was there when the change was planned
        document = repository.kept_plan(undos.pop(at)) or {}
        at = document.get("checkpoint_fingerprint")
    return at == fingerprint


class _Begun(NamedTuple):
    """A plan that was kept, and of which there is no audit record.

    :param document: the plan.
    :param kept: when it was kept; ``None`` where the store does not say.
    :param has_set_aside: whether it has set aside what it removes; before that it changes nothing.
    """

    document: Mapping[str, Any]
    kept: datetime | None
    has_set_aside: bool

    @property
    def plan_id(self) -> str:
        """Its id."""
        return str(self.document["plan_id"])


def _without_record(place: Location, repository: Repository, known: Container[str]) -> list[_Begun]:
    """The changes of a checkpoint that were begun and have no audit record. A read for each plan that is not known."""

    def read(file: StoredFile) -> _Begun | None:
        plan_id = file.path.rpartition("/")[2].removesuffix(".json")
        if plan_id in known or undone_by(plan_id) != plan_id or not file.path.endswith(".json"):
            return None
        document = repository.kept_plan(plan_id)
        if document is None or not _is_of(document, place):
            return None
        aside = SetAside(repository, str(document.get("name", "")), plan_id, "checkpoint")
        return _Begun(document, file.modified, aside.sizes is not None)

    return [found for found in in_parallel(read, repository.location.list("plans").files) if found]


def records_of(place: Location, repository: Repository) -> list[dict[str, Any]]:
    """The audit records of changes of a checkpoint and of their undos, newest first."""
    return [record for record in repository.records() if _is_of(record, place)]


def _is_of(record: Mapping[str, Any], place: Location) -> bool:
    """Whether a record or plan is of a change of a checkpoint, however that is named."""
    if record.get("kind") not in (*UNDOABLE, UNDO):
        return False
    named = (record.get("checkpoint"), record.get("observed"))
    return any(isinstance(uri, str) and plain_uri(uri) == plain_uri(place.uri) for uri in named)


def _kept_at(repository: Repository, plan_id: str) -> datetime | None:
    found = repository.location.find(f"plans/{plan_id}.json")
    return found.modified if found else None


def _later(place: Location, repository: Repository, what: str, later: Mapping[str, Any]) -> RefusedError:
    """The error for a later change.

    :param what: the change that is to be undone, in words.
    :param later: the record of the later one, or its plan where it has no record.
    """
    plan_id, at = str(later["plan_id"]), later.get("at")
    name = f"{later['kind']} {plan_id}"
    document = repository.kept_plan(plan_id)
    if document is None:
        return RefusedError(
            f"{place} was changed by {name} at {shown_time(at)}, since {what}, by its audit record, and {repository.location} "
            "keeps no plan of it, so it cannot be undone; nothing was changed",
            hint=f"put plans/{plan_id}.json back from a copy of the repository. If the record is forged, move it "
            f"(audit/…-{plan_id}.json) out of the repository; then run the same undo again",
        )
    chain, request = document.get("chain"), document.get("request")
    sinks: list[str] = []
    if document.get("kind") == "rewind" and isinstance(request, Mapping):
        of_sinks = request.get("sinks") or [request]
        sinks = [str(sink.get("sink") or "") for sink in of_sinks if isinstance(sink, Mapping)]
    undo = chain_command("undo", chain) if chain else undo_command(place.uri, plan_id, repository, sinks)
    if at is not None:
        return RefusedError(
            f"{name} of {place} was carried out since {what} and is not undone: it may have removed what a query wrote between "
            "the two; nothing was changed",
            hint=f"undo that one first: `{undo}`",
        )
    return RefusedError(
        f"{name} of {place} was begun since {what} and has no audit record: it was stopped half-way, and its seal was lifted; "
        "nothing was changed",
        hint=f"undo that one first: `{undo}`. If its plan is forged, or was given up before {what}, move plans/{plan_id}.json "
        "out of the repository; then run the same undo again",
    )
