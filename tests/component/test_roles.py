"""What each role of ``docs/policies`` can do and cannot do, on a real S3 server."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.backups import stream
from tests.support.checkpoints import plant
from tests.support.roles import POLICIES, ROLES, World, as_words, assume, condition_gate, policy
from tests.support.s3_gate import Gate
from tests.support.s3_server import RESTRICTED, S3Server

#: Role -> what it may write over in the repository, and what it may delete there. The rest is refused.
OVERWRITES = {
    "backup": {"running"},
    "verify": set(),
    "restore": {"plans", "changes", "set-aside"},
    "prune": {"prune"},
    "keys": {"repository.json"},
}
DELETES = {
    "backup": set(),
    "verify": set(),
    "restore": set(),
    "prune": {"backups", "objects", "holds", "verified", "damaged", "read", "claims", "prune", "signatures"},
    "keys": {"keys"},
}
#: A file of each kind that a repository has.
KINDS = (
    "repository.json",
    "keys/000001.json",
    "backups/orders/x.json",
    "objects/orders/aa/x",
    "running/orders.json",
    "claims/orders/x.json",
    "prune/orders/000001.json",
    "holds/orders/x/000001.json",
    "verified/orders/x/000001-contents.json",
    "damaged/orders/000001.json",
    "read/orders/000001.json",
    "plans/0a1b2c3d.json",
    "set-aside/orders/0a1b2c3d/x",
    "changes/x/000001.json",
    "audit/20261122T180000Z-0a1b2c3d.json",
    "upgrades/orders/000001.json",
    "drills/orders/x/20261122T180000Z.json",
    "signatures/audit/20261122T180000Z-0a1b2c3d.json/x.json",
    "signatures/backups/orders/x.json/x.json",
    "signatures/damaged/orders/000001.json/x.json",
    "signatures/holds/orders/x/000001.json/x.json",
    "signatures/prune/orders/000001.json/x.json",
    "signatures/read/orders/000001.json/x.json",
    "signatures/verified/orders/x/000001-contents.json/x.json",
)


@pytest.fixture(scope="module")
def made(s3_server: S3Server) -> World:
    return World.on(s3_server)


@pytest.fixture
def world(made: World) -> World:
    return made.anew()


@pytest.fixture
def gates() -> Iterator[list[Any]]:
    opened: list[Any] = []
    yield opened
    for each in opened:
        each.__exit__(None, None, None)


def refused(request: Callable[[], None]) -> bool:
    """Whether the store refuses a request for want of a right; any other failure is one of the test."""
    try:
        request()
    except StorageError as e:
        if "(AccessDenied)" not in e.message:
            raise
        return True
    return False


def as_role(world: World, role: str, gates: list[Any]) -> Gate:
    """Take on a role; requests go through the gate that enforces ``s3:if-none-match``."""
    assume(world.server, role, world.bucket, world.base)
    gates.append(condition_gate(world.server, role, world.bucket, world.base))
    gate: Gate = gates[-1].__enter__()
    return gate


COMMANDS = {
    "verify": ["verify REPOSITORY latest --name orders --read-data", "check REPOSITORY", "backups REPOSITORY"],
    "restore": ["restore REPOSITORY latest TARGET --name orders --apply", "inspect TARGET"],
    "prune": [
        "release REPOSITORY NEWEST --name orders --reason test",
        "expire REPOSITORY --keep-last 1 --apply",
        "prune REPOSITORY --apply",
    ],
    "backup": ["backup CHECKPOINT REPOSITORY --name orders --new-life"],
}


@pytest.mark.parametrize(("role", "commands"), COMMANDS.items(), ids=list(COMMANDS))
def test_the_policy_is_enough(world: World, role: str, commands: list[str], gates: list[Any]) -> None:
    if role == "backup":  # something new to copy
        plant(world.place("checkpoint/orders"), stream(12))
    if role == "prune":  # something to delete
        world.repository.location.create("objects/orders/aa/left", b"by a run that was killed")
    gate = as_role(world, role, gates)
    for command in commands:
        named = command.replace("NEWEST", world.newest.backup_id)
        finished = world.run(named, gate.options(RESTRICTED))
        assert finished.code == 0, f"{command}: {finished.err}"
        assert "is not noted" not in finished.err


def test_the_policy_is_enough_for_a_checkpoint_elsewhere(world: World, tmp_path: Path, gates: list[Any]) -> None:
    """What is copied passes through the process, and is written as new files."""
    plant(open_location(str(tmp_path / "orders")), stream(12))
    gate = as_role(world, "backup", gates)
    for _ in range(2):
        finished = world.run(
            f"backup {tmp_path / 'orders'} REPOSITORY --name orders --new-life", gate.options(RESTRICTED)
        )
        assert finished.code == 0, finished.err
    assert world.run("verify REPOSITORY latest --name orders --read-data").code == 0


def test_the_policy_is_enough_to_make_a_repository(made: World, tmp_path: Path, gates: list[Any]) -> None:
    world = World(made.server, made.bucket, "empty")
    plant(open_location(str(tmp_path / "orders")), stream(5))
    gate = as_role(world, "backup", gates)
    for command in ("init REPOSITORY", f"backup {tmp_path / 'orders'} REPOSITORY"):
        finished = world.run(command, gate.options(RESTRICTED))
        assert finished.code == 0, finished.err


def test_the_policy_of_keys_is_enough(made: World, tmp_path: Path, gates: list[Any]) -> None:
    world = World(made.server, made.bucket, "encrypted")
    files = {}
    for name in ("first", "second", "third"):
        files[name] = tmp_path / name
        files[name].touch(0o600)
        files[name].write_text(base64.b64encode(os.urandom(32)).decode())
    plant(open_location(str(tmp_path / "orders")), stream(5))
    for command in ("init REPOSITORY", f"backup {tmp_path / 'orders'} REPOSITORY"):
        assert world.run(f"{command} --key-file {files['first']}").code == 0
    gate = as_role(world, "keys", gates)

    def key(action: str, more: str = "", given: str = "first") -> dict[str, Any]:
        finished = world.run(
            f"key {action} REPOSITORY --key-file {files[given]} {more} --json", gate.options(RESTRICTED)
        )
        assert finished.code == 0, f"{action}: {finished.err}"
        return finished.document

    key("add", f"--new-key-file {files['second']}")
    first = key("list")["keys"][0]["id"]
    key("remove", f"--id {first}", "second")
    key("rotate", f"--new-key-file {files['third']}", "second")
    key("export", f"--file {tmp_path / 'export.json'}", "third")
    world.place("repository").delete("repository.json")
    key("import", f"--file {tmp_path / 'export.json'}", "third")
    assert world.run(f"verify REPOSITORY latest --key-file {files['third']}").code == 0


@pytest.mark.parametrize("role", ROLES)
def test_what_a_role_can_write_over_and_delete(world: World, role: str, gates: list[Any]) -> None:
    """Each kind of file, by bare requests: through the gate, so that the condition holds."""
    place = world.place("repository")
    for path in KINDS:
        place.replace(path, b"before")
    gate = as_role(world, role, gates)
    theirs = world.place("repository", gate.options(RESTRICTED))
    over, deleted = set(), set()
    for path in KINDS:
        if not refused(lambda path=path: theirs.replace(path, b"after")):
            over.add(path.partition("/")[0])
        assert place.read(path) == (b"after" if path.partition("/")[0] in over else b"before")
    for path in KINDS:
        if not refused(lambda path=path: theirs.delete(path)):
            assert place.find(path) is None
            deleted.add(path.partition("/")[0])
    assert (over, deleted) == (OVERWRITES[role], DELETES[role])


@pytest.mark.parametrize("role", ["backup", "verify", "prune", "keys"])
def test_no_role_but_restore_writes_into_a_checkpoint(world: World, role: str) -> None:
    assume(world.server, role, world.bucket, world.base)
    theirs = world.place("checkpoint/orders", world.server.options(RESTRICTED))
    with pytest.raises(Exception, match="AccessDenied"):
        theirs.replace("offsets/9", b"after")
    with pytest.raises(Exception, match="AccessDenied"):
        theirs.delete("offsets/9")


def test_without_the_condition_what_can_be_created_can_be_written_over(world: World) -> None:
    """On a server that does not know ``s3:if-none-match``, as the one of these tests: why the page asks for Object Lock there."""
    place = world.place("repository")
    for path in KINDS:
        place.replace(path, b"before")
    assume(world.server, "backup", world.bucket, world.base)
    theirs = world.place("repository", world.server.options(RESTRICTED))
    over = set()
    for path in KINDS:
        if not refused(lambda path=path: theirs.replace(path, b"after")):
            over.add(path.partition("/")[0])
    assert over == {"repository.json", "backups", "objects", "claims", "running", "signatures"}


@pytest.mark.parametrize("role", ROLES)
def test_a_policy_names_only_what_a_repository_has(role: str) -> None:
    for statement in policy(role, "b", "x"):
        for resource in statement["Resource"]:
            inside = resource.partition("/repository/")[2]
            assert not inside or inside == "*" or any(kind.startswith(inside.rstrip("*")) for kind in KINDS), resource


def test_the_other_clouds_have_a_file_for_each_role_that_writes() -> None:
    for cloud in ("gcp", "azure"):
        found = {path.stem.partition("-")[2] for path in POLICIES.glob(f"{cloud}-*.json")}
        assert found == set(ROLES), cloud
        for path in POLICIES.glob(f"{cloud}-*.json"):
            json.loads(path.read_text())


def test_words_of_a_command_hold_no_more_than_the_options(s3_server: S3Server) -> None:
    assert f"endpoint_url={s3_server.endpoint}" in as_words(s3_server.options())
