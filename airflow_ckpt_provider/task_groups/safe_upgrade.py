"""Upgrade a stateful stream: rehearse, approve, deploy, observe, and roll back by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import BaseOperator, TaskGroup, TriggerRule

from airflow_ckpt_provider.configuration import configured_streams
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.kafka_retention_guard import (
    KafkaRetentionGuardOperator,
    KafkaRetentionRestoreOperator,
)
from airflow_ckpt_provider.operators.renamed import deprecated, renamed
from airflow_ckpt_provider.operators.reset import NewCheckpointOperator
from airflow_ckpt_provider.operators.upgrade import (
    UpgradeBeginOperator,
    UpgradeGoOperator,
    UpgradeKeepOperator,
    UpgradePlanOperator,
    UpgradeReportOperator,
)
from airflow_ckpt_provider.operators.upgrade_modes import (
    LAST_STATE,
    SAVEPOINT,
    STATELESS,
    check_mode,
    check_names,
    check_several,
    left_out,
    steps_after_approval,
)
from airflow_ckpt_provider.operators.upgrade_operator import (
    RENAMED_POLICIES,
    UpgradeSinkOperator,
    task_part,
)
from airflow_ckpt_provider.operators.upgrade_switch import (
    UpgradeGateOperator,
    UpgradeReleaseOperator,
    UpgradeRestoreOperator,
)
from airflow_ckpt_provider.redaction import redacted
from airflow_ckpt_provider.sensors.commit_gap import CommitGapSensor
from airflow_ckpt_provider.sensors.stream_health import StreamHealthSensor
from airflow_ckpt_provider.streams.stream import Stream
from airflow_ckpt_provider.streams.streams import Streams
from airflow_ckpt_provider.task_groups.upgrade.own_tasks import MakeTask, OwnTasks, in_turn, one_after_the_other
from airflow_ckpt_provider.task_groups.upgrade.results import Results, of_stream
from airflow_ckpt_provider.task_groups.upgrade.user_tasks import (
    OF_THE_RUN,
    check_skips,
    rehearsals,
    run_while_under_way,
)


def safe_upgrade(
    group_id: str = "safe_upgrade",
    *,
    checkpoint: str | None = None,
    repository: str | None = None,
    stream: str | Stream | None = None,
    streams: Sequence[str | Stream] = (),
    application: str | None = None,
    streams_file: str | Streams | None = None,
    stop: MakeTask | None,
    deploy: MakeTask,
    start: MakeTask,
    roll_back_code: MakeTask,
    mode: str = SAVEPOINT,
    name: str | None = None,
    version: str | None = None,
    reason: str | None = None,
    checkpoint_conn_id: str | None = None,
    repository_conn_id: str | None = None,
    sink: str | Sequence[str] | None = None,
    sink_conn_id: str | Sequence[str | None] | None = None,
    sink_policy: str | Sequence[str] | Mapping[str, Any] = "rollback",
    sink_settings: Mapping[str, Any] | None = None,
    accept: Sequence[str] | str = (),
    kafka_config_id: str | None = None,
    planned_downtime: str = "30m",
    preflight: str | None = "fail",
    raise_retention_to_at_most: str | None = None,
    description: str | Mapping[str, str] | None = None,
    old_description: str | Mapping[str, str] | None = None,
    fail_on: str | None = "forbidden",
    rehearse: MakeTask | Mapping[str, MakeTask] | None = None,
    shadow: MakeTask | None = None,
    rehearsal_report: str | Mapping[str, str] | None = None,
    accept_rehearsal: str | None = None,
    report_conn_id: str | None = None,
    approval: bool = True,
    approval_timeout: timedelta = timedelta(hours=4),
    reset: Mapping[str, Any] | None = None,
    stop_new: MakeTask | None = None,
    start_old: MakeTask | None = None,
    checks: MakeTask | None = None,
    health: Mapping[str, Any] | None = None,
    quiet_for: float = 5.0,
    rest_timeout: float = 1800.0,
    stuck_after: float = 120.0,
    deferrable: bool = False,
    retries: int = 4,
    retry_delay: timedelta = timedelta(seconds=30),
    accept_foreign_loss: bool | str | None = None,
    **old_names: Any,
) -> TaskGroup:
    """Make the tasks of an upgrade. Call it inside a DAG.

    Your own tasks stop, deploy, start and roll back the code: any operator. Each is given as a function that makes it, because a
    stop and a start are needed twice.

    .. code-block:: python

        from airflow.providers.standard.operators.bash import BashOperator

        safe_upgrade(
            checkpoint="s3://lake/checkpoints/orders",
            repository="s3://backups/streams",
            sink="s3://lake/tables/orders",
            # A blank at the end, if one ends in .sh: Airflow takes it for the file of a template.
            stop=lambda task_id: BashOperator(task_id=task_id, bash_command="./stop.sh orders"),
            deploy=lambda task_id: BashOperator(task_id=task_id, bash_command="./deploy.sh orders 2.7"),
            start=lambda task_id: BashOperator(task_id=task_id, bash_command="./start.sh orders"),
            roll_back_code=lambda task_id: BashOperator(task_id=task_id, bash_command="./deploy.sh orders 2.6"),
        )

    Until the task ``stop`` nothing is changed; before it, the way back is judged by a dry run. From it to ``start`` the
    checkpoint is sealed: no cluster manager, retry or colleague starts either version, and a stream that its own stop did not
    stop ends at its batch boundary. Whatever fails, is skipped or times out from then on is rolled back: the new code is
    stopped, checkpoint, state and sink become what they were, the old code is put in place and started, and the task ``report``
    fails with what happened. Every task can be cleared: the run continues from there. Once ``take_back`` has found something to
    put back, the run neither lets the new code start nor keeps it. Where ``stop_new`` fails, the way back waits for silence that
    proves the stop; once you know that the new code is stopped, mark that task as successful and clear ``restore``.

    With ``streams`` or ``application`` the streams are those of one application: it is stopped and started once, and each stream
    is judged, sealed, drained, backed up and watched by itself. All are let start, kept and put back together.

    .. seealso:: :doc:`/howto/safe-upgrade`, and :doc:`/howto/application` for several streams

    :param group_id: id of the group.
    :param checkpoint: URI of the checkpoint. (templated)
    :param repository: URI of the repository for backups and the record of the upgrade. (templated)
    :param stream: name of a declared stream, for all that is not given here: places, connections, sinks, the driver's logs.
        (templated)
    :param streams: the streams of one application, each as ``stream`` has it; of the modes ``savepoint`` and ``last-state``.
    :param application: all streams that are declared with this application; the file is read when the DAG is parsed.
    :param streams_file: the file that declares them, or streams of Python; ``None``: that of ``streams`` in the section
        ``[ckpt]``.
    :param stop: makes the task that stops the stream; ``None`` in the mode ``last-state``.
    :param deploy: makes the task that puts the new code in place.
    :param start: makes the task that starts whatever code is in place; it returns once the driver runs.
    :param roll_back_code: makes the task that puts the old code back in place, whether or not the new one was deployed.
    :param mode: ``"savepoint"``: stop, drain, back up. ``"last-state"``: the job is dead already; from the newest committed
        batch. ``"stateless"``: a new checkpoint at the kept position. ``"shadow"``: as ``savepoint``, after the new code has
        run beside the old one until it had caught up and gave equal rows.
    :param name: name of the stream in the repository; ``None``: the one that the checkpoint has there, else a
        new one. (templated)
    :param version: what is deployed, in words. (templated)
    :param reason: why, for the audit record. (templated)
    :param checkpoint_conn_id: Airflow connection to reach the checkpoint; ``None``: the environment's own credentials.
        (templated)
    :param repository_conn_id: Airflow connection to reach the repository; ``None`` likewise. (templated)
    :param sink: what the stream writes to, as for
        :class:`~airflow_ckpt_provider.operators.rewind.CheckpointRewindOperator`. (templated)
    :param sink_conn_id: Airflow connection to read the sink's log. (templated)
    :param sink_policy: on the way back: ``"rollback"`` takes the rows of the new code out of the sink, ``"keep"`` leaves
        them; of several sinks one for all, or a list with one for each; of several streams also a dictionary with the names of
        streams. Where the way back would fail ``begin`` fails, and names
        the reason and the name by which it is accepted. (templated)
    :param sink_settings: more for the way back: ``txn_app_id``, ``sink_options``, ``spark_conn_id``, ``spark_settings``,
        ``databricks_conn_id``, ``warehouse_id``.
    :param accept: words that accept an obstacle on the way back, as ``begin`` prints them: ``"no_way_back"``, ``"foreign_loss"``,
        ``"sink_unknown"``. (templated)
    :param kafka_config_id: Airflow connection of type ``kafka``; ``None``: whether Kafka keeps the data is not known. (templated)
    :param planned_downtime: how long the stream may be down: less than the sources keep what it has not read. (templated)
    :param preflight: ``"fail"`` where the sources would not outlast that, or it is not known; ``"warn"``: only say so on the
        plan; ``None``: not asked.
    :param raise_retention_to_at_most: raise ``retention.ms`` of the topics for the downtime, to no more than this, such as
        ``"7d"``, and put it back at the end; ``None``: leave it. (templated)
    :param description: URI of the description of the new code (``jobs/describe_query.py``); ``None``: not compared. Of several
        streams a dictionary with their names, as for ``old_description``, ``rehearse`` and ``rehearsal_report``. (templated)
    :param old_description: URI of the description of the old code. (templated)
    :param fail_on: what the comparison fails on, as for
        :class:`~airflow_ckpt_provider.operators.compatibility.CompatibilityOperator`. (templated)
    :param rehearse: makes the task that runs ``jobs/rehearse.py`` on the newest backup; ``None``: not rehearsed.
    :param shadow: makes the task that runs it with ``--follow``, in the mode ``shadow``.
    :param rehearsal_report: URI of the report that these write, shown for approval. (templated)
    :param accept_rehearsal: verdict of the rehearsal that is accepted beside ``SAFE``: ``"UNKNOWN"`` where other rows are the
        purpose of the upgrade; the rehearsal is then run with ``--report-only``. (templated)
    :param report_conn_id: Airflow connection to reach descriptions and report. (templated)
    :param approval: ask a person, with the plan and the rehearsal in the form.
    :param approval_timeout: after this nobody has approved, and nothing is changed.
    :param reset: in the mode ``stateless``: more for
        :class:`~airflow_ckpt_provider.operators.reset.NewCheckpointOperator`, such as ``sources``. The reader options of the
        new query are the result ``plan`` of the task ``positions``, which ``deploy`` and ``start`` can take from XCom.
    :param stop_new: makes the task that stops the new code; ``None``: as ``stop``, or by the seal alone.
    :param start_old: makes the task that starts the old code; ``None``: as ``start``.
    :param checks: makes the task with your own checks of the new rows, after the health gate; it fails where they do.
    :param health: what :class:`~airflow_ckpt_provider.sensors.stream_health.StreamHealthSensor` is given: ``new_batches``,
        ``warm_up``, ``duration_within``, ``input_within``, ``progress_log``, ``timeout``, ….
    :param quiet_for: seconds without a change after which the stopped stream is drained.
    :param rest_timeout: seconds in which it has to be.
    :param stuck_after: seconds without a write after which a batch that was begun is given up: longer than the longest batch,
        should your stop not work. Counts on the way back, and in the mode ``last-state``.
    :param deferrable: wait in the triggerer.
    :param retries: of the tasks that this group makes itself. Together longer than the 90 s after which the lease of a backup
        on a lost worker is free.
    :param retry_delay: of these.
    :param accept_foreign_loss: deprecated: ``accept=["foreign_loss"]``. (templated)
    :param old_names: deprecated names of parameters: ``sink_exit``.
    :raises RefusedError: the parameters do not go together.
    """
    from airflow_ckpt_provider.operators.compatibility import CompatibilityOperator
    from airflow_ckpt_provider.operators.preflight import RecoveryPreflightOperator

    check_mode(mode, is_stopped=stop is not None, has_shadow=shadow is not None)
    if application is not None:
        streams = (*streams, *_declared(streams_file).of_application(application))
    if streams:
        of_one = {"stream": stream, "checkpoint": checkpoint, "repository": repository, "name": name, "sink": sink}
        check_several([task_part(each) for each in streams], mode, of_one)
        names = set(map(str, streams))
        check_names(names, sink_policy=sink_policy)
        check_names(
            names,
            every=True,
            description=description,
            old_description=old_description,
            rehearse=rehearse,
            rehearsal_report=rehearsal_report,
        )
    elif stream is None and not (checkpoint and repository):
        raise RefusedError("checkpoint or repository is missing", hint="give both, or stream")
    sink_policy = renamed(
        old_names, old="sink_exit", new="sink_policy", value=sink_policy, default="rollback", values=RENAMED_POLICIES
    )
    if old_names:
        raise TypeError(f"safe_upgrade() got an unexpected keyword argument {next(iter(old_names))!r}")
    if accept_foreign_loss is not None:
        deprecated("accept_foreign_loss", instead='accept=["foreign_loss"]')
    raises = raise_retention_to_at_most is not None
    ours = OwnTasks(
        where={"checkpoint": checkpoint, "checkpoint_conn_id": checkpoint_conn_id},
        kept={"repository": repository, "repository_conn_id": repository_conn_id, "name": name},
        every={"retries": retries, "retry_delay": retry_delay, "streams_file": streams_file},
        stream=stream,
        streams=tuple(streams),
    )
    # The guard's own default would be the connection kafka_default.
    kafka: dict[str, Any] = {"kafka_config_id": kafka_config_id} if kafka_config_id else {}
    rest = {"condition": "drained", "quiet_for": quiet_for, "poll_interval": quiet_for, "timeout": rest_timeout}
    health = {"timeout": 3600.0, "catching_up": True, **(health or {})}
    logs = {key: health[key] for key in ("progress_log", "error_log", "progress_log_conn_id") if key in health}
    sink_and_policy = {
        "sink": sink,
        "sink_conn_id": sink_conn_id,
        "sink_policy": sink_policy,
        "accept": accept,
        **(sink_settings or {}),
    }
    anew = {
        "way": "keep-position",
        "sink": sink,
        "sink_conn_id": sink_conn_id,
        "accept": accept,
        "kafka_config_id": kafka_config_id,
        **(reset or {}),
    }
    results = Results(group_id)
    with TaskGroup(group_id, tooltip=f"upgrade, {mode}") as group:
        before = one_after_the_other(
            ours.all(
                UpgradeBeginOperator,
                "begin",
                mode=mode,
                version=version,
                driver_logs=logs,
                **sink_and_policy,
                skipped=left_out(preflight, description, rehearse or shadow, approval, checks),
            ),
            preflight
            and ours.look(
                RecoveryPreflightOperator,
                "preflight",
                kafka_config_id=kafka_config_id,
                # A retention that is raised later on need not be long enough yet.
                max_downtime=None if raises else planned_downtime,
                on_finding=preflight,
            ),
            ours.keep(
                CheckpointBackupOperator,
                "backup",
                kafka_config_id=kafka_config_id,
                current=True,
                reason="before an upgrade",
            ),
            description
            and ours.look(
                CompatibilityOperator,
                "compatible",
                of_stream(description, "description"),
                of_stream(old_description, "old_description"),
                description_conn_id=report_conn_id,
                fail_on=fail_on,
            ),
            # What somebody has to accept of the new checkpoint is asked for while the stream still runs.
            mode == STATELESS
            and ours.keep(NewCheckpointOperator, "new_positions", mode="plan", must_be_accepted=True, **anew),
            rehearse and rehearsals(rehearse),
            shadow and shadow("shadow"),
            ours.all(
                UpgradePlanOperator,
                "plan",
                rehearsal_report=rehearsal_report,
                rehearsal_conn_id=report_conn_id,
                accept_rehearsal=accept_rehearsal,
                steps=steps_after_approval(mode, sink_policy, raises=raises, checks=bool(checks)),
            ),
            approval
            and ApprovalOperator(
                task_id="approve",
                subject=f"Upgrade {', '.join(map(str, streams)) or redacted(str(stream or checkpoint))}?",
                body=f"{{{{ {results.of('plan', 'markdown')} }}}}",
                defaults="Reject",
                response_timeout=approval_timeout,
            ),
            raises
            and in_turn(
                ours.look(
                    KafkaRetentionGuardOperator,
                    "raise_retention",
                    **kafka,
                    max_downtime=planned_downtime,
                    raise_retention=True,
                    raise_retention_to_at_most=raise_retention_to_at_most,
                )
            ),
            ours.all(UpgradeGoOperator, "go", **sink_and_policy),
        )
        # From here on whatever does not succeed is rolled back.
        switch = one_after_the_other(
            ours.stopped(before[-1], stop, "stop", "seal"),
            ours.look(
                CommitGapSensor,
                "drained",
                deferrable=deferrable,
                # A dead stream may have left a batch, which the new code ends.
                on_stuck="pass" if mode == LAST_STATE else "fail",
                stuck_after=stuck_after if mode == LAST_STATE else 1800.0,
                **rest,
            ),
            ours.keep(
                CheckpointBackupOperator,
                "final_backup",
                kafka_config_id=kafka_config_id,
                # Cleared after the stream has continued, it takes another one.
                current=True,
                # By these the way back finds it, where `release` has not noted it: upgrade/drained.py.
                tags={"upgrade": "{{ dag.dag_id }}/{{ run_id }}", "drained": "true"},
                reason="drained, before an upgrade",
            ),
            mode == STATELESS
            and ours.keep(
                NewCheckpointOperator,
                "positions",
                mode="plan",
                seal_id=f"{{{{ {results.of('seal', 'plan_id')} }}}}",
                **anew,
            ),
            deploy("deploy"),
            ours.all(
                UpgradeReleaseOperator,
                "release",
                backup_id={
                    str(each): f"{{{{ {results.returned(f'final_backup.{task_part(each)}')}['backup_id'] }}}}"
                    for each in streams
                }
                or f"{{{{ {results.of('final_backup', 'backup_id')} }}}}",
                lift=mode != STATELESS,
                driver_logs=logs,
            ),
            mode == STATELESS
            and ours.keep(
                NewCheckpointOperator,
                "new_checkpoint",
                mode="apply",
                seal_id=f"{{{{ {results.of('seal', 'plan_id')} }}}}",
                query_is_stopped=results.succeeded("stop") if stop else False,
                # The stop may be any task, and not every one says when it ended; the seal follows it.
                stopped_since=f"{{{{ {results.ended('stop')} or {results.ended('seal')} or '' }}}}",
                quiet_for=quiet_for,
                **anew,
            ),
            start("start"),
            ours.look(
                StreamHealthSensor,
                "healthy",
                results.baseline("release"),
                deferrable=deferrable,
                **health,
            ),
            checks and checks("checks"),
            ours.all(UpgradeKeepOperator, "keep"),
        )
        # By the record, whatever became of the tasks: `keep` is done as soon as one before it has failed or was skipped.
        take_back = ours.all(UpgradeGateOperator, "take_back", trigger_rule=TriggerRule.ALL_DONE)
        switch[-1] >> take_back
        way_back = one_after_the_other(
            ours.stopped(take_back, stop_new or stop, "stop_new", "seal_again"),
            ours.look(
                CommitGapSensor,
                "at_rest",
                deferrable=deferrable,
                # Whatever the new code has left behind goes, and it may have left nothing.
                on_stuck="pass",
                stuck_after=stuck_after,
                missing_ok=True,
                **rest,
            ),
            roll_back_code("roll_back_code"),
            ours.all(
                UpgradeRestoreOperator,
                "restore",
                stopped_by="stop_new" if stop_new or stop else None,
                quiet_for=quiet_for,
                driver_logs=logs,
                **sink_and_policy,
            ),
            (start_old or start)("start_old"),
            ours.look(
                StreamHealthSensor,
                "healthy_old",
                results.baseline("restore"),
                deferrable=deferrable,
                **health,
            ),
        )
        ends = [switch[-1], take_back, way_back[-1]]
        report = ours.all(UpgradeReportOperator, "report", reason=reason)
        ends >> report
        if raises:
            back = ours.each(
                KafkaRetentionRestoreOperator,
                "retention_back",
                lambda name: {"raised": results.raised(f".{task_part(name)}" if name else "")},
                **kafka,
                trigger_rule=TriggerRule.ALL_DONE,
            )
            # Two streams may read one topic: the last one that raised it knows what the one before has set.
            ends >> in_turn(back, backwards=True) >> report
        check_skips(group)
        for task_id in OF_THE_RUN:
            if isinstance(own := group.children.get(group.child_id(task_id)), BaseOperator):
                run_while_under_way(own, report)
        for task in group.children.values():
            if isinstance(task, UpgradeSinkOperator):
                task.accept_foreign_loss = accept_foreign_loss
    return group


def _declared(streams_file: str | Streams | None) -> Streams:
    return streams_file if isinstance(streams_file, Streams) else configured_streams(streams_file)
