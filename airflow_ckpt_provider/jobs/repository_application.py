"""What the Spark applications on a repository have in common: how it is reached, and how work is parted."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.jobs.spark_engine import BYTES_PER_TASK, FILES_PER_TASK, WORKERS, Address, address
from airflow_ckpt_provider.storage.keys import read_key
from airflow_ckpt_provider.storage.signatures import Signing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def add_repository(parser: argparse.ArgumentParser, *, signs: str) -> None:
    """Add the options that say how the repository is reached, and which one it has to be.

    :param signs: what the application signs, for its help.
    """
    add = parser.add_argument
    add("--storage-options", metavar="FILE", help="JSON on the driver: scheme -> arguments of its fsspec filesystem")
    add("--key-file", metavar="FILE", help="key of an encrypted repository, on the driver")
    add("--repository-id", metavar="ID", help="id that REPOSITORY has to have; another one is refused")
    add("--signing-key-file", metavar="FILE", help=f"private key that signs {signs}, on the driver")
    add("--trusted-key", action="append", default=[], metavar="KEY", help="public key to trust; repeatable")


def add_tasks(parser: argparse.ArgumentParser, *, files: str = "at most") -> None:
    """Add the options that say how the work is parted.

    :param files: what is to be said of ``--files-per-task``.
    """
    for option, default, text in (
        ("--workers", WORKERS, "requests of a task under way at once"),
        ("--files-per-task", FILES_PER_TASK, files),
        ("--bytes-per-task", BYTES_PER_TASK, "at most"),
    ):
        parser.add_argument(
            option, type=at_least_one, default=default, metavar="N", help=f"{text} (default: %(default)s)"
        )


def open_repository(spark: SparkSession, args: argparse.Namespace) -> tuple[Address, Repository]:
    """Open the repository of an application on its driver: how executors reach it, and the repository.

    Executors get its id, so that none opens another one, and no signing key.

    :param args: with ``repository`` and what :func:`add_repository` adds.
    :raises RepositoryError: there is none, or not the one that is asked for.
    """
    key = read_key(args.key_file) if args.key_file else None
    reached = replace(
        address(spark, args.repository, options_file=args.storage_options, key=key), repository_id=args.repository_id
    )
    signing = Signing.read(args.signing_key_file, args.trusted_key)
    opened = Repository.open(replace(reached.open(), signing=signing))
    return reached.of(opened), opened


def at_least_one(text: str) -> int:
    """Read a number of at least 1.

    :raises ValueError: it is none.
    """
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number
