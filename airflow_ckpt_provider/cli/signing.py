"""What verbs do with ``--signing-key-file FILE`` and ``--trusted-key KEY``."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace

from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.signatures import Signing


def with_signing(place: Location, args: Namespace) -> Location:
    """Give a place the keys that sign the documents of the repository that may be there, and those that have to have signed them.

    :raises RefusedError: the file cannot be read, holds no key, or others than its owner can read it.
    """
    signing = Signing.read(args.signing_key_file, args.trusted_key)
    return replace(place, signing=signing) if signing else place
