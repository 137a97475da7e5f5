"""The state of a Delta table as Spark described it (``jobs/describe_delta.py``), for tables that delta-rs cannot read."""

from __future__ import annotations

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.delta_client import TableState
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.storage.opening import open_location


def read_described(uri: str, *, latest: int) -> TableState:
    """Read a description.

    :param uri: what the job wrote.
    :param latest: the newest version of the table: the description has to be of that one, or it may say nothing of it.
    :raises RefusedError: it cannot be read, or the table has continued since.
    """
    directory, _, name = uri.rpartition("/")
    again = "run the job airflow_ckpt_provider/jobs/describe_delta.py again, and ask the guard right after it"
    try:
        content = load_json(open_location(directory or ".").read(name))
        state = TableState(
            table_id=str(content["table_id"]),
            configuration={str(key): str(value) for key, value in content["configuration"].items()},
            schema=str(content["schema"]),
            partition_columns=tuple(map(str, content["partition_columns"])),
        )
        version = int(content["version"])
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise RefusedError(f"{uri} is no description of a Delta table ({type(e).__name__}: {e})", hint=again) from e
    if version != latest:
        raise RefusedError(f"{uri} describes version {version} of the table, which is at {latest} by now", hint=again)
    return state
