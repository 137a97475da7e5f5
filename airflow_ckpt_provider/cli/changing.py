"""What verbs that change a checkpoint have in common: its sink, its repository, proof that its query is stopped, and the plan."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial
from typing import Any

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.change.rest import RestRule
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Call, UsageError
from airflow_ckpt_provider.cli.spark_submit import restore_by_command, run_by_command
from airflow_ckpt_provider.cli.stop_probes import probes_of
from airflow_ckpt_provider.sinks.named_tables import UNITY, TableEngine
from airflow_ckpt_provider.sinks.sink import Sink, named_sinks
from airflow_ckpt_provider.sinks.spark_tables import SparkTables
from airflow_ckpt_provider.sinks.unity_catalog import UnityCatalog
from airflow_ckpt_provider.storage.location import Location


def sinks_of(call: Call) -> tuple[Sink, ...]:
    """The sinks that the arguments name; one that is unknown where they name none."""
    args = call.args
    command = getattr(args, "spark_submit", None)
    names = args.sink or [None]
    if command and args.spark_sink and len(names) > 1:
        raise UsageError(
            "--spark-sink names one of several sinks", hint="name the sinks as Spark does, and leave it out"
        )
    engines = engines_of(call, args.sink or ())
    ids = args.txn_app_id or [None]
    if len(ids) not in (1, len(names)) or (len(ids) == 1 and ids[0] == ""):
        raise UsageError(
            f"--txn-app-id is given {len(ids)} times for {len(names)} sinks"
            if len(ids) > 1
            else "--txn-app-id is empty",
            hint="give one for all sinks, or one for each in their order ('' for one without)",
        )
    return named_sinks(
        [
            Sink.named(
                name,
                lambda uri: call.places(uri, role="sink"),
                app_id=app_id,
                storage_options=dict(args.sink_option),
                by_spark=restore_by_command(command, uri=args.spark_sink) if command else None,
                engines=engines,
            )
            for name, app_id in zip(names, ids * len(names) if len(ids) == 1 else ids, strict=True)
        ]
    )


def engines_of(call: Call, names: Iterable[str]) -> tuple[TableEngine, ...]:
    """What knows tables by their names, as the arguments say; nothing is connected to yet.

    :param names: of the sinks.
    """
    args = call.args
    found: list[TableEngine] = []
    warehouse, profile = getattr(args, "warehouse", None), getattr(args, "profile", None)
    if warehouse or profile or any(name.startswith(f"{UNITY}:") for name in names):
        found.append(_unity_catalog(profile, warehouse))
    if command := getattr(args, "spark_submit", None):
        found.append(SparkTables(run_by_command(command)))
    return tuple(found)


def _unity_catalog(profile: str | None, warehouse: str | None) -> UnityCatalog:
    from airflow_ckpt_provider.cli.databricks_client import DatabricksClient, open_client
    from airflow_ckpt_provider.lakeflow.queries import warehouse_queries

    @cache
    def client() -> DatabricksClient:
        return open_client(profile)

    def statement(text: str, *, once: bool) -> list[dict[str, Any]]:
        return warehouse_queries(client(), str(warehouse), once=once)(text)

    return UnityCatalog(
        lambda name: client().find_table(name),
        partial(statement, once=False) if warehouse else None,
        partial(statement, once=True) if warehouse else None,
    )


def sink_of(call: Call) -> Sink:
    """The only sink that the arguments name; unknown where they name none.

    :raises UsageError: they name several.
    """
    sinks = sinks_of(call)
    if len(sinks) > 1:
        raise UsageError(f"{len(sinks)} sinks are given, and this verb takes one", hint="give the one that it is about")
    return sinks[0]


def repository_place(call: Call, checkpoint: Location) -> Location:
    """The repository that the arguments name, else the one beside the checkpoint."""
    given = call.args.repository
    return call.places(given, role="repository") if given else default_repository(checkpoint)


def rest_rule(call: Call, checkpoint: Location) -> RestRule:
    """What counts as proof that the query is stopped.

    :param checkpoint: the checkpoint of the query.
    """
    args = call.args
    return RestRule(
        query_is_stopped=args.query_is_stopped,
        said_by=call.made_by,
        said=call.began,
        probes=probes_of(
            checkpoint,
            progress_log=call.places(args.progress_log, role="progress_log") if args.progress_log else None,
            spark_rest=args.spark_api,
            command=args.stopped_if,
        ),
        quiet_for=args.quiet_for,
        wait_at_most=args.wait_at_most,
    )


def how_to_apply(call: Call, checkpoint: Location) -> dict[str, Any]:
    """What carrying any change out takes.

    :param checkpoint: the checkpoint whose query is stopped.
    """
    return {"rest": rest_rule(call, checkpoint), "made_by": call.made_by, "reason": call.args.reason}


def show_plan(call: Call, markdown: str, *, done: bool = False) -> None:
    """Show a plan to people; without ``--apply`` also how it is carried out.

    :param markdown: the plan.
    :param done: there is nothing to do.
    """
    if not call.screen:
        return
    call.screen.print(terminal.plan(markdown))
    call.screen.print()
    if not call.args.apply and not done:
        terminal.planned(call.screen)
