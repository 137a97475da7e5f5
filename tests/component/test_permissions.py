"""Each verb with a key that has exactly the rights of ``docs/howto/permissions.md``, and with one right less."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.notes import note_verification
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.cli.main import main
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.upgrade.record import begin_upgrade
from tests.support.checkpoints import contents, plant
from tests.support.one_checkpoint import unpack
from tests.support.s3_server import ADMIN, RESTRICTED, S3Server
from tests.support.spoiled import lose

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "permissions.md"
ACTIONS = ("s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject")
CHANGE = "--accept sink_duplicates --query-is-stopped --quiet-for 0"
#: Verb -> the rest of its command.
COMMANDS = {
    "init": "TARGET",
    "inspect": "CHECKPOINT",
    "doctor": "CHECKPOINT",
    "guard": "CHECKPOINT",
    "positions": "CHECKPOINT",
    "discover": "CHECKPOINT",
    "fleet": "REPOSITORY CHECKPOINT",
    "report": "REPOSITORY --html HTML",
    "backup": "CHECKPOINT REPOSITORY --name orders",
    "backups": "REPOSITORY",
    "verify": "REPOSITORY latest --name orders --read-data",
    "check": "REPOSITORY",
    "hold": "REPOSITORY latest --name orders --reason test",
    "release": "REPOSITORY OLDEST --name orders --reason test",
    "upgrade": "REPOSITORY --name orders --end --reason test",
    "copy": "REPOSITORY all TARGET",
    "repair": "REPOSITORY CHECKPOINT --apply",
    "restore": "REPOSITORY latest TARGET --name orders --apply",
    "rewind": f"CHECKPOINT --to-batch 4 --repository REPOSITORY --sink kafka --accept source_loss {CHANGE} --apply",
    "reset": f"CHECKPOINT --from-scratch --repository REPOSITORY --sink kafka {CHANGE} --apply",
    "undo": "CHECKPOINT --repository REPOSITORY --query-is-stopped --quiet-for 0",
    "status": "CHECKPOINT --repository REPOSITORY",
    "seal": "CHECKPOINT --reason test",
    "unseal": "CHECKPOINT --for-start --repository REPOSITORY",
    "flows": f"TARGET --reset ingest --repository REPOSITORY --sink kafka {CHANGE} --apply",
    "expire": "REPOSITORY --keep-last 1 --apply",
    "prune": "REPOSITORY --apply",
    "migrate": "REPOSITORY --apply",
}


#: Verb -> the right to ask whether files are locked, where it does nothing without.
LOCKS = {"migrate": ("s3:GetBucketObjectLockConfiguration",)}
#: Verb -> its exit code where it works: positions of a file source are not known to be exact.
CODES = {"positions": 1}


@pytest.mark.format_1("there is something to migrate")
def test_what_is_locked_has_to_be_known_where_something_moves(bucket: Bucket) -> None:
    base = bucket.fresh()
    allow(bucket, base, rights("migrate"))
    assert bucket.run("migrate", base) == 1, "a finding: whether something is locked is not known"
    assert Repository.open(bucket.place(f"{base}/repository")).format == 1


def table() -> dict[str, tuple[str, str, str, str]]:
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|(.*)\|(.*)\|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    return {verb: (a, b, c, d) for verb, a, b, c, d in rows}


def rights(verb: str) -> dict[str, list[str]]:
    """Action -> paths, as the page has them."""
    cells = table()[verb]
    listed = [name.strip() for name in cells[0].split(",")]
    found = {action: re.findall(r"`([^`]+)`", cell) for action, cell in zip(ACTIONS[1:], cells[1:], strict=True)}
    return {action: paths for action, paths in {"s3:ListBucket": listed, **found}.items() if paths}


@dataclass
class Bucket:
    """A bucket with a checkpoint, a repository with three backups, and something for every verb to do."""

    server: S3Server
    name: str
    number: int = 0
    checkpoint: dict[str, bytes] = field(default_factory=dict)

    def place(self, path: str) -> Location:
        return open_location(f"s3://{self.name}/{path}", storage_options=self.server.options(ADMIN))

    def fresh(self) -> str:
        """Make all again, under a prefix of its own."""
        self.number += 1
        base = f"run{self.number}"
        plant(self.place(f"{base}/checkpoint"), self.checkpoint)
        repository = Repository.open_or_create(self.place(f"{base}/repository"))
        checkpoint = Checkpoint.at(self.place(f"{base}/checkpoint"))
        for _ in range(2):
            verified = create_backup(checkpoint, repository, name="orders").manifest
            note_verification(repository, verify_backup(repository, verified))
        create_backup(checkpoint, repository, name="orders")
        # Something to prune; the oldest is to expire, with what is noted of it.
        repository.location.create("objects/orders/aa/orphan", b"left by a run that was killed")
        return base

    def run(self, verb: str, base: str) -> int:
        places = {word: f"s3://{self.name}/{base}/{word.lower()}" for word in ("CHECKPOINT", "REPOSITORY", "TARGET")}
        places["HTML"] = tempfile.mkdtemp()
        places["OLDEST"] = Repository.open(self.place(f"{base}/repository")).backup_ids("orders")[0]
        if verb == "release":
            main_as(self.server, ADMIN, ["hold", *filled(COMMANDS["release"], places)])
        if verb == "copy":
            Repository.open_or_create(self.place(f"{base}/target"))
        if verb in ("undo", "unseal"):
            before = {"undo": "reset", "unseal": "seal"}[verb]
            assert main_as(self.server, ADMIN, [before, *filled(COMMANDS[before], places)]) == 0
        if verb == "flows":
            plant(self.place(f"{base}/target/_checkpoints/lake/sales/orders/ingest/0"), self.checkpoint)
        if verb == "upgrade":
            begin_upgrade(Repository.open(self.place(f"{base}/repository")), "orders", "a run that is gone")
        if verb == "repair":
            repository = Repository.open(self.place(f"{base}/repository"))
            lose(repository.location, repository.manifest().files[0].object)
        return main_as(self.server, RESTRICTED, [verb, *filled(COMMANDS[verb], places)])


def filled(command: str, places: dict[str, str]) -> list[str]:
    return [places.get(word, word) for word in command.split()]


def main_as(server: S3Server, identity: object, argv: list[str]) -> int:
    options = server.options(identity)  # type: ignore[arg-type]
    given = [
        f"key={options['key']}", f"secret={options['secret']}", f"endpoint_url={options['endpoint_url']}",
        'client_kwargs={"region_name": "us-east-1"}',
    ]  # fmt: skip
    return main([*argv, *(word for each in given for word in ("--storage-option", each))])


@pytest.fixture(scope="module")
def bucket(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Bucket:
    local = unpack(tmp_path_factory.mktemp("ck") / "orders")
    return Bucket(s3_server, s3_server.make_bucket(), checkpoint=contents(open_location(str(local))))


def allow(bucket: Bucket, base: str, given: dict[str, list[str]], asked_for: tuple[str, ...] = ()) -> None:
    named = [(action, path) for action, paths in given.items() for path in paths]
    places = [
        (action, re.sub(r"CHECKPOINT|REPOSITORY|TARGET", lambda m: f"{base}/{m[0].lower()}", path))
        for action, path in named
    ]
    bucket.server.allow(bucket.name, *places, *((action, "") for action in asked_for))


def test_the_page_has_every_verb_that_works_on_a_store() -> None:
    assert table().keys() == COMMANDS.keys()
    assert {verb for verb in COMMANDS if any("REPOSITORY/" in p for p in rights(verb).get("s3:DeleteObject", ()))} == {
        "expire",
        "prune",
        "migrate",
    }


def marks(verb: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.format_1("there is something to migrate")] if verb == "migrate" else []


@pytest.mark.parametrize(
    "verb",
    [pytest.param(v, marks=[*marks(v), *([] if v in ("backup", "prune") else [pytest.mark.slow])]) for v in COMMANDS],
)
def test_the_rights_on_the_page_are_enough(bucket: Bucket, verb: str, capfd: pytest.CaptureFixture[str]) -> None:
    base = bucket.fresh()
    allow(bucket, base, rights(verb), LOCKS.get(verb, ()))
    assert bucket.run(verb, base) == CODES.get(verb, 0), capfd.readouterr()
    assert "is not noted" not in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("verb", [pytest.param(v, marks=marks(v)) for v in COMMANDS])
def test_and_none_is_too_much(bucket: Bucket, verb: str, caplog: pytest.LogCaptureFixture) -> None:
    given = rights(verb)
    for action, paths in given.items():
        if action == "s3:ListBucket" and len(paths) > 1:
            continue  # in this test all places are in one bucket
        base = bucket.fresh()
        allow(bucket, base, {**{a: p for a, p in given.items() if a != action}}, LOCKS.get(verb, ()))
        code = bucket.run(verb, base)
        a_row = verb == "discover" and action == "s3:GetObject" and code == 1
        assert code == 3 or a_row or "is not noted" in caplog.text, (verb, action, code)
