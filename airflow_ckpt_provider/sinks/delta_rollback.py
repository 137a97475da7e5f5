"""Rolling a Delta table back: one atomic commit that restores a version *and* what the table remembers of the query.

``RESTORE`` alone keeps the ``txn`` of the newest batch, and every replayed batch is skipped silently. So the
commit carries ``txn(app id, target batch)`` as well. The table is never without one half: there is only one commit.

A table with features that ``deltalake`` cannot restore is rolled back by Spark's own ``RESTORE``. That commit carries
no ``txn``, so the query has to get a new id, under the same seal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.guards.delta_client import restore
from airflow_ckpt_provider.sinks.delta_history import NO_VERSION, PLAN_KEY, read_table_history
from airflow_ckpt_provider.sinks.named_tables import path_in_sql
from airflow_ckpt_provider.sinks.table_history import TableHistory
from airflow_ckpt_provider.storage.location import Location

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TableTarget:
    """Where a table is to go.

    :param table: the table's directory.
    :param version: the version whose content it is to have.
    :param app_id: the query's id.
    :param batch_id: the batch it is to remember.
    :param plan_id: the plan; a second run of it finds the commit of the first.
    :param storage_options: settings of the store as ``deltalake`` names them; empty for local disks.
    :param older_ids: older id of the query -> the batch it is to remember of that, where the stream had several.
    """

    table: Location
    version: int
    app_id: str
    batch_id: int
    plan_id: str
    storage_options: dict[str, str] = field(repr=False)
    older_ids: Mapping[str, int] = field(default_factory=dict)

    @property
    def txns(self) -> dict[str, int]:
        """Every ``txn`` of the commit: id -> the batch it is to remember."""
        return {**self.older_ids, self.app_id: self.batch_id}


#: Restores a table by a Spark application (``airflow_ckpt_provider.jobs.roll_table_back``), from the version that it has to
#: have before. Raises ``RefusedError`` where the application refused, ``StorageError`` where it failed.
RestoreBySpark = Callable[[TableTarget, int], None]


def roll_back_table(
    target: TableTarget,
    *,
    expected: int,
    by_spark: RestoreBySpark | None = None,
    check_lease: Callable[[], None] = lambda: None,
    undo_command: str = "",
) -> int:
    """Perform it; the second time it does nothing.

    :param target: where the table is to go.
    :param expected: the version the table has to have before.
    :param by_spark: Spark does it; what the table remembers stays as it is then. ``None``: ``deltalake`` does.
    :param check_lease: raises where this attempt may not write any more; called right before the table is changed.
    :param undo_command: undoes the plan, for the hint where a restore by Spark took out rows of others; empty in an undo.
    :return: the version of the commit.
    :raises RefusedError: somebody wrote into the table since the plan was made, or at the same moment, or restored it since
        the first run; nothing was changed.
    :raises MissingExtraError: ``deltalake`` is not installed.
    :raises StorageError: the table could not be read or written, or ``deltalake`` restored only a part of the version.
    """
    history = read_table_history(target.table)
    done = kept_by(target.table, history, target.plan_id)
    if done is not None:
        _expect_restored(target, history, done, undo_command)
        log.info("%s was rolled back by this plan already, in version %d", target.table, done)
        return done
    if by_spark:
        check_lease()
        by_spark(target, expected)
    else:
        restore(
            target.table,
            target.version,
            txns=target.txns,
            about={PLAN_KEY: target.plan_id},
            expected=expected,
            storage_options=target.storage_options,
            check_lease=check_lease,
        )
    history = read_table_history(target.table)
    done = committed_in(history, target.plan_id)
    if done is None:
        raise StorageError(
            f"{target.table}: the restore to version {target.version} left no commit of plan {target.plan_id}",
            hint="check the table's history before anything else; the checkpoint stays sealed",
        )
    _expect_restored(target, history, done, undo_command)
    if by_spark and done > expected + 1:
        _name_lost(target, expected, done, undo_command)
    how = "by Spark" if by_spark else f"it remembers batch {target.batch_id}"
    log.info("%s rolled back to version %d in version %d; %s", target.table, target.version, done, how)
    return done


def shut_out(target: TableTarget, *, expected: int, check_lease: Callable[[], None] = lambda: None) -> None:
    """Make a commit that changes nothing, so that a roll-back that still expects the version before it fails.

    A suspended attempt may be anywhere between its last check and its commit. Its commit is the version after the one that
    it expects, and that version is taken then.

    :param target: the table, and the plan that the commit carries.
    :param expected: the version that the table has to have before.
    :param check_lease: raises where this attempt may not write any more; called right before the commit.
    :raises RefusedError: somebody wrote into the table at the same moment; nothing was changed.
    :raises MissingExtraError: ``deltalake`` is not installed.
    :raises StorageError: the table could not be read or written.
    """
    try:
        restore(
            target.table,
            expected,
            txns={},
            about={PLAN_KEY: target.plan_id},
            expected=expected,
            storage_options=target.storage_options,
            check_lease=check_lease,
        )
    except RefusedError as e:
        raise RefusedError(
            f"{target.table} was written to at the same moment, perhaps by the attempt that is undone; it was not changed",
            hint="run the same command again",
        ) from e
    log.info("%s: a commit after version %d shuts a suspended attempt out", target.table, expected)


def _expect_restored(target: TableTarget, history: TableHistory, done: int, undo_command: str) -> None:
    """See that the commit has not removed files that the restored version had: ``deltalake`` restores what it can read.

    :raises StorageError: it has.
    """
    commit = history.at(done)
    if commit is not None and commit.restored == NO_VERSION:
        raise StorageError(
            f"{target.table}: version {done} was to restore version {target.version}, and removed files that this version had: "
            "its log could not put that version together any more",
            hint=f"undo it (`{undo_command}`)"
            if undo_command
            else f"restore version {done - 1}; the checkpoint stays sealed",
        )


def _name_lost(target: TableTarget, expected: int, done: int, undo_command: str) -> None:
    """Spark's ``RESTORE`` takes no condition: see whether it took out what somebody wrote after the version was compared.

    :raises StorageError: it did.
    """
    between = [c for c in read_table_history(target.table).commits if expected < c.version < done]
    back = f"RESTORE TABLE {path_in_sql(target.table)} TO VERSION AS OF {done - 1}"
    or_undo = f"; or give them back by hand ({back}), undo it (`{undo_command}`), and make a new plan"
    if lost := ", ".join(c.describe() for c in between if c.changes_data):
        raise StorageError(
            f"{target.table}: somebody wrote {lost} at the moment of the restore, which took their rows out in version {done}",
            hint=f"stop whoever writes, copy those rows from version {done - 1}, run the same command again, which keeps version "
            f"{done}, and write the rows again{or_undo if undo_command else ''}; the checkpoint stays sealed",
        )


def committed_by(table: Location, plan_id: str) -> int | None:
    """The version that a plan of ours committed, or ``None``."""
    return committed_in(read_table_history(table), plan_id)


def committed_in(history: TableHistory, plan_id: str) -> int | None:
    """The same by a log that was read already; whatever happened to the table since."""
    return next((c.version for c in reversed(history.commits) if c.plan_id == plan_id), None)


def kept_by(table: Location, history: TableHistory, plan_id: str) -> int | None:
    """The version that a plan of ours committed, which the table still has to build on; ``None`` without one.

    :raises RefusedError: somebody restored the table since to what it was before that.
    """
    done = committed_in(history, plan_id)
    if done is not None and (by := history.left_by(done)) is not None:
        raise restored_since(str(table), path_in_sql(table), plan_id, done, by.describe())
    return done


def restored_since(table: str, name: str, plan_id: str, done: int, by: str) -> RefusedError:
    """The error for a table that somebody has restored to what it was before a commit of ours.

    :param table: the table, for the message.
    :param name: the table, as SQL names it.
    :param done: the version of our commit.
    :param by: the commit that restored it, in words.
    """
    return RefusedError(
        f"{table} was changed by plan {plan_id} in version {done}, and restored since by {by}, which reverted that; it was not "
        "changed now",
        hint=f"restore version {done}, without what was written since (RESTORE TABLE {name} TO VERSION AS OF {done}), then run "
        "the same command again",
    )
