"""A Delta table as a sink: recognised by ``_delta_log/``, judged by its log, rolled back in one commit."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from airflow_ckpt_provider.errors import MissingExtraError, RefusedError, StorageError
from airflow_ckpt_provider.guards import delta_client
from airflow_ckpt_provider.guards.delta_log import interval, is_delta_table, read_delta_log
from airflow_ckpt_provider.sinks.data_files import missing_data_file, missing_for_version
from airflow_ckpt_provider.sinks.delta import equal_versions, judge_start
from airflow_ckpt_provider.sinks.delta_history import doubt_of, features_of, read_table_history
from airflow_ckpt_provider.sinks.delta_rollback import (
    TableTarget,
    committed_by,
    committed_in,
    kept_by,
    roll_back_table,
    shut_out,
)
from airflow_ckpt_provider.sinks.kinds import SinkChange, SinkContent, SinkKind, SinkStart
from airflow_ckpt_provider.sinks.named_tables import path_in_sql
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.report import SinkReport
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.sinks.table_history import TableHistory
from airflow_ckpt_provider.storage.location import Location, plain_uri
from airflow_ckpt_provider.verdict import Verdict

log = logging.getLogger(__name__)

#: A property of a table: VACUUM deletes files that left the table longer ago. A week by default (Delta's documentation).
_RETENTION = "delta.deletedFileRetentionDuration"
#: Less than this, and a VACUUM may come before somebody decides; in seconds.
_A_DAY = 24 * 60 * 60
#: Plans for which this process has asked Spark: an application that is not heard of may still restore the table.
_asked_spark: set[str] = set()
_SAY_HOW = "say how Spark is run: --spark-submit 'spark-submit --packages io.delta:…', or spark_conn_id of the operator"


@dataclass(frozen=True, slots=True)
class DeltaTableContent(SinkContent):
    """A Delta table, as it was read.

    :param sink: the table, as the person names it.
    :param table: its log.
    """

    sink: Sink
    table: TableHistory

    @property
    def history(self) -> TableHistory:
        """Its log."""
        return self.table

    def verdict(self, start: SinkStart) -> SinkReport:
        """Judge a start; a rollback goes to a version whose files are all there."""
        remembered = beyond_the_log(self.sink, self.table, start.ids)
        report = judge_start(self.table, start, remembered=remembered)
        feature = report.rollback.feature if report.rollback else None
        if feature and start.ids.app_id not in (None, start.ids.current):
            return replace(report, rollback=None, obstacle=_remembered_by_code(feature, str(start.ids.app_id)))
        if self.sink.place is None:
            return report
        if report.verdict is Verdict.SAFE and (lost := _lost_file(self.sink.place)):
            return replace(report, verdict=Verdict.UNKNOWN, reasons=(lost,))
        return _with_whole_version(self.sink.place, self.table, report)


class DeltaSink(SinkKind):
    """Delta tables. See :mod:`~airflow_ckpt_provider.sinks.delta_rollback` for what a rollback commits."""

    kind = "delta"
    has_identity = True

    def look(self, sink: Sink) -> DeltaTableContent | None:
        """Read the table's log."""
        if sink.place is None or not is_delta_table(sink.place):
            return None
        return DeltaTableContent(sink, described(sink.place, read_table_history(sink.place)))

    def check(self, change: SinkChange) -> None:
        """See that whoever restores the table is there, that nobody wrote into it, and that the version has its files."""
        rollback, report = change.rollback, change.report
        if rollback.feature and change.app_id != change.query_id:
            raise RefusedError(
                f"{report.uri}: {_remembered_by_code(rollback.feature, change.app_id)}",
                hint="rewind with --sink-policy keep",
            )
        if rollback.feature and change.sink.by_spark is None:
            raise RefusedError(
                f"{report.uri} has the feature {rollback.feature}, with which deltalake cannot restore it",
                hint=_SAY_HOW,
            )
        place = _table(change)
        history = read_table_history(place)
        plans = {commit.plan_id for commit in history.commits}
        if change.continued and change.undo_id in plans:
            raise brought_forward(change)
        if kept_by(place, history, change.plan_id) is not None:
            return
        _expect_same_table(change, history)
        if history.newest != rollback.from_version:
            raise RefusedError(
                f"{place} is at version {history.newest}, and the plan was made at version {rollback.from_version}: somebody "
                "wrote into it; the table was not changed",
                hint="see who writes (DESCRIBE HISTORY), then make a new plan",
            )
        if gone := _gone(place, history, rollback.to_version):
            raise RefusedError(
                f"{gone}; the table was not changed",
                hint="make a new plan: it goes to a version with the same rows that is whole, or says that there is none",
            )

    def roll_back(self, change: SinkChange) -> int | None:
        """One commit that restores the version and what the table remembers of the query."""
        rollback = change.rollback
        if rollback.to_version is None or rollback.from_version is None:
            raise ValueError("the plan of a Delta table has versions")
        target = TableTarget(
            table=_table(change),
            version=rollback.to_version,
            app_id=change.app_id,
            batch_id=change.batch_id,
            plan_id=change.plan_id,
            storage_options=dict(change.sink.storage_options),
            older_ids=dict.fromkeys(change.report.memories, change.batch_id),
        )
        by_spark = change.sink.by_spark if rollback.feature else None
        if by_spark:
            _asked_spark.add(change.plan_id)
        return roll_back_table(
            target,
            expected=rollback.from_version,
            by_spark=by_spark,
            check_lease=change.check_lease,
            undo_command=change.undo_command,
        )

    def is_rolled_back(self, change: SinkChange) -> bool | None:
        """Whether the plan's commit is in the table. Without it that is not known once Spark was asked for it, or while the
        commit of an earlier attempt could still succeed.
        """
        if committed_by(_table(change), change.plan_id) is not None:
            return True
        if change.continued and read_table_history(_table(change)).newest == change.rollback.from_version:
            return None  # a suspended attempt may still commit
        return _not_by_spark(change, change.plan_id)

    def undo_needs(self, change: SinkChange) -> tuple[list[str], list[str]]:
        """Spark for some features; else files that VACUUM leaves for a while."""
        feature, uri, sink = change.rollback.feature, change.report.uri, change.sink
        needs = ["nobody may write into the table before"]
        if feature and sink.by_spark is None:
            return [], [f"{uri} has the feature {feature}: only Spark brings it forward again, and no Spark is named"]
        if feature:
            return [*needs, f"Spark brings the table forward again (feature {feature}): name it as for the rewind"], []
        try:
            properties = delta_client.read_properties(
                _table(change), storage_options=sink.storage_options
            ).configuration
        except StorageError as e:
            return [], [f"{e.message}; {e.hint}" if e.hint else e.message]
        words = properties.get(_RETENTION, "")
        kept = interval(words) if words else None
        if kept is not None and kept.total_seconds() < _A_DAY:
            needs.append(
                f"a VACUUM deletes files {words} after they left the table ({_RETENTION}): none may run before"
            )
        return needs, []

    def check_undo(self, change: SinkChange) -> None:
        """See that Spark is there where it takes it, that the roll-back is the newest version, and that no file is gone.

        A rewind that was not ended may have left a Spark behind that still restores the table: nothing shuts that out.
        """
        if change.rollback.feature and change.sink.by_spark is None:
            raise RefusedError(
                f"rewind {change.plan_id} rolled {change.report.uri} back by Spark, which has to bring it forward again too",
                hint=_SAY_HOW,
            )
        place, former = _table(change), change.rollback.from_version
        history = read_table_history(place)
        done = self._rolled_back_in(change, history)
        if done is None and change.rollback.feature and history.newest == former and not change.is_half_undone:
            raise RefusedError(
                f"rewind {change.plan_id} was not ended, and {place} has no RESTORE of it; a Spark that it started may still "
                "run, and would take out what is written later; nothing was changed",
                hint="run the same rewind again, which ends it, and undo that; or see that no Spark of it runs any more, make "
                f"any commit to the table, which lets one that waits refuse (ALTER TABLE {path_in_sql(place)} SET TBLPROPERTIES "
                f"('airflow-ckpt.undone' = '{change.plan_id}')), and run the same undo again",
            )
        if done is None or committed_in(history, change.undo_id) is not None or self._is_put_back(change, history):
            return
        if gone := _gone(place, history, former):
            raise RefusedError(
                f"{gone}: the table cannot be brought forward again; nothing was changed",
                hint=change.instead_of_undo("put the file back from a copy"),
            )

    def undo(self, change: SinkChange) -> int | None:
        """One commit that restores the version before the roll-back, and its memory.

        Killed before the table was rolled back, it is not known to be dead: a commit that changes nothing shuts it out. Where
        somebody has restored the table by hand already, only its memory is left to do.
        """
        rollback, report, place = change.rollback, change.report, _table(change)
        history = read_table_history(place)
        rolled_back = self._rolled_back_in(change, history)
        former, by_spark = rollback.from_version, change.sink.by_spark if rollback.feature else None
        if former is None:
            return None
        if is_put_back := rolled_back is not None and self._is_put_back(change, history):
            former = rolled_back = history.newest
        target = TableTarget(
            table=place,
            version=former,
            app_id=change.app_id,
            batch_id=next(b for b in (report.remembered, report.batch_id, change.newest) if b is not None),
            plan_id=change.undo_id,
            storage_options=dict(change.sink.storage_options),
            older_ids=dict(report.memories),
        )
        if rolled_back is None:
            if not rollback.feature and history.newest == former:
                shut_out(target, expected=former, check_lease=change.check_lease)
            return None
        if rollback.feature and is_put_back:
            return None  # Spark's RESTORE has changed nothing but rows
        if by_spark:
            _asked_spark.add(change.undo_id)
        return roll_back_table(target, expected=rolled_back, by_spark=by_spark, check_lease=change.check_lease)

    def is_undone(self, change: SinkChange) -> bool | None:
        """Whether the undo's commit is in the table; without it that is not known once Spark was asked for it."""
        return (
            True if committed_by(_table(change), change.undo_id) is not None else _not_by_spark(change, change.undo_id)
        )

    def _is_put_back(self, change: SinkChange, history: TableHistory) -> bool:
        """Whether somebody restored the rows of before the roll-back by hand, so that none of them has to be restored."""
        done, former = _done(change, history), change.rollback.from_version
        if (
            done is None
            or former is None
            or history.at(former) is None
            or committed_in(history, change.undo_id) is not None
        ):
            return False
        return history.left_by(done) is not None and history.left_by(former) is None

    def _rolled_back_in(self, change: SinkChange, history: TableHistory) -> int | None:
        """The version in which the table was rolled back, which still has to be its newest; ``None`` without one.

        It counts too where somebody restored by hand what was before, or where the undo was made.
        """
        place, done = _table(change), _done(change, history)
        newest, former = history.newest, change.rollback.from_version
        if done is None:
            _expect_same_table(change, history)
        commit = history.at(done) if done is not None else None
        if commit and commit.plan_id != change.plan_id:
            raise RefusedError(
                f"{place} is not the table that rewind {change.plan_id} rolled back: its {commit.describe()} is not by that "
                "plan; nothing was changed",
                hint=f"name the sink of the rewind: --sink {change.report.uri}",
            )
        if done is None and former is not None and history.first > former + 1:
            raise RefusedError(
                f"the log of {place} begins at version {history.first}, so nobody knows whether rewind {change.plan_id} rolled "
                f"the table back from version {former}; nothing was changed",
                hint=None if change.is_half_undone else "run the same rewind again, which ends it",
            )
        undone = kept_by(place, history, change.undo_id)
        if done is not None and newest in equal_versions(history, done):
            return newest  # also where somebody has restored it by hand
        if done is not None and undone is None and not self._is_put_back(change, history):
            raise RefusedError(
                f"{place} was written to since rewind {change.plan_id}: it is at version {newest}, the roll-back was {done}",
                hint=change.instead_of_undo(
                    f"restore version {done}, without what was written since (RESTORE TABLE {path_in_sql(place)} TO VERSION AS "
                    f"OF {done})"
                ),
            )
        return int(done) if done is not None else None


