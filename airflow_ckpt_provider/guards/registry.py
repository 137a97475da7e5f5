"""Which guard judges which source: our own, and those of other packages.

A package adds a guard by an entry point of the group :data:`GROUP`, whose name says the kind and whose value is called
with the :class:`GuardSettings` and returns a :class:`Guard`::

    [project.entry-points."airflow_ckpt_provider.guards"]
    kinesis = "my_package.kinesis_guard:KinesisGuard"

It is asked before ours, so it may also take over a kind that we know. What no guard recognises is ``UNKNOWN``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from airflow_ckpt_provider.checkpoint.offsets import SourceOffset
from airflow_ckpt_provider.checkpoint.source_offsets import Offset
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.entry_points import entry_points_of
from airflow_ckpt_provider.guards.report import Judgement, SourceReport
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict

GROUP = "airflow_ckpt_provider.guards"


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """Settings of guards, the same for all of them.

    :param fail_on_data_loss: the ``failOnDataLoss`` of the query's sources, which no checkpoint records: whether Spark
        stops where data is gone (its default) or continues silently.
    :param max_downtime: seconds that the stream is planned to be down from now on; ``None``: do not judge it.
    :param buffer: margin after that, in seconds.
    :param options: of each kind of source, what its guard needs: for ``kafka`` see
        :class:`~airflow_ckpt_provider.guards.kafka.KafkaGuard`; the others likewise, each under its kind.
    """

    fail_on_data_loss: bool = True
    max_downtime: float | None = None
    buffer: float = 0.0
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def if_gone(self) -> Verdict:
        """What becomes of data that is gone: an end with an error, or a silent loss."""
        return Verdict.WILL_FAIL if self.fail_on_data_loss else Verdict.WILL_LOSE


@dataclass(frozen=True, slots=True)
class GuardedSource:
    """One source at the resume point.

    :param start: from where it will be read.
    :param end: up to where the next batch reads, if it was planned before; ``None`` for a new batch.
    :param log: ``sources/<n>`` of the checkpoint, for a source that has a log; may hold nothing. ``None`` where offsets
        were given by hand.
    :param known: what a backup recorded of this source when it was taken (``facts`` of its manifest); empty without one.
    :param logged_at: when the start offset was logged, in UTC, where known.
    :param planned_at: when ``end`` was logged, in UTC, where known.
    :param first_file: content of ``sources/<n>/0``, where it comes from a backup; ``None``: it is read from ``log``.
    :param reread: at a start without a replay, Spark asks its older sources (V1: Delta, files) again for what the newest
        batch had read, and throws it away: the offset from which, or ``None`` in it for a first batch, which has none
        before it. Empty where that does not happen or is not known.
    :param is_target: the start is that of a planned rewind: what was read before it is not read again.
    """

    start: SourceOffset
    end: Offset | None = None
    log: Location | None = None
    known: Mapping[str, Any] = field(default_factory=dict)
    logged_at: datetime | None = None
    reread: tuple[Offset | None, ...] = ()
    planned_at: datetime | None = None
    first_file: bytes | None = None
    is_target: bool = False

    @property
    def name(self) -> str:
        """Position in the plan, or name."""
        return self.start.source


class Guard(Protocol):
    """Judges the sources of one kind."""

    kind: str

    def recognises(self, source: GuardedSource) -> bool:
        """Whether the source is of this kind, as far as its offset shows. Asks nobody."""

    def judge(self, source: GuardedSource) -> SourceReport:
        """Read the live source.

        :raises CkptError: it could not be asked. That is no verdict: whoever calls decides whether to try again.
        """


def installed_guards(settings: GuardSettings) -> tuple[Guard, ...]:
    """All guards, those of other packages first.

    :raises RefusedError: one of another package cannot be loaded; a setting of ours is not known, or not of its form.
    """
    others = []
    for entry in entry_points_of(GROUP):
        try:
            others.append(entry.load()(settings))
        except Exception as e:
            raise RefusedError(
                f"the guard {entry.name!r} cannot be loaded: {type(e).__name__}: {e}",
                hint=f"repair or remove the package that names it in its entry points ({GROUP})",
            ) from e
    return (*others, *_own_guards(settings, {guard.kind for guard in others}))


def _own_guards(settings: GuardSettings, taken: Collection[str]) -> list[Guard]:
    from airflow_ckpt_provider.guards.delta import DeltaGuard
    from airflow_ckpt_provider.guards.files import FileGuard
    from airflow_ckpt_provider.guards.iceberg import IcebergGuard
    from airflow_ckpt_provider.guards.kafka import KafkaGuard
    from airflow_ckpt_provider.guards.rate import RateGuard

    found: list[Guard] = []
    for make in (KafkaGuard, DeltaGuard, IcebergGuard, FileGuard, RateGuard):
        try:
            found.append(make(settings))
        except RefusedError:
            if make.kind not in taken:  # else the settings are those of the other guard
                raise
    return found


def judge_source(source: GuardedSource, guards: Sequence[Guard]) -> SourceReport:
    """Have a source judged by the first guard that recognises it; ``UNKNOWN`` where none does."""
    guard = next((guard for guard in guards if guard.recognises(source)), None)
    if guard is None:
        return not_guarded(source, _unguarded(source, guards))
    return guard.judge(source)


def not_guarded(source: GuardedSource, reason: str) -> SourceReport:
    """Report a source that cannot be judged, and why."""
    return SourceReport(source.name, source.start.kind, (Judgement(Verdict.UNKNOWN, reason),), lost=None)


def _unguarded(source: GuardedSource, guards: Iterable[Guard]) -> str:
    offset = source.start.offset
    kinds = ", ".join(sorted({guard.kind for guard in guards}))
    if offset is None:
        return "the source has no offset yet: where it starts is for its own options to say"
    if offset.kind == "unknown":
        return f"nobody here knows this source by its offset {offset.text[:80]!r}; there are guards for: {kinds}"
    return f"there is no guard for sources of kind {offset.kind}; there are guards for: {kinds}"
