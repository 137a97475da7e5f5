"""The resume point: what Spark will do at its next start, by the rules of ``MicroBatchExecution``.

L is the newest batch in ``offsets/``, K the newest in ``commits/``. The rules were read in Spark's
``populateStartOffsets`` and run on 3.5 to 4.3; where versions differ, the reason says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from airflow_ckpt_provider.checkpoint.commits import COMMITS, CommitEntry, parse_commit
from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, OffsetEntry, SourceOffset, parse_offsets
from airflow_ckpt_provider.checkpoint.operators import STATE
from airflow_ckpt_provider.checkpoint.progress import Progress
from airflow_ckpt_provider.parallel import side_by_side
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict, worst


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """What runs next.

    :param batch_id: the batch that Spark will run first.
    :param replay: whether it was planned before, so that it reads exactly to ``end_offsets``.
    :param start_offsets: where the sources start, by source; empty at the first batch (the sources decide).
    :param end_offsets: where they end, for a replay; empty otherwise.
    :param watermark_ms: event-time watermark, milliseconds since the epoch.
    :param state_versions: operator -> state version that the batch reads; empty for a stateless query.
    :param verdict: ``SAFE`` when nothing is skipped, repeated or refused; else the worst of it.
    :param reasons: why, in words; empty for ``SAFE``.
    """

    batch_id: int
    replay: bool
    start_offsets: tuple[SourceOffset, ...]
    end_offsets: tuple[SourceOffset, ...]
    watermark_ms: int
    state_versions: dict[int, int]
    verdict: Verdict
    reasons: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The resume point as plain JSON."""
        return {
            "batch_id": self.batch_id,
            "replay": self.replay,
            "start_offsets": [source.to_json() for source in self.start_offsets],
            "end_offsets": [source.to_json() for source in self.end_offsets] if self.replay else None,
            "watermark_ms": self.watermark_ms,
            "state_versions": {str(operator): version for operator, version in self.state_versions.items()},
            "verdict": self.verdict.value,
            "reasons": list(self.reasons),
        }


def read_resume_point(location: Location, progress: Progress) -> ResumePoint:
    """Work out the resume point; reads at most two more log entries, at once, and lists ``state/``.

    A start reads the newest entry of both logs, and in ``offsets/`` the one before it too, whichever of them it uses.

    :raises UnreadableLogError: one of the log entries that Spark will read cannot be parsed.
    """
    batch_id, replay = _next_batch(progress)
    directories, (commit, before) = side_by_side(
        lambda: location.list(STATE).directories,
        lambda: side_by_side(lambda: _newest_commit(location, progress), lambda: _entry_before(location, progress)),
    )
    start, watermark = _start(progress, before, commit, replay)
    operators = [o for o in map(batch_id_of, directories) if o is not None]
    verdict, reasons = _judge(progress, has_state=bool(operators))
    newest = progress.newest
    return ResumePoint(
        batch_id=batch_id,
        replay=replay,
        start_offsets=start,
        end_offsets=newest.sources if newest and replay else (),
        watermark_ms=watermark,
        state_versions=dict.fromkeys(operators, batch_id),
        verdict=verdict,
        reasons=reasons,
    )


def start_after(location: Location, progress: Progress, batch_id: int) -> tuple[Verdict, str]:
    """Whether the next start continues after a batch, whose results are kept: the verdict, and why it is not ``SAFE``.

    :param location: the checkpoint. A seal is looked through: it will be lifted before the start.
    :param progress: how far it is.
    :param batch_id: the batch; -1: none was run.
    :raises UnreadableLogError: one of the log entries that Spark will read cannot be parsed.
    """
    found = read_resume_point(location, replace(progress, seal=None))
    if found.verdict is not Verdict.SAFE:
        return found.verdict, "; ".join(found.reasons)
    if found.batch_id != batch_id + 1:
        return Verdict.WILL_SKIP, f"the next start runs batch {found.batch_id}, not {batch_id + 1}"
    return Verdict.SAFE, ""


def _start(
    progress: Progress, before: OffsetEntry | None, commit: CommitEntry | None, replay: bool
) -> tuple[tuple[SourceOffset, ...], int]:
    """Where the sources start, and the watermark.

    :param before: see :func:`_entry_before`.
    :param commit: the newest commit.
    """
    newest = progress.newest
    if newest is None:
        return (), 0
    if replay:
        return (before.sources if before else ()), newest.watermark_ms
    last = before if newest.is_continuous else newest
    if commit is not None and last is not None and last.batch_id == commit.batch_id:
        return last.sources, max(last.watermark_ms, commit.next_watermark_ms)
    return (), newest.watermark_ms


def _next_batch(progress: Progress) -> tuple[int, bool]:
    latest, committed = progress.latest_logged, progress.latest_committed
    if latest is None:
        return 0, False
    if progress.is_continuous:  # what was logged beyond the newest commit is not replayed
        return (0 if committed is None else committed + 1), False
    return (latest + 1, False) if latest == committed else (latest, True)


