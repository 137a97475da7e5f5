"""What verbs do with ``--key-file FILE``."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace

from airflow_ckpt_provider.storage.location import Location


def with_key(place: Location, args: Namespace, *, role: str) -> Location:
    """Give a place the key of the repository that may be there.

    :param role: the ``target`` of a copy and the ``second`` repository of a repair may have a key of their own.
    :raises RefusedError: the file cannot be read, holds no key, or others than its owner can read it.
    """
    own = getattr(args, f"{role}_key_file", None)
    file = own or args.key_file
    if file is None:
        return place
    from airflow_ckpt_provider.storage.keys import read_key

    return replace(place, key=read_key(file, option=f"--{role}-key-file" if own else "--key-file"))
