"""The section ``[ckpt]`` of Airflow's configuration: where the streams are declared, and what they have in common."""

from __future__ import annotations

import os

from airflow.providers.common.compat.sdk import conf

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.streams.loading import load_streams
from airflow_ckpt_provider.streams.settings import SECTION, SETTINGS, STREAMS
from airflow_ckpt_provider.streams.streams import Streams


def configured_streams(file: str | None = None) -> Streams:
    """Read the streams that are declared.

    :param file: the file; ``None``: the one that the configuration names. A relative path begins at the folder of the DAGs.
    :raises RefusedError: there is no such file, no file is named, or it has problems.
    """
    found = file or conf.get(SECTION, STREAMS, fallback=None)
    if not found:
        raise RefusedError(
            "no file declares streams",
            hint=f"set `streams` in the section [{SECTION}] of Airflow's configuration, or give streams_file",
        )
    path = os.path.join(conf.get("core", "dags_folder", fallback="") or "", found)
    return load_streams(path, settings=configured_settings())


def configured_settings() -> dict[str, str]:
    """The defaults of all streams that the configuration gives: repository and connections."""
    found = {name: conf.get(SECTION, name, fallback=None) for name in SETTINGS}
    return {name: value for name, value in found.items() if value}