def _done(change: SinkChange, history: TableHistory) -> int | None:
    """The version in which the plan rolled the table back, whatever happened since; ``None`` without one."""
    if change.record:
        return None if (version := change.record["table_version"]) is None else int(version)
    return committed_in(history, change.plan_id)


def brought_forward(change: SinkChange) -> RefusedError:
    """The error for a roll-back that somebody has begun to undo."""
    return RefusedError(
        f"{change.sink.name} was brought forward again by an undo of rewind {change.plan_id}, which was not ended",
        hint=f"run it again: `{change.undo_command}`",
    )


def _remembered_by_code(feature: str, app_id: str) -> str:
    """Why a table is not rolled back that only Spark can restore, and that knows the query by an id which its code names."""
    return (
        f"it has the feature {feature}, with which deltalake cannot restore it, and after a RESTORE by Spark it still remembers "
        f"the batches of txnAppId {app_id}, which only the query's code can change: keep the sink, restore the table by Spark "
        "(airflow_ckpt_provider/jobs/roll_table_back.py), and give the code another txnAppId before it is started"
    )


def _not_by_spark(change: SinkChange, plan_id: str) -> bool | None:
    """``False``: the table was not changed. ``None``: Spark was asked, perhaps by an earlier run, and may still change it."""
    return None if change.rollback.feature and (change.continued or plan_id in _asked_spark) else False


