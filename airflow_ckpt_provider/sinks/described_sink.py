"""A Delta table that is only known by its name: judged by ``DESCRIBE HISTORY``, restored by the engine that owns it.

``RESTORE`` takes no condition, and no text of ours can be given along with it. So the versions tell what happened:

* Before, the table has to have the id and the rows that the plan saw.
* After, the version before the ``RESTORE`` has to have those rows too. Where somebody wrote in between, their commit is put
  back by a ``RESTORE`` of its version, and the roll-back is refused with its name.
* ``RESTORE`` keeps what the table remembers of the query, so the query gets a new id, as after a roll-back by Spark.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from airflow_ckpt_provider.errors import CkptError, RefusedError, StorageError
from airflow_ckpt_provider.sinks.delta import judge_start
from airflow_ckpt_provider.sinks.delta_rollback import restored_since
from airflow_ckpt_provider.sinks.delta_sink import brought_forward
from airflow_ckpt_provider.sinks.described_history import described_history, is_row_change
from airflow_ckpt_provider.sinks.kinds import SinkChange, SinkContent, SinkKind, SinkStart
from airflow_ckpt_provider.sinks.named_tables import TableEngine, engine_named, in_sql
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.report import SinkReport
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.sinks.table_history import TableHistory
from airflow_ckpt_provider.verdict import Verdict

log = logging.getLogger(__name__)

#: Plans of which this process does not know whether a ``RESTORE`` that was sent for them is still to come.
_under_way: set[str] = set()


@dataclass(frozen=True, slots=True)
class DescribedTable(SinkContent):
    """A table, as its engine describes it.

    :param sink: as the person names it.
    :param engine: the engine.
    :param table: its history.
    """

    sink: Sink
    engine: TableEngine
    table: TableHistory

    @property
    def history(self) -> TableHistory:
        """Its history, as far as it is known."""
        return self.table

    def verdict(self, start: SinkStart) -> SinkReport:
        """Judge a start. What ``DESCRIBE HISTORY`` cannot tell is ``UNKNOWN``."""
        report = judge_start(self.table, start)
        report = replace(report, kind=self.engine.kind, uri=self.sink.name)
        if untold := self.untold(start.ids):
            verdict = Verdict.UNKNOWN if report.verdict is Verdict.SAFE else report.verdict
            report = replace(report, verdict=verdict, reasons=(*report.reasons, untold))
        if self.sink.app_id:
            report = replace(report, rollback=None, obstacle=untold)
        if report.rollback is None:
            return report
        how = (
            f"RESTORE TABLE {in_sql(self.sink.table)} TO VERSION AS OF {report.rollback.to_version} by {self.engine.words}; it "
            "still remembers its newer batches, so the query gets a new id"
        )
        facts = {"table_id": self.table.table_id or ""}
        return replace(report, rollback=replace(report.rollback, how=how, facts=facts))

    def untold(self, ids: QueryIds) -> str | None:
        """Why the table may hold, or remember, batches that its history does not name."""
        if self.sink.app_id:
            return (
                "DESCRIBE HISTORY does not name the txnAppId of a commit: which batches of "
                f"{self.sink.app_id} are in the table is not known"
            )
        own = [c.version for c in self.table.commits if ids.is_own(c)]
        later = [c for c in self.table.lineage() or () if is_row_change(c) and c.version > max(own, default=-1)]
        if not own or not later:
            return None
        return (
            f"DESCRIBE HISTORY does not show whether {later[-1].describe()} is of a foreachBatch of the query, whose batches "
            "the table would hold and remember"
        )


class DescribedSink(SinkKind):
    """Delta tables by their names, whose log cannot be read from here.

    :param kind: the engine's.
    """

    has_identity = True

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def look(self, sink: Sink) -> DescribedTable | None:
        """Ask the engine for the table's history."""
        if sink.kind != self.kind or not sink.table:
            return None
        engine = engine_named(self.kind, sink.engines)
        return DescribedTable(sink, engine, _history(engine, sink.table))

    def check(self, change: SinkChange) -> None:
        """See that the table is the one of the plan, and that nobody wrote into it."""
        history = self._history(change)
        if change.continued and self._undone_in(change, history) is not None:
            raise brought_forward(change)
        if (done := self._rolled_back_in(change, history)) is not None:
            _expect_kept(change, history, done, change.plan_id)
        else:
            if change.continued:
                _check_lost(change, history)
            _expect(history, change.rollback.from_version, "the plan was made at")

    def roll_back(self, change: SinkChange) -> int | None:
        """Restore the version, and see what came of it."""
        history = self._history(change)
        if (done := self._rolled_back_in(change, history)) is not None:
            _expect_kept(change, history, done, change.plan_id)
            return done
        _expect(history, change.rollback.from_version, "the plan was made at")
        return self._restore(change, change.rollback.from_version, change.rollback.to_version, change.plan_id)

    def is_rolled_back(self, change: SinkChange) -> bool | None:
        """Whether the plan's ``RESTORE`` is in the history."""
        history, rollback = self._history(change), change.rollback
        if self._rolled_back_in(change, history) is not None:
            return True
        over = _restored_over(history, rollback.to_version, after=rollback.from_version)
        return None if over is not None or change.continued or change.plan_id in _under_way else False

    def undo_needs(self, change: SinkChange) -> tuple[list[str], list[str]]:
        """The engine, and files that VACUUM leaves for a while."""
        engine = self._engine(change)
        return [
            "nobody may write into the table before",
            f"{engine.words} brings the table forward again: name it as for the rewind",
            "a VACUUM deletes files some days after they left the table (delta.deletedFileRetentionDuration): none may run then",
        ], []

    def check_undo(self, change: SinkChange) -> None:
        """See that the roll-back is what the table was last changed by."""
        self._to_bring_forward(change)

    def undo(self, change: SinkChange) -> int | None:
        """Restore the version before the roll-back."""
        history = self._history(change)
        if (done := self._undone_in(change, history)) is not None:
            _expect_kept(change, history, done, change.undo_id)
            return done
        rolled_back = self._to_bring_forward(change)
        if rolled_back is None:
            return None  # killed before the table was rolled back
        return self._restore(change, rolled_back, change.rollback.from_version, change.undo_id)

    def is_undone(self, change: SinkChange) -> bool | None:
        """Whether the undo's ``RESTORE`` is in the history."""
        history = self._history(change)
        if self._undone_in(change, history) is not None:
            return True
        over = _restored_over(history, change.rollback.from_version, after=self._rolled_back_in(change, history))
        return None if over is not None or change.continued or change.undo_id in _under_way else False

    # -----------------------------------------------------------------------------------------------------------------

    def _engine(self, change: SinkChange) -> TableEngine:
        return engine_named(self.kind, change.sink.engines)

    def _history(self, change: SinkChange) -> TableHistory:
        """The history of the table that the plan names; another table under its name is refused."""
        name = _name(change)
        history, planned = _history(self._engine(change), name), str(change.rollback.facts.get("table_id") or "")
        if history.table_id != planned:
            raise RefusedError(
                f"{change.report.uri} is another table now (id {history.table_id}; the plan was made for {planned}): it was "
                "renamed, or dropped and recreated; it was not changed",
                hint="see where the table of the plan is now (its history, UNDROP), and give it its name again",
            )
        return history

    def _rolled_back_in(self, change: SinkChange, history: TableHistory) -> int | None:
        done = change.record.get("table_version") if change.record else None
        if done is not None:
            return int(done)
        return _restored_in(history, change.rollback.to_version, after=change.rollback.from_version)

    def _undone_in(self, change: SinkChange, history: TableHistory) -> int | None:
        rolled_back = self._rolled_back_in(change, history)
        return (
            _restored_in(history, change.rollback.from_version, after=rolled_back) if rolled_back is not None else None
        )

    def _to_bring_forward(self, change: SinkChange) -> int | None:
        """The version of the roll-back, whose rows the table still has to have; ``None`` where it was never rolled back."""
        history = self._history(change)
        rolled_back, former = self._rolled_back_in(change, history), change.rollback.from_version
        if rolled_back is None:
            _check_lost(change, history)
            if former is not None and history.first > former + 1:
                raise RefusedError(
                    f"the history of {change.report.uri} begins at version {history.first}, so nobody knows whether rewind "
                    f"{change.plan_id} rolled the table back from version {former}; nothing was changed",
                    hint=None if change.is_half_undone else "run the same rewind again, which ends it",
                )
            to_version, after = change.rollback.to_version, -1 if former is None else former
            arrived = any(c.version > after and c.restored == to_version for c in history.commits)
            if change.record is None and not arrived and not change.is_half_undone:
                words = self._engine(change).words
                raise RefusedError(
                    f"rewind {change.plan_id} was not ended, and the history of {change.report.uri} has no RESTORE of it; one "
                    "that was sent may still wait or run, and would take out what is written later; nothing was changed",
                    hint=f"see among the statements of {words} that none waits or runs; then run the same rewind again, "
                    "which ends it, and undo that",
                )
            return None
        if (undone := self._undone_in(change, history)) is not None:
            _expect_kept(change, history, undone, change.undo_id)
        elif not _has_rows_of(history, rolled_back):
            raise RefusedError(
                f"{change.report.uri} was written to since rewind {change.plan_id}: it is at version {history.newest}, the "
                f"roll-back was {rolled_back}",
                hint=change.instead_of_undo(
                    f"restore version {rolled_back}, without what was written since (RESTORE TABLE {_in_sql(change)} TO VERSION "
                    f"AS OF {rolled_back})"
                ),
            )
        return rolled_back

    def _restore(self, change: SinkChange, before: int | None, version: int | None, plan_id: str) -> int:
        """Send one ``RESTORE`` and see by the history what came of it.

        :param before: a version with the rows that the table has to have until then.
        :param version: the one that is restored.
        """
        if before is None or version is None:
            raise ValueError("the plan of a Delta table has versions")
        engine, name = self._engine(change), _name(change)
        change.check_lease()
        failed = _sent(engine, name, version, plan_id)
        history = self._history(change)
        done = _restored_in(history, version, after=before)
        if done is not None:
            log.info("%s restored to version %d in version %d by %s", name, version, done, engine.words)
            return done
        lost = _restored_over(history, version, after=before)
        if lost is None:
            raise failed or StorageError(
                f"{change.report.uri}: the RESTORE to version {version} is not in its history",
                hint="check the table's history before anything else; the checkpoint stays sealed",
            )
        self._put_back(change, engine, history, before, lost)
        raise AssertionError("unreachable")

    def _put_back(self, change: SinkChange, engine: TableEngine, history: TableHistory, before: int, lost: int) -> None:
        """Somebody wrote just before the ``RESTORE``: give the table their rows back, and refuse.

        :param lost: the version of the ``RESTORE``.
        """
        name, uri = _name(change), change.report.uri
        theirs = ", ".join(c.describe() for c in history.commits if before < c.version < lost)
        by_hand = f"RESTORE TABLE {in_sql(name)} TO VERSION AS OF {lost - 1}"
        failed = _sent(engine, name, lost - 1, change.plan_id)
        now = self._history(change)
        back = _restored_in(now, lost - 1, after=lost)
        if back is None:
            raise StorageError(
                f"{uri}: somebody wrote {theirs} at the moment of the roll-back, which took their rows out in version {lost}, "
                f"and they could not be put back ({failed or f'the table is at version {now.newest}'})",
                hint=f"stop whoever writes, give the rows back by hand ({by_hand}), then undo the plan: "
                f"`{change.undo_command}`",
            )
        raise RefusedError(
            f"{uri}: somebody wrote {theirs} at the moment of the roll-back (version {lost}); the table was put back to what "
            f"it was with their rows, in version {back}",
            hint="stop whoever writes (DESCRIBE HISTORY names them), then make a new plan",
        )


