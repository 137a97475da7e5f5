"""The section ``[ckpt]`` of Airflow's configuration: where the streams are declared, and what they have in common."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import conf

from airflow_ckpt_provider.errors import CkptError, RefusedError
from airflow_ckpt_provider.streams.loading import load_streams
from airflow_ckpt_provider.streams.settings import DAG_PREFIX, SECTION, SETTINGS, STREAMS
from airflow_ckpt_provider.streams.stream import Stream
from airflow_ckpt_provider.streams.streams import Streams

if TYPE_CHECKING:
    from airflow_ckpt_provider.page.shown import Shown

log = logging.getLogger(__name__)


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


def shown_by_the_page() -> tuple[tuple[Shown, ...], str]:
    """The repositories that the page in Airflow shows; what is declared, only where this process has the file.

    :return: the repositories, and why what is declared is not known; empty: it is known, or nothing is declared.
    """
    from airflow_ckpt_provider.page.forms import Places
    from airflow_ckpt_provider.page.shown import shown_repositories

    def setting(name: str) -> str | None:
        return conf.get(SECTION, name, fallback=None) or None

    repository = setting("repository")
    configured = (
        Places(repository, setting("repository_conn_id"), setting("checkpoint_conn_id")) if repository else None
    )
    streams: Iterable[Stream] = ()
    unread = ""
    if setting(STREAMS):
        try:
            streams = configured_streams().values()
        except CkptError as e:
            log.warning("nothing of what is declared is shown: %s", e)
            unread = e.message
    return shown_repositories(configured, streams), unread


def configured_prefix() -> str:
    """What the ids of the DAGs of declared streams begin with."""
    return str(conf.get(SECTION, "dag_prefix", fallback=None) or DAG_PREFIX)
