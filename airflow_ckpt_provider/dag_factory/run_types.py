"""Which runs a DAG may have whose tasks are about the streams as they are now."""

from __future__ import annotations

import inspect
from typing import Any

from airflow.sdk import DAG
from airflow.utils.types import DagRunType


def no_backfill() -> dict[str, Any]:
    """Return arguments of a DAG that has all runs but those of a backfill.

    A backfill of thirty days would take thirty backups of today, and a rule such as ``last: 7`` would then remove those of the
    days before. Airflow 3.2 and later refuse it; Airflow 3.1 has no such argument, and nothing is returned.

    .. code-block:: python

        from airflow.sdk import DAG

        with DAG("backups", schedule="@daily", **no_backfill()):
            ...
    """
    if "allowed_run_types" not in inspect.signature(DAG).parameters:
        return {}
    return {"allowed_run_types": [str(each) for each in DagRunType if each is not DagRunType.BACKFILL_JOB]}
