"""Roles on the repository of backups: the policies of ``docs/policies``, put on the real S3 server.

The server honours everything in them but one condition, ``s3:if-none-match``: it never fills that key. :func:`condition_gate` is
a proxy before the server that enforces this condition as AWS documents it, and nothing else.
"""

from __future__ import annotations

import base64
import fnmatch
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from email.message import Message
from pathlib import Path
from typing import Any

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.notes import hold, note_verification
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.trust import check_trust
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.signatures import Signing, new_signing_key, public_key
from tests.support.backups import stream
from tests.support.checkpoints import contents, plant
from tests.support.command_line import Finished, run
from tests.support.s3_gate import Gate
from tests.support.s3_server import S3Server

POLICIES = Path(__file__).parents[2] / "docs" / "policies"
#: Role -> the policy that the documentation gives it.
ROLES = ("backup", "verify", "restore", "prune", "keys")
_ARN = "arn:aws:s3:::"
_CONDITION = {"Null": {"s3:if-none-match": "false"}}


def policy(role: str, bucket: str, base: str) -> list[dict[str, Any]]:
    """The statements of a role's policy, for a repository and checkpoints in one bucket.

    :param bucket: the bucket.
    :param base: prefix in it, below which ``repository`` and ``checkpoint`` lie.
    """
    document = json.loads((POLICIES / f"aws-{role}.json").read_text())
    places = {
        f"{_ARN}backups/streams/": f"{_ARN}{bucket}/{base}/repository/",
        f"{_ARN}lake/checkpoints/": f"{_ARN}{bucket}/{base}/checkpoint/",
        f"{_ARN}backups": f"{_ARN}{bucket}",
        f"{_ARN}lake": f"{_ARN}{bucket}",
    }

    def renamed(resource: str) -> str:
        for shown, real in places.items():
            if resource.startswith(shown):
                return real + resource.removeprefix(shown)
        raise AssertionError(f"{role}: {resource} is not one of the documented places")

    found = []
    for statement in document["Statement"]:
        assert statement.get("Condition", _CONDITION) == _CONDITION, f"{role}: a condition that no test enforces"
        given = statement["Action"]
        actions = [given] if isinstance(given, str) else list(given)
        found.append({**statement, "Action": actions, "Resource": [renamed(r) for r in statement["Resource"]]})
    return found


def assume(server: S3Server, role: str, bucket: str, base: str) -> None:
    """Give the server's restricted identity exactly a role's rights; the condition that the server does not know is left out."""
    statements = [
        {**{k: v for k, v in each.items() if k not in ("Condition", "Sid")}, "Principal": {"AWS": ["*"]}}
        for each in policy(role, bucket, base)
    ]
    document = {"Version": "2012-10-17", "Statement": statements}
    server.client().put_bucket_policy(Bucket=bucket, Policy=json.dumps(document))


@contextmanager
def condition_gate(server: S3Server, role: str, bucket: str, base: str) -> Iterator[Gate]:
    """A gate that forbids each write which the role may only make with ``If-None-Match``, and which comes without."""
    rules = [
        (fnmatch.translate(resource.removeprefix(_ARN)), "Condition" in statement)
        for statement in policy(role, bucket, base)
        if "s3:PutObject" in statement["Action"]
        for resource in statement["Resource"]
    ]

    def forbid(kind: str, path: str, headers: Message) -> bool:
        if kind not in ("PUT", "COPY", "POST") or headers.get("If-None-Match") == "*":
            return False
        conditions = [condition for rule, condition in rules if re.match(rule, path.strip("/"))]
        return bool(conditions) and all(conditions)  # what no rule allows is for the server to refuse

    gate = Gate(server, forbid=forbid)
    try:
        yield gate
    finally:
        gate.close()


def as_words(options: Mapping[str, Any]) -> list[str]:
    """Options of a store as words of a command line."""
    plain = [f"{name}={options[name]}" for name in ("key", "secret", "endpoint_url")]
    return [w for each in [*plain, 'client_kwargs={"region_name": "us-east-1"}'] for w in ("--storage-option", each)]


@dataclass
class World:
    """A bucket with a checkpoint, a repository with two backups and notes of every kind; made again under a prefix for each test.

    :param base: the prefix.
    :param made: the files below it, as they were made.
    :param untouched: the same under a prefix, in which nothing was changed so far.
    """

    server: S3Server
    bucket: str
    base: str = ""
    made: dict[str, bytes] = field(default_factory=dict)
    number: int = 0
    signing: Signing | None = None
    signing_files: Path | None = None
    untouched: World | None = None

    @classmethod
    def on(cls, server: S3Server, signing_files: Path | None = None) -> World:
        """Make one.

        :param signing_files: where to keep the signing key and the pin of a world whose documents are signed; ``None``: none are.
        """
        world = cls(server, server.make_bucket(), "made", signing_files=signing_files)
        if signing_files:
            secret = new_signing_key()
            world.signing = Signing.of(secret, [base64.b64encode(public_key(secret)).decode()])
            (signing_files / "key").touch(0o600)
            (signing_files / "key").write_text(base64.b64encode(secret).decode())
        plant(world.place("checkpoint/orders"), stream(5))
        checkpoint = Checkpoint.at(world.place("checkpoint/orders"))
        repository = Repository.open_or_create(replace(world.place("repository"), signing=world.signing))
        create_backup(checkpoint, repository, name="orders")
        plant(world.place("checkpoint/orders"), stream(9))
        newest = create_backup(checkpoint, repository, name="orders").manifest
        note_verification(repository, verify_backup(repository, newest, read_data=ReadData()))
        hold(repository, newest, reason="incident 4711")
        repository.record("0a1b2c3d", {"kind": "test", "made_by": "admin"})
        repository.location.create("prune/orders/000001.done.json", b'{"at": "2026-11-22T18:00:00+00:00"}')
        if signing_files:
            (signing_files / "pin").write_text(json.dumps(check_trust(world.repository).pin))
        world.made = contents(world.place(""))
        return world

    def anew(self) -> World:
        """The same under another prefix."""
        self.number += 1
        fresh = replace(self, base=f"run{self.number}")
        place = fresh.place("")
        in_parallel(lambda item: place.create(*item), self.made.items(), workers=8)
        return fresh

    def place(self, path: str, options: Mapping[str, Any] | None = None) -> Location:
        """A place in it, by default as the administrator reaches it."""
        uri = f"s3://{self.bucket}/{self.base}/{path}".rstrip("/")
        return open_location(uri, storage_options=dict(options or self.server.options()))

    @property
    def repository(self) -> Repository:
        """The repository, opened by the administrator."""
        return Repository.open(replace(self.place("repository"), signing=self.signing))

    @property
    def newest(self) -> Manifest:
        """Its newest backup."""
        return self.repository.manifest(name="orders")

    def run(self, command: str, options: Mapping[str, Any] | None = None) -> Finished:
        """Run a verb; the words ``REPOSITORY``, ``CHECKPOINT`` and ``TARGET`` are places, and ``PIN`` is a file."""
        places = {"REPOSITORY": "repository", "CHECKPOINT": "checkpoint/orders", "TARGET": "checkpoint/restored"}
        words = [f"s3://{self.bucket}/{self.base}/{places[w]}" if w in places else w for w in command.split()]
        if self.signing and self.signing_files:
            trusted = base64.b64encode(self.signing.trusted[0]).decode()
            words += ["--signing-key-file", str(self.signing_files / "key"), f"--trusted-key={trusted}"]
            words = [str(self.signing_files / "pin") if w == "PIN" else w for w in words]
        return run(*words, *as_words(options or self.server.options()))