def _name(change: SinkChange) -> str:
    """The table's name, as the plan has it."""
    return change.report.uri.partition(":")[2]


def _in_sql(change: SinkChange) -> str:
    return in_sql(_name(change))


def _expect_kept(change: SinkChange, history: TableHistory, done: int, plan_id: str) -> None:
    """See that nobody restored the table since to what it was before our ``RESTORE``.

    :raises RefusedError: somebody has.
    """
    if (by := history.left_by(done)) is not None:
        raise restored_since(change.report.uri, _in_sql(change), plan_id, done, by.describe())


def _check_lost(change: SinkChange, history: TableHistory) -> None:
    """See that no earlier attempt has taken out rows of others that are not back yet.

    :raises RefusedError: one has.
    """
    lost = _restored_over(history, change.rollback.to_version, after=change.rollback.from_version)
    if lost is not None:
        raise RefusedError(
            f"the roll-back of {change.report.uri} in version {lost} took out rows that somebody wrote just before; "
            "nothing was changed by this attempt",
            hint=f"give the rows back by hand (RESTORE TABLE {_in_sql(change)} TO VERSION AS OF {lost - 1}), then take the plan "
            f"back: `{change.undo_command}`",
        )


def _history(engine: TableEngine, name: str) -> TableHistory:
    return described_history(f"{engine.kind}:{name}", engine.describe(name), feature=f"restored by {engine.words}")


