"""``airflow ckpt …``: the same verbs with Airflow's connections."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, TextIO

from airflow_ckpt_provider.cli.calling import carry_out
from airflow_ckpt_provider.cli.definition import GROUP
from airflow_ckpt_provider.cli.repository_id import with_repository_id
from airflow_ckpt_provider.cli.repository_key import with_key
from airflow_ckpt_provider.cli.signing import with_signing
from airflow_ckpt_provider.cli.verb import Verb
from airflow_ckpt_provider.configuration import configured_streams
from airflow_ckpt_provider.operators.declared_classes import check_classes
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.streams.streams import Streams

if TYPE_CHECKING:
    from airflow_ckpt_provider.cli.by_stream import LoadStreams


def run(verb: Verb, args: argparse.Namespace) -> None:
    """Carry a verb out and end the process with its exit code."""
    # As `airflow connections get` has it: connections are looked up in Airflow's database too.
    os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")

    def open_with_connection(uri: str, *, role: str, conn_id: str | None = None) -> Location:
        conn_id = getattr(args, f"{role}_conn_id") or conn_id
        if args.storage_option and not conn_id:
            place = open_location(uri, storage_options=dict(args.storage_option))
        else:
            place = open_place(uri, conn_id)
        return with_signing(with_repository_id(with_key(place, args, role=role), args, role=role), args)

    declared = reader_of_streams(verb.name, args)
    program = f"airflow {GROUP}"
    sys.exit(carry_out(verb, args, open_with_connection, declared, out=_standard_output(), program=program))


def reader_of_streams(verb: str, args: argparse.Namespace) -> LoadStreams:
    """What reads the declaration for a verb: ``streams check`` finds mistakes that only Airflow can know.

    :param verb: the verb.
    :param args: its arguments.
    """

    def checked(file: str | None = None) -> Streams:
        check_classes(found := configured_streams(file))
        return found

    return checked if (verb, getattr(args, "action", None)) == ("streams", "check") else configured_streams


def _standard_output() -> TextIO:
    """Keep standard output for the answer; whatever else writes there, as Airflow's loggers do, gets standard error."""
    sys.stdout.flush()
    ours = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors="backslashreplace")
    os.dup2(2, 1)
    return ours