def _table(change: SinkChange) -> Location:
    """The table's directory.

    :raises RefusedError: the sink that was named has none.
    """
    if change.sink.place is None:
        raise RefusedError(
            f"{change.report.uri} was a Delta table when the plan was made, and {change.sink.name} is none",
            hint=f"name it: --sink {change.report.uri}",
        )
    return change.sink.place


def _expect_same_table(change: SinkChange, history: TableHistory) -> None:
    """See that a table that is not rolled back is the one of the plan: by its id, and where that is not known by its place.

    :raises RefusedError: it is another one.
    """
    place, planned = _table(change), change.report.uri
    table_id = history.table_id or described(place, history).table_id
    is_same = (
        table_id == change.table_id if table_id and change.table_id else plain_uri(place.uri) == plain_uri(planned)
    )
    if not is_same:
        raise RefusedError(
            f"{history.uri} is another table now (id {table_id or 'not known'}; the plan was made for "
            f"{change.table_id or planned}): it was dropped and recreated, or it is not the sink of the plan; it was not changed",
            hint=f"name the sink of the plan ({planned}); if it was created again, make a new plan",
        )


def _gone(place: Location, history: TableHistory, version: int | None) -> str | None:
    """Which data file of a version is gone, in words; ``None`` if there is none missed.

    Of those that the newest version still has only a few are looked for: ``VACUUM`` does not delete them.
    """
    if version is None:
        return None
    gone = missing_for_version(place, history, version) or missing_data_file(place, version)
    return f"version {version} of {place} needs the data file {gone}, which is gone" if gone else None


