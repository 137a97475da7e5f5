"""Which repositories the pages show: the one that is set up, and those of the streams that are declared."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from airflow_ckpt_provider.page.forms import Places
from airflow_ckpt_provider.streams.stream import Stream
from airflow_ckpt_provider.streams.streams import as_reported, plain_place


@dataclass(frozen=True, slots=True)
class Shown:
    """A repository that the pages show.

    :param key: stands for it in addresses: nobody opens another one by an address.
    :param places: where it is.
    :param declared: the streams whose backups are in it, by their names there.
    """

    key: str
    places: Places
    declared: Mapping[str, Stream] = field(default_factory=dict)


def shown_repositories(configured: Places | None, streams: Iterable[Stream] = ()) -> tuple[Shown, ...]:
    """Say which repositories are shown, the one of the configuration first.

    :param configured: the one of the configuration; its connection is the page's own, and may be one that only reads.
    :param streams: the streams that are declared.
    """
    places: dict[str, Places] = {key_of(configured.repository): configured} if configured else {}
    declared: dict[str, dict[str, Stream]] = {}
    for stream in streams:
        if stream.repository is None:
            continue
        key = key_of(stream.repository)
        conn_id = stream.repository_connection
        places.setdefault(key, Places(stream.repository, conn_id))
        declared.setdefault(key, {})[stream.repository_name] = stream
    return tuple(Shown(key, each, declared.get(key, {})) for key, each in places.items())


def declared_in(repository: str, streams: Iterable[Stream]) -> Mapping[str, Stream]:
    """The streams whose backups are in a repository, by their names there.

    :param repository: its address, as its store spells it or as it is declared.
    :param streams: the streams that are declared.
    """
    here = key_of(as_reported(repository))
    return {
        stream.repository_name: stream
        for stream in streams
        if stream.repository is not None and key_of(as_reported(stream.repository)) == here
    }


def key_of(uri: str) -> str:
    """What stands for a repository in addresses, however its own address is spelt.

    :param uri: its address.
    """
    plain = plain_place(uri)
    path = plain.removeprefix("file://")
    if path.startswith("/") and path != plain:
        plain = f"file://{os.path.realpath(path)}"
    return hashlib.sha256(plain.encode()).hexdigest()[:12]