def _sent(engine: TableEngine, name: str, version: int, plan_id: str) -> CkptError | None:
    """Have a version restored; return the error, for what became of it is seen in the history."""
    _under_way.add(plan_id)
    try:
        engine.restore(name, version, plan_id=plan_id)
    except RefusedError as e:
        _under_way.discard(plan_id)
        return e
    except CkptError as e:
        e.add_hint(
            f"whether the RESTORE of {name} was sent is not known: see among the statements of {engine.words} that none waits or "
            "runs, then run the same command again"
        )
        return e
    _under_way.discard(plan_id)
    return None


def _expect(history: TableHistory, version: int | None, when: str) -> None:
    """See that the table has the rows and settings of a version.

    :raises RefusedError: somebody changed it since.
    """
    if version is None or not _has_rows_of(history, version):
        theirs = ", ".join(c.describe() for c in history.commits if version is not None and c.version > version)
        raise RefusedError(
            f"{history.uri} is at version {history.newest}, and {when} version {version}: somebody wrote into it ({theirs}); it "
            "was not changed",
            hint="see who writes (DESCRIBE HISTORY), then make a new plan",
        )


def _has_rows_of(history: TableHistory, version: int) -> bool:
    """Whether the newest version has the rows and the settings of an earlier one."""
    return version == history.newest or _are_equal(history, version, history.newest)


def _are_equal(history: TableHistory, one: int, other: int) -> bool:
    """Whether two versions are known to have the same rows and settings."""
    heads, first, second = history.heads(), history.at(one), history.at(other)
    if first is None or second is None or heads[one] is None:
        return one == other
    return heads[one] == heads[other] and first.settings == second.settings


def _restored_in(history: TableHistory, version: int | None, *, after: int | None) -> int | None:
    """The first ``RESTORE`` to a version after another one, if nobody changed rows in between."""
    if version is None or after is None:
        return None
    for commit in history.commits:
        if commit.version <= after:
            continue
        if not _are_equal(history, after, commit.version - 1):
            return None
        if commit.restored == version:
            return commit.version
    return None


def _restored_over(history: TableHistory, version: int | None, *, after: int | None) -> int | None:
    """The newest commit, where it is a ``RESTORE`` to a version, with commits of others before it."""
    newest = history.at(history.newest)
    if newest is None or version is None or after is None:
        return None
    return newest.version if newest.version > after and newest.restored == version else None
