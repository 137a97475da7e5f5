"""Having Spark restore a table: the application and its arguments. Who runs it lies above."""

from __future__ import annotations

from pathlib import Path

from airflow_ckpt_provider.sinks.delta_rollback import TableTarget

#: The application, as a file: it runs alone.
APPLICATION = str(Path(__file__).parents[1] / "jobs" / "roll_table_back.py")


def arguments_for(target: TableTarget, expected: int, *, uri: str | None = None) -> list[str]:
    """What the application is given.

    :param target: where the table is to go.
    :param expected: the version it has to have before.
    :param uri: the table as Spark names it, where that differs, such as ``s3a://…``.
    """
    about = {"table": uri or target.table.uri, "version": target.version, "expected": expected, "plan": target.plan_id}
    return [word for name, value in about.items() for word in (f"--{name}", str(value))]
