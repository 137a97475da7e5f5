"""Having Spark restore a table, by an Airflow connection."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException, AirflowNotFoundException
from airflow.sdk import BaseHook

from airflow_ckpt_provider.errors import MissingExtraError, RefusedError, StorageError
from airflow_ckpt_provider.operators.submitting import end_application

if TYPE_CHECKING:
    from airflow_ckpt_provider.sinks.delta_rollback import RestoreBySpark, TableTarget
    from airflow_ckpt_provider.sinks.named_tables import TableEngine
    from airflow_ckpt_provider.sinks.spark_tables import RunApplication

#: Settings of the hook, and of Spark, with which ``spark-submit`` ends before its application: the one if on, the other if off.
_TRACKED = ("track_driver_via_k8s_api", "yarn_track_via_rm_api")
_WAITS = ("spark.yarn.submit.waitAppCompletion", "spark.kubernetes.submission.waitAppCompletion")
#: Seconds in which a process that was killed is gone.
_GRACE = 10.0


def run_by_connection(
    conn_id: str, *, what: str = "restore the table", under_way: list[Any] | None = None, **settings: Any
) -> RunApplication:
    """Run applications by ``spark-submit`` as a connection says. One that is interrupted, by a timeout say, is ended first.

    :param conn_id: id of a connection of type ``spark``.
    :param what: what Spark is to do, in words.
    :param under_way: has the hook of an application as long as it runs, so that others can end it.
    :param settings: what else ``SparkSubmitHook`` is given: ``packages``, ``conf``, ….
    :raises MissingExtraError: Airflow's Spark provider is not installed; said before anything is changed.
    :raises RefusedError: there is no such connection, or by the settings ``spark-submit`` would not wait; said before anything
        is changed.
    """
    _check_waits(settings)
    try:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    except ImportError as e:
        raise MissingExtraError(
            f"connection {conn_id!r} needs Airflow's Spark provider, which is not installed ({e})",
            hint="pip install 'airflow-ckpt-provider[spark]'",
        ) from e
    try:
        BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as e:
        raise RefusedError(
            f"there is no Airflow connection {conn_id!r}, by which Spark is to {what}",
            hint=f"create it (airflow connections add {conn_id} …), or correct spark_conn_id",
        ) from e

    def run(application: str, arguments: list[str]) -> None:
        given = {"name": Path(application).stem, **settings, "conn_id": conn_id, "application_args": arguments}
        hook: Any = SparkSubmitHook(**given)
        hooks = [] if under_way is None else under_way
        hooks.append(hook)
        try:
            hook.submit(application)
        except (AirflowException, OSError) as e:
            raise StorageError(
                f"Spark failed: {e}", hint="the task's log has what Spark said; the next attempt continues from here"
            ) from e
        except BaseException:
            # Before anybody lifts a seal or reads what it has written. Airflow's timeout is such an exception.
            end_application(hook)
            with suppress(Exception):  # there is none yet, or it does not end
                hook._submit_sp.wait(_GRACE)
            raise
        finally:
            hooks.remove(hook)

    return run


def spark_engines(conn_id: str | None, settings: Mapping[str, Any], under_way: list[Any]) -> tuple[TableEngine, ...]:
    """What knows tables by the names that Spark has for them; nothing is connected to yet.

    :param conn_id: the connection of Spark; ``None``: there is none.
    :param settings: of :func:`restore_by_connection`.
    :param under_way: of :func:`run_by_connection`.
    """
    from airflow_ckpt_provider.sinks.spark_tables import SparkTables

    if not conn_id:
        return ()
    rest = {key: value for key, value in settings.items() if key != "uri"}
    return (SparkTables(run_by_connection(conn_id, under_way=under_way, **rest)),)


def _check_waits(settings: Mapping[str, Any]) -> None:
    """See that ``spark-submit`` waits: else the application would change something after its task has ended.

    :raises RefusedError: it would not.
    """
    conf = settings.get("conf") or {}
    found = [name for name in _TRACKED if settings.get(name)]
    found += [name for name in _WAITS if str(conf.get(name, "")).strip().lower() == "false"]
    if found:
        raise RefusedError(
            f"{found[0]}: spark-submit would end before the application, and nobody would know what it does then",
            hint="leave this setting out",
        )


def restore_by_connection(conn_id: str, *, uri: str | None = None, **settings: Any) -> RestoreBySpark:
    """Restore a table by ``spark-submit`` as a connection says.

    :param conn_id: id of a connection of type ``spark``.
    :param uri: the table as Spark names it, where that differs from its address here, such as ``s3a://…``.
    :param settings: see :func:`run_by_connection`, which also says what is raised before anything is changed.
    """
    from airflow_ckpt_provider.sinks.spark_restore import APPLICATION, arguments_for

    run = run_by_connection(conn_id, **settings)

    def restore(target: TableTarget, expected: int) -> None:
        try:
            run(APPLICATION, arguments_for(target, expected, uri=uri))
        except StorageError as e:
            message = f"Spark did not restore {target.table} to version {target.version}: {e.message}"
            raise StorageError(message, hint=e.hint) from e

    return restore
