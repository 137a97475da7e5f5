"""Repositories whose documents are signed."""

from __future__ import annotations

import base64
from dataclasses import replace

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.signatures import Signing, public_key
from tests.support.backups import stream
from tests.support.checkpoints import contents, plant

SECRET, OTHER = b"\x01" * 32, b"\x02" * 32


def trusted(*secrets: bytes) -> list[str]:
    """Their public keys, as a connection has them."""
    return [base64.b64encode(public_key(secret)).decode() for secret in secrets]


def signing(place: Location, *, secret: bytes | None = SECRET, trust: bytes | None = SECRET) -> Location:
    """The repository's place for somebody with this signing key, who trusts that one."""
    return replace(place / "backups", signing=Signing.of(secret, trusted(trust) if trust else []))


def opened(place: Location) -> Repository:
    """The repository, as somebody with the signing key opens it."""
    return Repository.open_or_create(signing(place))


def backed_up(place: Location, newest: int) -> Manifest:
    """Back up a stream whose newest batch is this one, signed."""
    plant(place / "orders", stream(newest))
    return create_backup(Checkpoint.at(place / "orders"), opened(place)).manifest


def signatures(place: Location, path: str) -> list[str]:
    """Paths of the signatures of a document."""
    return [p for p in contents(place / "backups") if p.startswith(f"signatures/{path}/")]


def forge(place: Location, newest: Manifest) -> Manifest:
    """Write a manifest that nobody has signed, and that is newer than all others."""
    forged = replace(newest, backup_id="29991231T000000Z-b000099", sequence=99)
    (place / "backups").create(forged.path, forged.to_document())
    return forged
