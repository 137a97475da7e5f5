"""What verbs do with ``--key-file FILE``."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace

from airflow_ckpt_provider.storage.location import Location


def with_key(place: Location, args: Namespace, *, role: str) -> Location:
    """Give a place the key of the repository that may be there.

    :param role: ``target`` of a copy may have a key of its own.
    :raises RefusedError: the file cannot be read, or holds no key.
    """
    file = (getattr(args, "target_key_file", None) if role == "target" else None) or args.key_file
    if file is None:
        return place
    from airflow_ckpt_provider.storage.encrypted_store import read_key

    return replace(place, key=read_key(file))