def _newest_commit(location: Location, progress: Progress) -> CommitEntry | None:
    """The newest commit, which every start reads that finds an entry in ``offsets/``."""
    committed = progress.latest_committed
    if committed is None or progress.newest is None:
        return None
    return parse_commit(location.read(f"{COMMITS}/{committed}"), batch_id=committed)


def _entry_before(location: Location, progress: Progress) -> OffsetEntry | None:
    """The entry before the newest, which every start reads; in continuous mode that of the newest commit instead."""
    newest = progress.newest
    if newest is None:
        return None
    if newest.is_continuous:
        batch_id = progress.latest_committed
        if batch_id == newest.batch_id:
            return newest
        read = batch_id if batch_id in progress.logged else None
    else:
        read = max((b for b in progress.logged if b < newest.batch_id), default=None)
    return None if read is None else parse_offsets(location.read(f"{OFFSETS}/{read}"), batch_id=read)


def _judge(progress: Progress, *, has_state: bool) -> tuple[Verdict, tuple[str, ...]]:
    refused = [*_seal(progress), *_hole_at_the_start(progress)]
    found = [*_seal(progress), *_no_query_id(progress), *_hole_at_the_start(progress), *_faults(progress, has_state)]
    # Where nothing starts, nothing else can happen; else what harms silently comes before what fails with an error.
    verdict = Verdict.WILL_FAIL if refused else worst(fault for fault, _ in found)
    return verdict, tuple(reason for _, reason in found)


def _seal(progress: Progress) -> list[tuple[Verdict, str]]:
    seal = progress.seal
    if seal is None:
        return []
    return [(Verdict.WILL_FAIL, f"sealed by plan {seal.plan_id} ({seal.reason}): no Spark can start from it")]


def _no_query_id(progress: Progress) -> list[tuple[Verdict, str]]:
    if progress.query_id is not None:
        return []
    return [
        (
            Verdict.WILL_DUPLICATE,
            "metadata is missing: Spark 4.2 and later refuse to start; older ones make a new query id, so "
            "exactly-once sinks take replayed batches for new ones",
        )
    ]


def _hole_at_the_start(progress: Progress) -> list[tuple[Verdict, str]]:
    """An entry that every Spark reads before it runs anything is missing."""
    latest, committed = progress.latest_logged, progress.latest_committed
    if progress.is_continuous and committed is not None and committed not in progress.logged:
        reason = (
            f"offsets/{committed} is missing: continuous mode starts from the offsets of the newest commit and fails"
        )
        return [(Verdict.WILL_FAIL, reason)]
    if not latest or progress.is_continuous or progress.logged[0] != latest:
        return []
    return [(Verdict.WILL_FAIL, f"{_missing_before(latest)} and fails with `batch {latest - 1} doesn't exist`")]


def _faults(progress: Progress, has_state: bool) -> list[tuple[Verdict, str]]:
    if progress.latest_logged is None:
        return _faults_without_offsets(progress, has_state=has_state)
    return [] if progress.is_continuous else _faults_of_logs(progress, progress.latest_logged)


def _faults_without_offsets(progress: Progress, *, has_state: bool) -> list[tuple[Verdict, str]]:
    committed = progress.latest_committed
    if committed is not None:
        return [
            (
                Verdict.WILL_DUPLICATE,
                f"offsets/ is empty while commits/ reaches batch {committed}: Spark 4.1 and later refuse to start; older "
                "ones begin again with batch 0 and fail at the first commit that exists",
            )
        ]
    if has_state:
        return [
            (
                Verdict.WILL_DUPLICATE,
                "offsets/ and commits/ are empty while state/ is not: Spark 4.1 and later refuse to start; older ones "
                "begin again with batch 0 beside the old state",
            )
        ]
    return []


def _faults_of_logs(progress: Progress, latest: int) -> list[tuple[Verdict, str]]:
    committed = progress.latest_committed
    found = []
    if committed is None and latest > 0:
        found.append(
            (
                Verdict.UNKNOWN,
                f"no commits while offsets/ reaches batch {latest}: Spark runs batch {latest} and none before it; whether "
                "those were carried out cannot be known",
            )
        )
    if committed is not None and committed > latest:
        found.append(
            (
                Verdict.WILL_DUPLICATE,
                f"commits/ reaches batch {committed} but offsets/ only {latest}: Spark runs batch {latest} again, sink "
                "included, then fails because its commit exists",
            )
        )
    skipped = progress.uncommitted[:-1]
    if committed is not None and skipped:
        batches = ", ".join(map(str, skipped))
        found.append(
            (
                Verdict.WILL_SKIP,
                f"batch {committed} is the newest commit, {latest} the newest logged: Spark runs {latest} again and never "
                f"{batches}; it only logs a warning",
            )
        )
    before = [b for b in progress.logged if b < latest]
    if before and before[-1] != latest - 1:
        found.append(
            (
                Verdict.UNKNOWN,
                f"{_missing_before(latest)}: legal with async progress tracking, which continues from "
                f"offsets/{before[-1]}; any other query fails with `batch {latest - 1} doesn't exist`",
            )
        )
    return found


def _missing_before(latest: int) -> str:
    return f"offsets/{latest - 1} is missing, Spark reads it at its start"
