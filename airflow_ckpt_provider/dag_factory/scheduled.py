"""The DAGs that run by themselves: backup with verify, retention, report, watch, incidents, drill."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, get_current_context, task, task_group

from airflow_ckpt_provider import jobs
from airflow_ckpt_provider.dag_factory.base import DagsOfStreams
from airflow_ckpt_provider.dag_factory.told import ToldError, tell
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.expire import CheckpointExpireOperator
from airflow_ckpt_provider.operators.fleet import FleetReportOperator
from airflow_ckpt_provider.operators.verify import CheckpointVerifyOperator
from airflow_ckpt_provider.sensors.kafka_time_to_loss import KafkaTimeToLossSensor
from airflow_ckpt_provider.streams.parameters import parameters_of
from airflow_ckpt_provider.streams.stream import Stream
from airflow_ckpt_provider.streams.streams import as_reported
from airflow_ckpt_provider.triggers.stream_event import StreamEventTrigger, incidents_of
from airflow_ckpt_provider.units import exact_duration, format_duration

#: Streams of one DAG that are worked on at the same time.
AT_ONCE = 16


class ScheduledDags(DagsOfStreams):
    """Makes the DAGs that run by themselves."""

    #: When the report is made, and how often the brokers are asked.
    report_every = timedelta(hours=1)
    drill_schedule = "@weekly"
    retention_schedule = "30 3 * * *"

    def scheduled(self) -> Iterator[DAG]:
        """Make them."""
        yield from self.backups()
        kept = [stream for stream in self.streams.values() if stream.retention]
        if kept:
            yield self.retention(kept)
        yield self.report()
        watched = [stream for stream in self.streams.values() if stream.kafka]
        if watched:
            yield self.watch(watched)
        yield self.incidents()
        drilled = [stream for stream in self.streams.values() if stream.drill]
        if drilled:
            yield self.drills(drilled)

    def backups(self) -> Iterator[DAG]:
        """One DAG for each schedule: backup, then verify, for each stream."""
        groups: dict[str | timedelta, list[Stream]] = {}
        for stream in self.streams.values():
            schedule = stream.schedule
            one = " ".join(schedule.split()) if isinstance(schedule, str) else schedule
            groups.setdefault(one, []).append(stream)
        for schedule, streams in groups.items():
            yield self.dag(
                f"backup_{_word(schedule)}",
                self._backup(streams),
                streams=streams,
                schedule=schedule,
                # Another schedule is another DAG: paused, as Airflow makes it, it would silently end the backups.
                is_paused_upon_creation=False,
            )

    def _backup(self, streams: Sequence[Stream]) -> Any:
        def make() -> None:
            @task_group(group_id="stream")
            def each(stream: str) -> None:
                backup = self.task(
                    CheckpointBackupOperator,
                    "back_up",
                    stream=stream,
                    reason="scheduled",
                    tags={"dag": "{{ dag.dag_id }}", "run": "{{ run_id }}"},
                    skip_if_unchanged=True,
                    map_index_template="{{ task.stream }}",
                    max_active_tis_per_dagrun=AT_ONCE,
                )
                verify = self.task(
                    CheckpointVerifyOperator,
                    "verify",
                    stream=stream,
                    backup_id=backup.output["backup_id"],  # type: ignore[index]  # an XComArg can be
                    map_index_template="{{ task.stream }}",
                    max_active_tis_per_dagrun=AT_ONCE,
                )
                backup >> verify

            each.expand(stream=_names(streams))

        return make

    def retention(self, streams: Sequence[Stream]) -> DAG:
        """Every night: remove the backups that no rule keeps, and what they needed."""

        def make() -> None:
            @task_group(group_id="stream")
            def each(stream: str) -> None:
                self.task(
                    CheckpointExpireOperator,
                    "expire",
                    stream=stream,
                    mode="apply",
                    prune=True,
                    max_unused="5%",
                    reason="scheduled",
                    map_index_template="{{ task.stream }}",
                    max_active_tis_per_dagrun=AT_ONCE,
                )

            each.expand(stream=_names(streams))

        return self.dag("retention", make, streams=streams, schedule=self.retention_schedule)

    def report(self) -> DAG:
        """Every hour: the status of all streams, and what is beyond their limits."""

        def make() -> None:
            stores: dict[tuple[str | None, str | None], list[str]] = {}
            for stream in self.streams.values():
                at = (stream.repository, stream.repository_connection)
                stores.setdefault(at, []).append(stream.name)
            for number, names in enumerate(stores.values()):
                self.task(
                    FleetReportOperator,
                    f"report_{number}" if number else "report",
                    streams=names,
                    retries=0,
                )

        return self.dag("report", make, streams=list(self.streams.values()), schedule=self.report_every)

    def watch(self, streams: Sequence[Stream]) -> DAG:
        """Every hour, and for that hour: fail as soon as Kafka keeps what is unread for less than the stream may be down.

        A stream without a Kafka source is skipped, unless it declares one.
        """

        def make() -> None:
            @task_group(group_id="stream")
            def each(stream: str, if_absent: str) -> None:
                left = self.task(
                    KafkaTimeToLossSensor,
                    "time_to_loss",
                    stream=stream,
                    if_absent=if_absent,
                    timeout=self.report_every.total_seconds() * 0.9,
                    soft_fail=True,
                    deferrable=True,
                    map_index_template="{{ task.stream }}",
                )

                @task(task_id="alarm", retries=0, map_index_template="{{ task.op_kwargs['stream'] }}")
                def alarm(stream: str, report: dict[str, Any]) -> None:
                    declared = self.streams.named(stream)
                    tell(declared, get_current_context())
                    raise ToldError(too_little(declared, report))

                alarm(stream=stream, report=left.output)  # type: ignore[arg-type]  # an XComArg becomes one

            # The connection may be that of all streams: one that does not say that it reads Kafka need not.
            each.expand_kwargs(
                [
                    {"stream": stream.name, "if_absent": "fail" if "kafka" in stream.sources else "skip"}
                    for stream in streams
                ]
            )

        return self.dag("watch", make, streams=streams, schedule=self.report_every)

    def incidents(self) -> DAG:
        """Started by the triggerer when a stream is stuck, fell behind, went silent, or had its history rewritten."""
        asset = Asset(
            f"{self.prefix}_incidents",
            watchers=[AssetWatcher(name=name, trigger=_watch(stream)) for name, stream in self.streams.items()],
        )

        def make() -> None:
            @task(task_id="tell")
            def tell_of_incidents() -> list[dict[str, Any]]:
                context = get_current_context()
                by_place: dict[str, list[Stream]] = {}
                for stream in self.streams.values():
                    by_place.setdefault(as_reported(stream.checkpoint), []).append(stream)
                payloads = incidents_of(context["triggering_asset_events"][asset])
                for payload in payloads:
                    print(f"{payload['incident']}: {payload['message']}\nHINT: {payload['hint']}")
                    # Better too many than nobody, where the store spells it in a way of its own.
                    for stream in by_place.get(as_reported(payload["checkpoint"]), self.streams.values()):
                        tell(stream, context)
                return payloads

            tell_of_incidents()

        return self.dag("incidents", make, streams=list(self.streams.values()), schedule=[asset])

    def drills(self, streams: Sequence[Stream]) -> DAG:
        """Every week: restore the newest backup of each stream to a scratch place and run the code of production on it."""
        from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

        def make() -> None:
            SparkSubmitOperator.partial(
                task_id="drill",
                application=os.path.join(os.path.dirname(jobs.__file__), "rehearse.py"),
                name="restore drill",
                map_index_template="{{ task.application_args[2] }}",
                max_active_tis_per_dagrun=1,
            ).expand_kwargs(
                [
                    {
                        "conn_id": stream.spark_conn_id or "spark_default",
                        "application_args": _drill(stream),
                        "params": {"stream": stream.name},
                    }
                    for stream in streams
                ]
            )

        return self.dag("drill", make, streams=streams, schedule=self.drill_schedule)


def too_little(stream: Stream, report: Mapping[str, Any]) -> str:
    """What the alarm of a watch says.

    :param stream: the stream.
    :param report: of the look that fired, as ``KafkaTimeToLossSensor`` returns it.
    """
    bounds = [source.get(key) for source in report["sources"] for key in ("seconds_left", "seconds_left_estimate")]
    left = min((bound for bound in bounds if bound is not None), default=None)
    wanted = stream.watch.min_time_to_loss or stream.max_downtime
    said = [f"{report['verdict']}: {reason}" for reason in report["reasons"]]
    if left is not None:
        than = f", less than {format_duration(wanted)}" if wanted else ""
        said.append(f"Kafka keeps what it has not read for {format_duration(left)} more{than}")
    return f"{stream}: {'; '.join(said) or report['verdict']}"


def _names(streams: Sequence[Stream]) -> list[str]:
    return [stream.name for stream in streams]


def _drill(stream: Stream) -> list[str]:
    drill, repository = stream.drill, stream.repository
    if drill is None or repository is None:
        raise RefusedError(f"{stream} declares no drill of a repository", hint="declare drill and repository")
    return [
        repository,
        *("--name", stream.repository_name),
        "--drill",
        *("--build", drill.build),
        *("--scratch", drill.scratch),
        *("--checkpoint", stream.checkpoint),
        *("--output-mode", drill.output_mode),
        *("--batches", str(drill.batches)),
        *("--made-by", "{{ dag.dag_id }}/{{ run_id }}"),
    ]


def _watch(stream: Stream) -> StreamEventTrigger:
    watch = stream.watch
    return StreamEventTrigger(
        checkpoint=stream.checkpoint,
        checkpoint_conn_id=parameters_of(stream).get("checkpoint_conn_id"),
        stuck_after=watch.stuck_after.total_seconds(),
        behind_after=watch.behind_after.total_seconds() if watch.behind_after else None,
        max_gap=watch.max_gap,
        silent_after=watch.silent_after.total_seconds() if watch.silent_after else None,
    )


#: What an id of a DAG cannot have, or what would make one id of two schedules.
_IN_AN_ID = str.maketrans({"*": "x", "/": "--", ",": ".", "#": "..", "?": "-x-"})


def _word(schedule: str | timedelta) -> str:
    """A schedule as a part of an id: ``daily``, ``1h``, ``30_2_x_x_x``; two schedules have two words."""
    if isinstance(schedule, timedelta):
        return exact_duration(schedule)
    return re.sub(r" +", "_", schedule.removeprefix("@")).translate(_IN_AN_ID)
