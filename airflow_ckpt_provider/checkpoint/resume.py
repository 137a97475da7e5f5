"""The resume point: what Spark will do at its next start, by the rules of ``MicroBatchExecution``.

L is the newest batch in ``offsets/``, K the newest in ``commits/``. The rules were read in Spark's
``populateStartOffsets`` and run on 3.5 to 4.3; where versions differ, the reason says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.checkpoint.commits import COMMITS, parse_commit
from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, OffsetEntry, SourceOffset, parse_offsets
from airflow_ckpt_provider.checkpoint.operators import STATE
from airflow_ckpt_provider.checkpoint.progress import Progress
from airflow_ckpt_provider.plan import Verdict
from airflow_ckpt_provider.storage.location import Location


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
    """Work out the resume point; reads at most two more log entries and lists ``state/``.

    :raises UnreadableLogError: one of the log entries that Spark will read cannot be parsed.
    """
    batch_id, replay = _next_batch(progress)
    verdict, reasons = _judge(progress, batch_id)
    newest, latest = progress.newest, progress.latest_logged
    start: tuple[SourceOffset, ...] = ()
    end: tuple[SourceOffset, ...] = ()
    watermark = newest.watermark_ms if newest else 0
    if newest is not None and latest is not None:
        if replay:
            previous = _entry_before(location, progress, latest)
            start, end = previous.sources if previous else (), newest.sources
        else:
            start = newest.sources
            commit = parse_commit(location.read(f"{COMMITS}/{latest}"), batch_id=latest)
            watermark = max(watermark, commit.next_watermark_ms)
    operators = [o for o in map(batch_id_of, location.list(STATE).directories) if o is not None]
    return ResumePoint(
        batch_id=batch_id,
        replay=replay,
        start_offsets=start,
        end_offsets=end,
        watermark_ms=watermark,
        state_versions=dict.fromkeys(operators, batch_id),
        verdict=verdict,
        reasons=reasons,
    )


def _next_batch(progress: Progress) -> tuple[int, bool]:
    latest, committed = progress.latest_logged, progress.latest_committed
    if latest is None:
        return 0, False
    if _is_continuous(progress) and committed is not None:
        return committed + 1, False
    return (latest + 1, False) if latest == committed else (latest, True)


def _is_continuous(progress: Progress) -> bool:
    return progress.newest is not None and not progress.newest.metadata


def _entry_before(location: Location, progress: Progress, batch_id: int) -> OffsetEntry | None:
    before = [b for b in progress.logged if b < batch_id]
    return parse_offsets(location.read(f"{OFFSETS}/{before[-1]}"), batch_id=before[-1]) if before else None


def _judge(progress: Progress, batch_id: int) -> tuple[Verdict, tuple[str, ...]]:
    found = [*_refusals(progress), *_log_faults(progress, batch_id)]
    # The order of the enumeration does not rank; what harms silently comes before what fails loudly.
    rank = [Verdict.WILL_LOSE, Verdict.WILL_SKIP, Verdict.WILL_DUPLICATE, Verdict.WILL_FAIL, Verdict.UNKNOWN]
    if progress.seal:  # nothing starts, so nothing else can happen
        rank.insert(0, Verdict.WILL_FAIL)
    verdict = next((v for v in rank if any(v is fault for fault, _ in found)), Verdict.SAFE)
    return verdict, tuple(reason for _, reason in found)


def _refusals(progress: Progress) -> list[tuple[Verdict, str]]:
    found = []
    if progress.seal:
        seal = progress.seal
        found.append((Verdict.WILL_FAIL, f"sealed by plan {seal.plan_id} ({seal.reason}): no Spark can start from it"))
    if progress.query_id is None:
        found.append(
            (
                Verdict.WILL_DUPLICATE,
                "metadata is missing: Spark 4.2 and later refuse to start; older ones make a new query id, so "
                "exactly-once sinks take replayed batches for new ones",
            )
        )
    return found


def _log_faults(progress: Progress, batch_id: int) -> list[tuple[Verdict, str]]:
    latest, committed = progress.latest_logged, progress.latest_committed
    if latest is None:
        if committed is None:
            return []
        return [
            (
                Verdict.WILL_DUPLICATE,
                f"offsets/ is empty while commits/ reaches batch {committed}: Spark 4.1 and later refuse to start; older "
                "ones begin again with batch 0 and fail at the first commit that exists",
            )
        ]
    if _is_continuous(progress):
        return []
    if committed is None:
        if latest == 0:
            return []
        return [
            (
                Verdict.UNKNOWN,
                f"no commits while offsets/ reaches batch {latest}: Spark runs batch {latest} and none before it; whether "
                "those were carried out cannot be known",
            )
        ]
    if committed > latest:
        return [
            (
                Verdict.WILL_DUPLICATE,
                f"commits/ reaches batch {committed} but offsets/ only {latest}: Spark runs batch {latest} again, sink "
                "included, then fails because its commit exists",
            )
        ]
    found = []
    skipped = progress.uncommitted[:-1]
    if skipped:
        batches = ", ".join(map(str, skipped))
        found.append(
            (
                Verdict.WILL_SKIP,
                f"batch {committed} is the newest commit, {latest} the newest logged: Spark runs {latest} again and never "
                f"{batches}; it only logs a warning",
            )
        )
    if latest > 0 and latest - 1 not in progress.logged:
        found.append(_hole(progress, latest))
    return found


def _hole(progress: Progress, latest: int) -> tuple[Verdict, str]:
    before = [b for b in progress.logged if b < latest]
    text = f"offsets/{latest - 1} is missing, Spark reads it at its start"
    if before:
        return Verdict.UNKNOWN, (
            f"{text}: legal with async progress tracking, which goes on from offsets/{before[-1]}; any other query fails "
            f"with `batch {latest - 1} doesn't exist`"
        )
    return Verdict.WILL_FAIL, f"{text} and fails with `batch {latest - 1} doesn't exist`"
