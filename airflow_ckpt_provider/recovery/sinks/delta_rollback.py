"""Rolling a Delta table back: one atomic commit that restores a version *and* what the table remembers of the query.

``RESTORE`` alone leaves the ``txn`` of the newest batch standing, and every replayed batch is skipped without a word. So the
commit carries ``txn(app id, target batch)`` as well. The table is never without one half: there is only one commit.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from types import ModuleType

from airflow_ckpt_provider.errors import MissingExtraError, RefusedError, StorageError
from airflow_ckpt_provider.recovery.sinks.delta_log import PLAN_KEY, read_table_history
from airflow_ckpt_provider.recovery.sinks.sink import SinkRollback
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
    """

    table: Location
    version: int
    app_id: str
    batch_id: int
    plan_id: str
    storage_options: dict[str, str]


def roll_back_table(target: TableTarget, *, expected: int | None = None) -> int:
    """Carry it out; the second time it does nothing.

    :param target: where the table is to go.
    :param expected: the version the table has to have before, or ``None`` for any.
    :return: the version of the commit.
    :raises RefusedError: somebody wrote into the table since the plan was made, or at the same moment; nothing was changed.
    :raises MissingExtraError: ``deltalake`` is not installed.
    :raises StorageError: the table could not be read or written.
    """
    deltalake = _client()
    done = committed_by(target.table, target.plan_id)
    if done is not None:
        log.info("%s was rolled back by this plan already, in version %d", target.table, done)
        return done
    try:
        table = deltalake.DeltaTable(target.table.uri, storage_options=target.storage_options or None)
        if expected is not None and table.version() != expected:
            raise RefusedError(
                f"{target.table} is at version {table.version()}, and the plan was made at version {expected}: somebody "
                "wrote into it; the table was not changed",
                hint="see who writes (DESCRIBE HISTORY), then make a new plan",
            )
        table.restore(
            target.version,
            commit_properties=deltalake.CommitProperties(
                custom_metadata={PLAN_KEY: target.plan_id},
                # A concurrent commit must fail this one: its rows would be restored away unseen.
                max_commit_retries=0,
                app_transactions=[deltalake.Transaction(target.app_id, target.batch_id)],
            ),
        )
    except deltalake.exceptions.CommitFailedError as e:
        raise RefusedError(
            f"{target.table} was written to at the same moment ({e}); the rollback did not happen",
            hint="see who else writes into the table, then make a new plan",
        ) from e
    except (deltalake.exceptions.DeltaError, OSError) as e:
        raise StorageError(
            f"{target.table} could not be restored to version {target.version}: {e}",
            hint="nothing was changed; if data files are gone (VACUUM), this version cannot be had any more",
        ) from e
    done = committed_by(target.table, target.plan_id)
    if done is None:
        raise StorageError(
            f"{target.table}: the restore to version {target.version} left no commit of plan {target.plan_id}",
            hint="look at the table's history before anything else; the checkpoint stays sealed",
        )
    log.info(
        "%s rolled back to version %d in version %d; it remembers batch %d",
        target.table,
        target.version,
        done,
        target.batch_id,
    )
    return done


def committed_by(table: Location, plan_id: str) -> int | None:
    """The version that a plan of ours committed, or ``None``."""
    history = read_table_history(table)
    return next((c.version for c in reversed(history.commits) if c.plan_id == plan_id), None)


def needs_spark(rollback: SinkRollback) -> str | None:
    """The table feature because of which Spark has to carry a rollback out, or ``None``."""
    return rollback.feature


def _client() -> ModuleType:
    try:
        import deltalake
        import deltalake.exceptions
    except ImportError as e:
        raise MissingExtraError(
            "rolling a Delta table back needs deltalake, which is not installed",
            hint="pip install 'airflow-ckpt-provider[delta]', or choose another exit for the sink",
        ) from e
    return deltalake
