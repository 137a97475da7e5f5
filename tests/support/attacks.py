"""What somebody who has the rights of one role tries to do to a repository on S3, and what becomes of it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import plan_expire
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.notes import Verified, verifications
from airflow_ckpt_provider.backup.reads import named
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import file_of
from tests.support.checkpoints import contents
from tests.support.roles import World

CHECK = "check REPOSITORY"
VERIFY = "verify REPOSITORY latest --name orders --read-data"
BACKUP = "backup CHECKPOINT REPOSITORY --name orders --new-life"
TRUST = "check REPOSITORY --trust --pin PIN"
LATER = "29991231T000000Z-b000099"


@dataclass(frozen=True)
class Intruder:
    """Somebody with the rights of one role.

    :param world: the world as it was before.
    :param theirs: the repository, as they reach it.
    :param checkpoint: the checkpoint, likewise.
    :param newest: the newest backup.
    :param oldest: the oldest.
    """

    world: World
    theirs: Location
    checkpoint: Location
    newest: Manifest
    oldest: Manifest

    @property
    def state(self) -> FileEntry:
        """A file of state of the newest backup."""
        return next(entry for entry in self.newest.files if entry.path.startswith("state/") and entry.size > 20)

    @property
    def file(self) -> str:
        """The file of the repository that holds its content: an object of its own, or a pack."""
        return file_of(self.state.object)

    @property
    def file_size(self) -> int:
        return self.world.place("repository").size(self.file) or 0

    def forge(self, *files: FileEntry, **changes: object) -> None:
        """Write a manifest with the right hash, newer than all."""
        made = replace(self.newest, backup_id=LATER, **changes)  # type: ignore[arg-type]
        self.theirs.create(made.path, replace(made, files=(*made.files, *files)).to_document())

    def note(self, outcome: str) -> str:
        """Path of the next note that verifying the newest backup leaves."""
        return f"verified/orders/{self.newest.backup_id}/000009-{outcome}.json"

    def read_note(self) -> bytes:
        """What a verify notes that has read the file of state now."""
        row = {"at": datetime.now(UTC).isoformat(), "objects": base64.b64encode(named(self.state.object)).decode()}
        return json.dumps({"format": "airflow-ckpt-objects-read", "version": 1, "reads": [row]}).encode()


@dataclass(frozen=True)
class Attack:
    """One attack.

    :param role: whose rights the attacker has.
    :param what: what they do, for the table.
    :param do: does it.
    :param refused: ``always``; ``condition``: only where writes are allowed with ``If-None-Match`` only; ``never``.
    :param noticed_by: the command that notices; ``None``: nobody does, or it has no effect.
    :param says: what that command says.
    :param no_effect: why it has none, for the table.
    :param still: sees that it had none.
    :param signed: the command that notices where documents are signed, and without that nobody does.
    """

    role: str
    what: str
    do: Callable[[Intruder], object]
    refused: str = "never"
    noticed_by: str | None = None
    says: str = ""
    no_effect: str | None = None
    still: Callable[[World], bool] | None = None
    signed: str | None = None

    def outcome(self, *, condition: bool, signed: bool = False) -> str:
        """What becomes of it, for the table."""
        if self.refused == "always" or (self.refused == "condition" and condition):
            return "refused"
        if noticed_by := self.noticed_by or (self.signed if signed else None):
            shown = re.sub(r" (REPOSITORY|CHECKPOINT|latest|--name orders|--new-life)", "", noticed_by)
            return f"noticed by `{shown}`"
        return f"no effect: {self.no_effect}" if self.no_effect else "**not noticed**"


def whole(world: World) -> bool:
    """Whether the newest backup can be read to its last byte."""
    repository = world.repository
    return verify_backup(repository, repository.manifest(name="orders"), read_data=ReadData()).ok


def pruned_and_whole(world: World) -> bool:
    return world.run("prune REPOSITORY --apply").code == 0 and whole(world)


def noted_again(world: World) -> bool:
    assert world.run(VERIFY).code == 0
    return verifications(world.repository, "orders")[world.newest.backup_id] is Verified.CONTENTS


def taken_over(world: World) -> bool:
    finished = world.run(BACKUP)
    assert finished.code == 0, finished.err
    return whole(world)


def protected(world: World) -> bool:
    """Whether an expire keeps the newest backup, though another one seems to be newer or better."""
    repository, newest = world.repository, world.newest.backup_id
    apply_expire(repository, plan_expire(repository, Policy(last=1)))
    return newest in repository.backup_ids("orders")


def mark(*objects: str) -> bytes:
    return json.dumps({"id": "x", "at": "2026-11-22T18:00:00+00:00", "made_by": "", "objects": objects}).encode()


def lease(renewed: float) -> bytes:
    holder = {
        "holder": "x",
        "host": "elsewhere",
        "pid": 1,
        "made_by": "somebody",
        "renewed": renewed,
        "released": False,
    }
    return json.dumps(holder).encode()


def fake_lease(i: Intruder) -> None:
    import time

    i.theirs.replace("running/orders.json", lease(time.time()))


def write_over_all(i: Intruder) -> None:
    """Every file; what is refused is passed over, and the rest shows."""
    left = None
    for path in contents(i.world.place("repository")):
        try:
            i.theirs.replace(path, b"gone")
        except StorageError as e:
            left = e if path.startswith("backups/") else left  # no role may write every file
    if left:
        raise left


def delete_backups(i: Intruder) -> None:
    for path in i.world.place("repository").walk("backups"):
        i.theirs.delete(path)


def forged_newest(i: Intruder) -> bytes:
    """The newest manifest, with the files of an older batch in it, and the right hash."""
    return replace(
        i.newest, files=i.oldest.files, batch_id=i.oldest.batch_id, restorable=i.oldest.restorable
    ).to_document()


def a(role: str, what: str, do: Callable[[Intruder], object], refused: str = "never", **more: object) -> Attack:
    return Attack(role, what, do, refused, **more)  # type: ignore[arg-type]


NEWER = "its manifest is whole, and only a signature would tell"
ATTACKS = [
    a(
        "backup",
        "writes over every file of the repository",
        write_over_all,
        "condition",
        noticed_by=CHECK,
        says="cannot be read",
    ),
    a(
        "backup",
        "writes other bytes of the same length over an object",
        lambda i: i.theirs.replace(i.file, b"\x00" * i.file_size),
        "condition",
        noticed_by=VERIFY,
        says="state/",
    ),
    a(
        "backup",
        "empties an object",
        lambda i: i.theirs.replace(i.file, b""),
        "condition",
        noticed_by=CHECK,
        says="Damaged backups",
    ),
    a(
        "backup",
        "writes rubbish over the newest manifest",
        lambda i: i.theirs.replace(i.newest.path, b"rubbish"),
        "condition",
        noticed_by=CHECK,
        says=r"is\s+damaged",
    ),
    a(
        "backup",
        "writes a manifest with an older batch and the right hash over the newest one",
        lambda i: i.theirs.replace(i.newest.path, forged_newest(i)),
        "condition",
        signed=CHECK,
    ),
    a(
        "backup",
        "writes rubbish over `repository.json`",
        lambda i: i.theirs.replace("repository.json", b"rubbish"),
        "condition",
        noticed_by=CHECK,
        says="repository.json cannot be read",
    ),
    a(
        "backup",
        "gives the repository another id",
        lambda i: i.theirs.replace(
            "repository.json",
            i.theirs.read("repository.json").replace(i.world.repository.repository_id.encode(), b"0" * 36),
        ),
        "condition",
        signed=CHECK,
    ),
    a(
        "backup",
        "empties the id of the repository, to which signatures are bound",
        lambda i: i.theirs.replace(
            "repository.json",
            i.theirs.read("repository.json").replace(i.world.repository.repository_id.encode(), b""),
        ),
        "condition",
        noticed_by=CHECK,
        says="repository.json cannot be read",
    ),
    a("backup", "deletes an object", lambda i: i.theirs.delete(i.file), "always"),
    a("backup", "deletes the newest manifest", lambda i: i.theirs.delete(i.newest.path), "always"),
    a("backup", "deletes `repository.json`", lambda i: i.theirs.delete("repository.json"), "always"),
    a(
        "backup",
        "deletes what a verify noted",
        lambda i: i.theirs.delete(next(iter(i.world.place("repository").walk("verified")))),
        "always",
    ),
    a(
        "backup",
        "deletes a hold",
        lambda i: i.theirs.delete(f"holds/orders/{i.newest.backup_id}/000001.json"),
        "always",
    ),
    a(
        "backup",
        "deletes an audit record",
        lambda i: i.theirs.delete(next(iter(i.world.place("repository").walk("audit")))),
        "always",
    ),
    a(
        "backup",
        "forges a manifest with a file `../../metadata`",
        lambda i: i.forge(i.state._replace(path="../../metadata")),
        noticed_by=CHECK,
        says="damaged or forged",
    ),
    a(
        "backup",
        "forges a manifest that takes `repository.json` for an object",
        lambda i: i.forge(i.state._replace(path="x", object="repository.json")),
        noticed_by=CHECK,
        says="damaged or forged",
    ),
    a(
        "backup",
        "forges a manifest that lists the objects of the newest backup with other sizes, so that a repair writes over them",
        lambda i: i.forge(files=tuple(e._replace(size=e.size + 1, sha256="0" * 64) for e in i.newest.files)),
        noticed_by=CHECK,
        says="Damaged backups",
    ),
    a(
        "backup",
        "replays an old manifest under a newer id",
        lambda i: i.theirs.create(f"backups/orders/{LATER}.json", i.theirs.read(i.oldest.path)),
        noticed_by=CHECK,
        says="damaged or forged",
    ),
    a(
        "backup",
        "writes a newer manifest of an old batch, with the right hash",
        lambda i: i.forge(batch_id=i.oldest.batch_id, restorable=i.oldest.restorable),
        noticed_by=CHECK,
        says=r"is not in the\s+backup at all",
        signed=CHECK,
    ),
    a(
        "backup",
        "writes a newer backup with state of its own",
        lambda i: (
            i.theirs.create("objects/orders/aa/own", b"\x00" * 64),
            i.forge(
                i.state._replace(
                    path="state/0/0/own", object="objects/orders/aa/own", size=64, sha256=None, checksum=None
                )
            ),
        ),
        signed=CHECK,
    ),
    a(
        "backup",
        "writes a newer manifest that cannot be read",
        lambda i: i.theirs.create(f"backups/orders/{LATER}.json", b"rubbish"),
        noticed_by=CHECK,
        says=r"is\s+damaged",
    ),
    a(
        "backup",
        "marks objects for deletion",
        lambda i: i.theirs.create("prune/orders/000002.json", mark(i.file)),
        "always",
    ),
    a("backup", "notes that a backup was verified", lambda i: i.theirs.create(i.note("contents"), b"{}"), "always"),
    a(
        "backup",
        "releases a hold",
        lambda i: i.theirs.create(f"holds/orders/{i.newest.backup_id}/000002.json", b"{}"),
        "always",
    ),
    a(
        "backup",
        "writes an audit record",
        lambda i: i.theirs.create("audit/29991231T000000Z-0a1b2c3e.json", b"{}"),
        "always",
    ),
    a("backup", "adds a file of wrapped keys", lambda i: i.theirs.create("keys/000001.json", b"{}"), "always"),
    a(
        "backup",
        "pretends that a backup is running",
        fake_lease,
        noticed_by=BACKUP,
        says="another backup of this stream is running",
    ),
    a(
        "backup",
        "pretends so until the year 2100",
        lambda i: i.theirs.replace("running/orders.json", lease(4102444800.0)),
        no_effect="the next backup takes over",
        still=taken_over,
    ),
    a(
        "backup",
        "pretends to be at work, so that nothing is pruned",
        lambda i: (
            i.theirs.create("objects/orders/aa/left", b"left"),
            i.theirs.create(
                "claims/orders/ff.json", b'{"what": "backup", "made_by": "somebody", "at": "2026-11-22T18:00:00+00:00"}'
            ),
        ),
        noticed_by=CHECK,
        says="backup by",
    ),
    a(
        "backup",
        "fills the store with objects",
        lambda i: i.theirs.create("objects/orders/aa/big", b"\x00" * 3_000_000),
        noticed_by="prune REPOSITORY",
        says="objects to delete: 1, 2.9 MiB",
    ),
    a("backup", "writes into the checkpoint", lambda i: i.checkpoint.replace("offsets/9", b"rubbish"), "always"),
    a("verify", "writes over an object", lambda i: i.theirs.replace(i.file, b"rubbish"), "always"),
    a("verify", "deletes the newest manifest", lambda i: i.theirs.delete(i.newest.path), "always"),
    a("verify", "forges a manifest", lambda i: i.forge(), "always"),
    a(
        "verify",
        "notes that a damaged backup was verified",
        lambda i: (i.world.place("repository").delete(i.file), i.theirs.create(i.note("contents"), b"{}")),
        noticed_by=VERIFY,
        says="is missing",
    ),
    a(
        "verify",
        "notes that a good backup is damaged",
        lambda i: i.theirs.create(i.note("damaged"), b"{}"),
        no_effect="the next verify notes that it is whole",
        still=noted_again,
    ),
    a(
        "verify",
        "writes over what a verify noted",
        lambda i: i.theirs.replace(next(iter(i.world.place("repository").walk("verified"))), b"{}"),
        "condition",
        signed=TRUST,
    ),
    a(
        "verify",
        "notes that an object was read which nobody has read",
        lambda i: i.theirs.create("read/orders/000777.json", i.read_note()),
        signed=TRUST,
    ),
    a("restore", "writes over an object", lambda i: i.theirs.replace(i.file, b"rubbish"), "always"),
    a("restore", "writes over a manifest", lambda i: i.theirs.replace(i.newest.path, b"rubbish"), "always"),
    a("restore", "deletes a backup", lambda i: i.theirs.delete(i.newest.path), "always"),
    a(
        "restore",
        "writes a false audit record",
        lambda i: i.theirs.create(
            "audit/29991231T000000Z-0a1b2c3e.json",
            b'{"at": "2999-12-31T00:00:00+00:00", "plan_id": "0a1b2c3e", "kind": "test"}',
        ),
        signed=TRUST,
    ),
    a(
        "restore",
        "changes an audit record",
        lambda i: i.theirs.replace(
            next(iter(i.world.place("repository").walk("audit"))),
            b'{"at": "2026-11-22T18:00:00+00:00", "plan_id": "0a1b2c3d"}',
        ),
        "condition",
        signed=TRUST,
    ),
    a(
        "restore",
        "changes what a plan has set aside",
        lambda i: i.theirs.replace("set-aside/orders/0a1b2c3d/offsets/9", b"rubbish"),
    ),
    a(
        "restore",
        "destroys the checkpoint",
        lambda i: i.checkpoint.delete("offsets/9"),
        noticed_by="doctor CHECKPOINT",
        says="offsets",
    ),
    a(
        "prune",
        "deletes an object of a backup",
        lambda i: i.theirs.delete(i.file),
        noticed_by=CHECK,
        says="Damaged backups",
    ),
    a("prune", "deletes the newest manifest", lambda i: i.theirs.delete(i.newest.path), signed=TRUST),
    a(
        "prune",
        "deletes all manifests",
        delete_backups,
        noticed_by="fleet REPOSITORY CHECKPOINT --max-age 26h",
        says="no backup",
    ),
    a("prune", "deletes `repository.json`", lambda i: i.theirs.delete("repository.json"), "always"),
    a("prune", "writes over an object", lambda i: i.theirs.replace(i.file, b"rubbish"), "always"),
    a(
        "prune",
        "writes over a manifest",
        lambda i: i.theirs.replace(i.newest.path, b"rubbish"),
        "condition",
        noticed_by=CHECK,
        says=r"is\s+damaged",
    ),
    a(
        "prune",
        "marks objects for deletion that a backup lists",
        lambda i: i.theirs.create("prune/orders/000002.json", mark(i.file)),
        no_effect="a prune deletes nothing that a backup lists",
        still=pruned_and_whole,
    ),
    a(
        "prune",
        "marks `repository.json` for deletion",
        lambda i: i.theirs.create("prune/orders/000002.json", mark("repository.json")),
        noticed_by="prune REPOSITORY --apply",
        says="names 'repository.json' as what a prune may delete",
    ),
    a(
        "prune",
        "writes a mark that cannot be read",
        lambda i: i.theirs.create("prune/orders/000002.json", b"{"),
        noticed_by=BACKUP,
        says=r"prune/orders/000002\.json is cut off",
    ),
    a(
        "prune",
        "deletes an audit record",
        lambda i: i.theirs.delete(next(iter(i.world.place("repository").walk("audit")))),
        "always",
    ),
    a(
        "prune",
        "deletes what a verify noted",
        lambda i: i.theirs.delete(next(iter(i.world.place("repository").walk("verified")))),
    ),
    a("prune", "deletes a hold", lambda i: i.theirs.delete(f"holds/orders/{i.newest.backup_id}/000001.json")),
    a("keys", "deletes an object", lambda i: i.theirs.delete(i.file), "always"),
    a(
        "keys",
        "writes rubbish over `repository.json`",
        lambda i: i.theirs.replace("repository.json", b"rubbish"),
        noticed_by=CHECK,
        says="repository.json cannot be read",
    ),
]