def _lost_file(place: Location) -> str | None:
    """Which of the newest data files of a table is gone, in words, or why that is not known; ``None`` if all are there."""
    try:
        gone = missing_data_file(place)
    except StorageError as e:
        return f"whether the table's newest data files are there is not known: {e.message}; give the credentials to read them"
    if gone is None:
        return None
    return (
        f"the table needs the data file {gone}, which is gone: its rows are missing, and readers fail; put it back from a copy, "
        "or write its rows again"
    )


def described(place: Location, history: TableHistory) -> TableHistory:
    """A history whose commits do not say the table's protocol and properties, with those of its log checkpoint.

    Unchanged where they say it, and where the checkpoint cannot be read: see
    :attr:`~airflow_ckpt_provider.sinks.table_history.TableHistory.is_described`.
    """
    if history.is_described:
        return history
    try:
        state = delta_client.read_state(read_delta_log(place), history.newest)
    except (MissingExtraError, delta_client.UnreadableTableError) as e:
        log.info("%s", e)
        return history
    features = history.features | features_of({"configuration": state.configuration, "schemaString": state.schema}, {})
    features |= state.features
    return replace(
        history,
        doubt=doubt_of(features),
        table_id=history.table_id or state.table_id,
        configuration=state.configuration,
        features=features,
        is_described=True,
    )


def beyond_the_log(sink: Sink, history: TableHistory, ids: QueryIds) -> dict[str, int | None]:
    """What the table remembers of the ids that its log does not name any more: id -> newest batch, or ``None``.

    Empty where the log is whole, and where ``deltalake``, which reads log checkpoints, is not installed.
    """
    found: dict[str, int | None] = {}
    if sink.place is None or history.format != "delta" or history.is_whole:
        return found
    for id_ in ids.all:
        if history.newest_of(id_) is None:
            try:
                found[id_] = delta_client.remembered(sink.place, id_, storage_options=sink.storage_options)
            except MissingExtraError as e:
                log.info("%s", e)
    return found


def _with_whole_version(place: Location, history: TableHistory, report: SinkReport) -> SinkReport:
    """Choose, among the versions with the same rows, one that the log still has and whose files are all there.

    ``VACUUM`` deletes what left the table. Log clean-up may leave commits below the oldest checkpoint of the log.
    """
    rollback = report.rollback
    if rollback is None or rollback.to_version is None:
        return report
    commits = read_delta_log(place)
    obstacles: list[str] = []
    for version in equal_versions(history, rollback.to_version):
        if not commits.can_rebuild(version):
            obstacles.append(
                f"version {version} cannot be put together any more: the log lacks commits before it, and has no checkpoint that "
                "is old enough"
            )
        elif missing := missing_for_version(place, history, version):
            obstacles.append(
                f"version {version} needs the data file {missing}, which is gone (VACUUM): no version with these rows is whole"
            )
        else:
            return replace(report, rollback=replace(rollback, to_version=version))
    return replace(report, rollback=None, obstacle=obstacles[0])
