"""Settings of an installation: the section ``[ckpt]`` of Airflow, and ``AIRFLOW_CKPT_*`` in the environment of a shell."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING

from airflow_ckpt_provider.errors import RefusedError

if TYPE_CHECKING:
    from airflow_ckpt_provider.streams.streams import Streams

SECTION = "ckpt"
#: The setting that names the file.
STREAMS = "streams"
STREAMS_WORDS = "File that declares the streams; in Airflow a relative path begins at the folder of the DAGs."
#: Defaults of all streams, below those of the file -> what each is for.
SETTINGS: Mapping[str, str] = {
    "repository": "URI of the repository that the page reads, and of the streams that declare none.",
    "storage_conn_id": "Connection to reach the stores of the streams that declare none.",
    "checkpoint_conn_id": "Connection to reach the checkpoints of the streams that declare none; the forms of the page send it.",
    "repository_conn_id": "Connection to reach the repository of the page, and those of the streams that declare none.",
    "kafka_conn_id": "Connection of type kafka of the streams that declare none.",
    "spark_conn_id": "Connection of type spark of the streams that declare none.",
    "databricks_conn_id": "Connection of type databricks of the streams that declare none.",
}


#: What the ids of the DAGs of declared streams begin with, if the setting ``dag_prefix`` does not say otherwise.
DAG_PREFIX = "ckpt"
#: Of Airflow.
_LONGEST_ID = 250


def id_of_dag(*parts: str) -> str:
    """The id of a DAG of declared streams. The end of one that is too long for Airflow is a hash.

    :param parts: the prefix, the stream where each has DAGs of its own, and what the DAG is for.
    """
    whole = re.sub(r"[^\w.-]", "_", "_".join(parts))
    return (
        whole if len(whole) <= _LONGEST_ID else f"{whole[: _LONGEST_ID - 9]}_{sha256(whole.encode()).hexdigest()[:8]}"
    )


def variable(setting: str) -> str:
    """The environment variable of a setting, for ``airflow-ckpt``.

    :param setting: such as ``streams``.
    """
    return f"AIRFLOW_CKPT_{setting.upper()}"


def streams_of_environment(file: str | None = None, environment: Mapping[str, str] = os.environ) -> Streams:
    """Read the streams that are declared, as ``airflow-ckpt`` knows them.

    :param file: the file; ``None``: that of ``AIRFLOW_CKPT_STREAMS``, else ``streams.yaml`` in the current directory.
    :param environment: the environment.
    :raises RefusedError: there is no such file, or it has problems.
    """
    # Not above: each start of `airflow-ckpt` reads the names of the settings, and few read a declaration.
    from airflow_ckpt_provider.streams.loading import load_streams

    path = file or environment.get(variable(STREAMS)) or "streams.yaml"
    settings = {name: value for name in SETTINGS if (value := environment.get(variable(name)))}
    if not file and not environment.get(variable(STREAMS)) and not os.path.exists(path):
        raise RefusedError(
            "no file declares streams: there is no streams.yaml here",
            hint=f"give --streams FILE, or set {variable(STREAMS)}; `airflow-ckpt streams init ROOT` writes a first one",
        )
    return load_streams(path, settings=settings)
