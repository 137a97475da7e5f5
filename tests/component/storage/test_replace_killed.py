"""A process that is killed while it replaces a file on a local disk: the name holds the old content or the new one."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.migrate import apply_migrate, plan_migrate
from airflow_ckpt_provider.backup.notes import record_verification
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_repair import apply_objects_repair, plan_objects_repair
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.storage import local_store
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.backups import back_up, entry_of, stream
from tests.support.packs import packed_repository, restorable, rot

_OPEN = os.open
_STEPS = ("open", "fsync", "close", "rename", "replace", "link", "unlink")


class Killed(BaseException):
    """The process is dead: whatever it wants of the operating system from now on raises this again."""


class Steps:
    """What a process asks of the operating system. It dies before one of these steps.

    :param at: the number of that step, counted from 1.
    :param about: part of a path; only steps that name one with it are counted. Every step, if it is empty.
    :param before: called before each step that is counted.
    """

    def __init__(self, at: int, about: str = "", before: Callable[[], None] = lambda: None) -> None:
        self.at, self.about, self.before = at, about, before
        self.count = 0
        self.dead = False

    def counted(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if self.dead:
                raise Killed
            reads = step is _OPEN and not args[1] & (os.O_WRONLY | os.O_RDWR) and not os.path.isdir(args[0])
            if reads:  # to die before it changes no more than to die before the next write
                return step(*args, **options)
            if not self.about or any(self.about in str(each) for each in args):
                self.before()
                self.count += 1
                if self.count == self.at:
                    self.dead = True
                    raise Killed
            return step(*args, **options)

        return call

    @contextmanager
    def counting(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in _STEPS:
                patch.setattr(os, name, self.counted(getattr(os, name)))
            patch.setattr(local_store, "exchange", self.counted(local_store.exchange))
            try:
                yield
            except Killed:
                assert self.dead


def killed_at_each_step(act: Callable[[Steps], None], about: str = "") -> int:
    """Let something be done again and again, killed at each of its steps in turn; how many there are."""
    for number in range(1, 200):
        steps = Steps(number, about)
        act(steps)
        if not steps.dead:
            return number - 1
    raise AssertionError("it has no end")


@pytest.mark.usefixtures("names_exchange")
def test_the_name_always_holds_the_old_content_or_the_new_one(tmp_path: Path) -> None:
    def replaced(steps: Steps) -> None:
        place = open_location(str(tmp_path / str(steps.at)))
        place.create("a", b"old")
        file, path = place.walk()["a"], tmp_path / str(steps.at) / "a"
        seen: list[bytes] = []
        steps.before = lambda: seen.append(path.read_bytes())
        with steps.counting():
            place.replace_listed(file, b"newer")
        seen.append(path.read_bytes())
        assert set(seen) <= {b"old", b"newer"}
        assert seen == sorted(seen, reverse=True), "first the old one, then the new one"
        hidden = [place.read(name) for name in place.walk() if name != "a"]
        assert set(hidden) <= {b"old", b"newer"}
        if not steps.dead:
            assert (seen[-1], hidden) == (b"newer", [])

    assert killed_at_each_step(replaced) >= 4


def test_without_exchanges_no_content_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name may be free then, and the hidden name has the content."""
    monkeypatch.setattr(local_store, "exchange", lambda one, other: False)

    def replaced(steps: Steps) -> None:
        place = open_location(str(tmp_path / str(steps.at)))
        place.create("a", b"old")
        file = place.walk()["a"]
        with steps.counting():
            place.replace_listed(file, b"newer")
        there = {name: place.read(name) for name in place.walk()}
        assert there.get("a") == b"newer" or b"old" in there.values()

    assert killed_at_each_step(replaced) >= 4


@pytest.mark.format_1("it is migrated to format 2")
@pytest.mark.usefixtures("names_exchange")
def test_a_killed_migrate_leaves_a_repository(tmp_path: Path) -> None:
    back_up(open_location(str(tmp_path / "original")), stream(3))

    def migrated(steps: Steps) -> None:
        root = tmp_path / str(steps.at)
        shutil.copytree(tmp_path / "original", root)
        place = open_location(str(root))
        repository = Repository.open(place / "backups")
        plan = plan_migrate(repository)
        seen: list[int] = []
        steps.before = lambda: seen.append(Repository.open(place / "backups").format)
        with steps.counting():
            apply_migrate(place / "backups", plan)
        found = Repository.open(place / "backups")
        assert found.repository_id == repository.repository_id
        assert back_up(place, stream(4), name="again").files
        assert steps.dead or found.format == 2
        assert seen == sorted(seen)

    assert killed_at_each_step(migrated, "repository.json") >= 2


@pytest.mark.usefixtures("names_exchange")
def test_a_killed_repair_loses_no_pack(tmp_path: Path) -> None:
    place = open_location(str(tmp_path / "original"))
    repository = packed_repository(place)
    made = random.Random(1)
    files = stream(6) | {f"_schema/{n}": made.randbytes(3000) for n in range(20)}
    manifest = back_up(place, files).manifest
    rot(repository.location, entry_of(manifest, "_schema/7").object)
    record_verification(repository, verify_backup(repository, manifest, read_data=ReadData()))
    left = len(restorable(repository, manifest))
    assert left == len(manifest.files) - 1

    def repaired(steps: Steps) -> None:
        root = tmp_path / str(steps.at)
        shutil.copytree(tmp_path / "original", root, copy_function=shutil.copy2)
        copied = Repository.open(open_location(str(root / "backups")))
        plan = plan_objects_repair(copied, open_location(str(root / "orders")))
        with steps.counting():
            apply_objects_repair(copied, open_location(str(root / "orders")), plan)
        assert len(restorable(copied, manifest)) >= left
        assert steps.dead or len(restorable(copied, manifest)) == left + 1

    assert killed_at_each_step(repaired, ".pack") >= 2
