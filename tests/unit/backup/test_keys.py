"""Keys of an encrypted repository: added, rotated, removed, exported; killed at any moment, there is always one that opens it."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.keys import add_key, export_keys, import_keys, list_keys, remove_key, rotate_key
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError, RepositoryError
from airflow_ckpt_provider.storage.keys import WrappedKey, parse_key, read_key
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.backups import stream
from tests.support.checkpoints import contents, plant
from tests.support.command_line import run
from tests.support.killing import killed_before

FIRST, SECOND, THIRD = (os.urandom(32) for _ in range(3))
GOLDEN = Path(__file__).parents[2] / "golden" / "stored" / "keys"


@pytest.fixture
def place(tmp_path: Path) -> Location:
    """A repository with one backup, made with the first key."""
    checkpoint = plant(open_location(str(tmp_path / "orders")), stream())
    there = open_location(str(tmp_path / "backups"))
    create_backup(Checkpoint.at(checkpoint), Repository.open_or_create(replace(there, key=FIRST)), name="orders")
    return there


def with_key(place: Location, key: bytes | None) -> Location:
    return replace(place, key=key)


def opens(place: Location, key: bytes) -> bool:
    """Whether a key opens the repository, and every byte of the backup in it is read with it."""
    try:
        repository = Repository.open(with_key(place, key))
    except RepositoryError:
        return False
    assert verify_backup(repository, repository.manifest(), read_data=ReadData()).ok
    return True


def key_file(directory: Path, key: bytes, name: str) -> Path:
    file = directory / name
    file.touch(0o600)
    file.write_text(base64.b64encode(key).decode())
    return file


def ids(place: Location) -> list[str]:
    return [each.id for each in list_keys(place)]


class TestKeyFiles:
    @pytest.mark.parametrize("mode", [0o604, 0o640, 0o644, 0o602, 0o620, 0o610, 0o666, 0o777, 0o440])
    def test_one_that_others_can_read_is_refused(self, tmp_path: Path, mode: int) -> None:
        file = key_file(tmp_path, FIRST, "repository.key")
        file.chmod(mode)
        with pytest.raises(RefusedError) as error:
            read_key(str(file))
        assert (
            error.value.message == f"--key-file {file} has mode {mode:04o}: others than its owner can read or change it"
        )
        assert f"chmod 600 {file}" in str(error.value.hint)
        assert base64.b64encode(FIRST).decode() not in str(error.value)

    @pytest.mark.parametrize("mode", [0o600, 0o400])
    def test_one_that_only_its_owner_can_read(self, tmp_path: Path, mode: int) -> None:
        file = key_file(tmp_path, FIRST, "repository.key")
        file.chmod(mode)
        assert read_key(str(file)) == FIRST

    def test_a_link_is_judged_by_its_file(self, tmp_path: Path) -> None:
        file = key_file(tmp_path, FIRST, "repository.key")
        (link := tmp_path / "link").symlink_to(file)
        assert read_key(str(link)) == FIRST
        file.chmod(0o644)
        with pytest.raises(RefusedError, match="has mode 0644"):
            read_key(str(link))

    def test_one_that_is_no_text_is_not_shown(self, tmp_path: Path) -> None:
        file = tmp_path / "binary"
        file.touch(0o600)
        file.write_bytes(b"\xff\xfe secret")
        with pytest.raises(RefusedError, match="it is no text") as error:
            read_key(str(file))
        assert "secret" not in f"{error.value} {error.value.__cause__}"

    @pytest.mark.parametrize("verb", ["backup", "key"])
    def test_of_a_verb(self, tmp_path: Path, verb: str) -> None:
        file = key_file(tmp_path, FIRST, "repository.key")
        file.chmod(0o644)
        argv = {"backup": ["backup", tmp_path / "orders"], "key": ["key", "list"]}[verb]
        finished = run(*argv, tmp_path / "backups", "--key-file", file)
        assert finished.code == 1
        assert f"error: --key-file {file} has mode 0644" in finished.err
        assert not (tmp_path / "backups").exists()


def test_a_second_key_opens_the_repository_too(place: Location) -> None:
    made = add_key(with_key(place, FIRST), SECOND, note="of the second team", made_by="me")
    assert opens(place, FIRST)
    assert opens(place, SECOND)
    assert not opens(place, THIRD)
    first, second = list_keys(with_key(place, SECOND))
    assert (first.added_at, first.is_given, second.id) == ("", False, made.id)
    assert (second.note, second.added_by, second.is_given) == ("of the second team", "me", True)
    assert [each.is_given for each in list_keys(place)] == [None, None], "it needs no key"
    assert re.search(r" \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC +me +of the second team", run("key", "list", place.root).out)
    assert add_key(with_key(place, FIRST), SECOND).id == made.id
    assert len(ids(place)) == 2


def test_a_key_that_was_removed_does_not_open_it_and_is_nowhere(place: Location) -> None:
    old = ids(place)[0]
    wrapped = json.loads(place.read("repository.json"))["encryption"]["wrapped_key"]
    add_key(with_key(place, FIRST), SECOND)
    remove_key(with_key(place, SECOND), old)
    assert not opens(place, FIRST)
    assert opens(place, SECOND)
    assert not [path for path, data in contents(place).items() if wrapped.encode() in data]
    third = add_key(with_key(place, SECOND), THIRD)
    remove_key(with_key(place, THIRD), ids(place)[0])
    assert (opens(place, SECOND), opens(place, THIRD), ids(place)) == (False, True, [third.id])
    kinds = [record["kind"] for record in Repository.open(with_key(place, THIRD)).records()]
    assert kinds == ["key removed", "key added"] * 2


def test_a_backup_goes_on_after_a_rotation(place: Location, tmp_path: Path) -> None:
    rotate_key(with_key(place, FIRST), SECOND)
    plant(open_location(str(tmp_path / "orders")), stream(9))
    repository = Repository.open_or_create(with_key(place, SECOND))
    made = create_backup(Checkpoint.at(open_location(str(tmp_path / "orders"))), repository, name="orders")
    assert len(repository.backup_ids("orders")) == 2
    assert verify_backup(repository, made.manifest, read_data=ReadData()).ok


class TestWhatIsRefused:
    def test_the_last_key_is_never_removed(self, place: Location) -> None:
        with pytest.raises(RefusedError, match="is the only key of"):
            remove_key(with_key(place, FIRST), ids(place)[0])

    def test_nor_the_one_that_was_given(self, place: Location) -> None:
        add_key(with_key(place, FIRST), SECOND)
        with pytest.raises(RefusedError, match="is the key that was given"):
            remove_key(with_key(place, FIRST), ids(place)[0])

    def test_one_that_is_not_there(self, place: Location) -> None:
        with pytest.raises(RefusedError, match="has no key 0123456789ab"):
            remove_key(with_key(place, FIRST), "0123456789ab")

    def test_a_plain_repository(self, tmp_path: Path) -> None:
        plain = open_location(str(tmp_path / "plain"))
        Repository.open_or_create(plain)
        for change in (lambda: add_key(plain, FIRST), lambda: list_keys(plain), lambda: export_keys(plain)):
            with pytest.raises(RepositoryError, match="is not encrypted: it has no keys"):
                change()

    @pytest.mark.parametrize("action", ["add", "remove", "rotate", "list", "export", "import", "backup", "verify"])
    def test_by_a_wrong_key_which_writes_nothing(self, place: Location, tmp_path: Path, action: str) -> None:
        wrong, new = (key_file(tmp_path, key, name) for key, name in ((THIRD, "wrong.key"), (SECOND, "new.key")))
        export = tmp_path / "export.json"
        export.write_text(json.dumps(export_keys(with_key(place, FIRST))))
        more = {
            "add": ["--new-key-file", new],
            "rotate": ["--new-key-file", new],
            "remove": ["--id", ids(place)[0]],
            "import": ["--file", export],
            "export": ["--file", tmp_path / "again.json"],
        }.get(action, [])
        before = contents(place)
        argv = {
            "backup": ["backup", tmp_path / "orders", place.root],
            "verify": ["verify", place.root, "latest"],
        }.get(action, ["key", action, place.root, *more])
        finished = run(*argv, "--key-file", wrong)
        assert finished.code == 1
        said = (
            "opens none of the 1 keys of the export"
            if action == "import"
            else "is encrypted with another key than the one given"
        )
        assert said in finished.err
        assert contents(place) == before
        assert not (tmp_path / "again.json").exists()

    def test_the_same_key(self, place: Location) -> None:
        with pytest.raises(RefusedError, match="the new key is the old one"):
            rotate_key(with_key(place, FIRST), FIRST)

    @pytest.mark.parametrize(
        "argv", [["add"], ["remove"], ["export"], ["list", "--id", "x"], ["add", "--new-key-file", "x", "--file", "y"]]
    )
    def test_wrong_usage(self, place: Location, argv: list[str]) -> None:
        finished = run("key", argv[0], place.root, *argv[1:])
        assert finished.code == 2
        assert f"key {argv[0]} {'takes no' if len(argv) > 1 else 'needs'} --" in finished.err


class TestKilled:
    """At every write; whoever has the old or the new key gets in, and the same command finishes."""

    @pytest.mark.parametrize("action", ["add", "rotate", "remove"])
    def test_anywhere(self, place: Location, tmp_path: Path, action: str) -> None:
        old, new = (key_file(tmp_path, key, name) for key, name in ((FIRST, "old.key"), (SECOND, "new.key")))
        if action == "remove":
            add_key(with_key(place, FIRST), SECOND)
            argv = ["key", "remove", place.root, "--id", ids(place)[0], "--key-file", new]
        else:
            argv = ["key", action, place.root, "--new-key-file", new, "--key-file", old]
        shutil.copytree(place.root, kept := tmp_path / "kept")
        for write in range(20):
            shutil.rmtree(place.root)
            shutil.copytree(kept, place.root)
            killed = killed_before(write, *argv)
            assert opens(place, FIRST) or opens(place, SECOND), f"nobody gets in after write {write}"
            if action == "remove":
                assert opens(place, SECOND)
            if not killed:
                break
            again = run(*argv)
            assert again.code == 0, again.err
            assert opens(place, SECOND)
            assert opens(place, FIRST) is (action == "add")
        assert write >= {"add": 2, "remove": 4, "rotate": 6}[action] - 1
        if action == "rotate":
            assert run(*argv).code == 0, "again, after its end"


def test_two_removals_at_once_leave_a_key(place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    add_key(with_key(place, FIRST), SECOND)
    first, second = ids(place)
    both_have_read = threading.Barrier(2)
    create = type(place.store).create

    def after_both(store: Any, path: str, data: bytes) -> None:
        if path.endswith("/keys/000002.json") and threading.current_thread() is not threading.main_thread():
            both_have_read.wait(30)
        create(store, path, data)

    monkeypatch.setattr(type(place.store), "create", after_both)
    answers: list[object] = []

    def attempt(change: Callable[[], object]) -> None:
        try:
            answers.append(change())
        except (RefusedError, RepositoryError) as e:
            answers.append(e)

    removals = [
        threading.Thread(target=attempt, args=(lambda: remove_key(with_key(place, SECOND), first),)),
        threading.Thread(target=attempt, args=(lambda: remove_key(with_key(place, FIRST), second),)),
    ]
    for each in removals:
        each.start()
    for each in removals:
        each.join()
    assert sorted(isinstance(each, Exception) for each in answers) == [False, True], answers
    assert len(ids(place)) == 1
    assert [opens(place, FIRST), opens(place, SECOND)].count(True) == 1


class TestExport:
    @pytest.fixture
    def exported(self, place: Location) -> bytes:
        add_key(with_key(place, FIRST), SECOND, note="second")
        return json.dumps(export_keys(with_key(place, FIRST))).encode()

    def destroy(self, place: Location, what: str) -> None:
        if what == "marker":
            place.delete("repository.json")
        elif what == "damaged marker":
            place.replace("repository.json", b"\x00" * 100)
        elif what == "marker without an object":
            place.replace("repository.json", b"true")
        elif what.startswith("marker made "):
            marker = json.loads(place.read("repository.json"))
            forged = {"plain": None, "a number": 7, "a list": ["wrapped_key"], "empty": {}}
            encryption = forged[what.removeprefix("marker made ")]
            place.replace("repository.json", json.dumps({**marker, "encryption": encryption}).encode())
        if what in ("keys", "all"):
            place.delete("keys/000001.json")
        if what == "damaged keys":
            place.replace("keys/000001.json", b'{"format"')
        if what == "all":
            place.delete("repository.json")

    @pytest.mark.parametrize(
        "what",
        [
            *("marker", "damaged marker", "marker without an object", "marker made plain", "marker made a number"),
            *("marker made a list", "marker made empty", "keys", "damaged keys", "all", "nothing"),
        ],
    )
    def test_puts_back_what_was_destroyed(self, place: Location, exported: bytes, what: str) -> None:
        self.destroy(place, what)
        for _ in range(2):
            import_keys(with_key(place, SECOND), exported)
            assert opens(place, FIRST)
            assert opens(place, SECOND)
            assert len(ids(place)) == 2

    @pytest.mark.parametrize("what", ["damaged marker", "marker without an object", "marker made a number"])
    def test_a_list_of_the_keys_says_what_cannot_be_read(self, place: Location, exported: bytes, what: str) -> None:
        self.destroy(place, what)
        with pytest.raises(RepositoryError, match=r"repository\.json") as error:
            list_keys(with_key(place, FIRST))
        assert "airflow-ckpt key import" in str(error.value)

    def test_after_the_first_key_was_removed(self, place: Location, exported: bytes) -> None:
        remove_key(with_key(place, SECOND), ids(place)[0])
        exported = json.dumps(export_keys(with_key(place, SECOND))).encode()
        self.destroy(place, "all") if place.find("keys/000001.json") else place.delete("repository.json")
        for file in place.list("keys").files:
            place.delete(file.path)
        with pytest.raises(RepositoryError):
            Repository.open(with_key(place, SECOND))
        import_keys(with_key(place, SECOND), exported)
        assert (opens(place, FIRST), opens(place, SECOND)) == (False, True)

    def test_without_them_the_error_names_the_import(self, place: Location, exported: bytes) -> None:
        remove_key(with_key(place, SECOND), ids(place)[0])
        place.delete("keys/000002.json")
        with pytest.raises(RepositoryError, match="its wrapped keys are gone") as error:
            Repository.open(with_key(place, SECOND))
        assert "airflow-ckpt key import" in str(error.value)
        import_keys(with_key(place, SECOND), exported)
        assert opens(place, SECOND)

    def test_has_no_secret_in_it(self, place: Location, exported: bytes) -> None:
        data_key = WrappedKey.from_json(json.loads(exported)["keys"][0]).unwrapped(FIRST)
        assert data_key is not None
        for secret in (FIRST, SECOND, data_key):
            assert base64.b64encode(secret) not in exported
            assert secret.hex().encode() not in exported

    def test_of_another_repository(self, place: Location, exported: bytes, tmp_path: Path) -> None:
        other = open_location(str(tmp_path / "other"))
        create_backup(
            Checkpoint.at(open_location(str(tmp_path / "orders"))),
            Repository.open_or_create(with_key(other, FIRST)),
            name="o",
        )
        before = contents(other)
        with pytest.raises(RefusedError, match=r"is repository .*, and the export is of"):
            import_keys(with_key(other, FIRST), exported)
        assert contents(other) == before
        other.delete("repository.json")
        before = contents(other)
        with pytest.raises(RefusedError, match="the keys of the export do not decrypt"):
            import_keys(with_key(other, FIRST), exported)
        assert contents(other) == before

    def test_into_an_empty_place(self, exported: bytes, tmp_path: Path) -> None:
        empty = open_location(str(tmp_path / "empty"))
        with pytest.raises(RefusedError, match="holds no encrypted file"):
            import_keys(with_key(empty, FIRST), exported)
        assert not (tmp_path / "empty").exists()

    @pytest.mark.parametrize(
        "data", [b"", b"{}", b"[]", b"null", b'{"format": "airflow-ckpt-key-export", "version": 2}']
    )
    def test_what_is_none(self, place: Location, data: bytes) -> None:
        before = contents(place)
        with pytest.raises(RefusedError, match="this is no export of keys"):
            import_keys(with_key(place, FIRST), data)
        assert contents(place) == before

    def test_from_the_shell(self, place: Location, tmp_path: Path) -> None:
        key, export = key_file(tmp_path, FIRST, "key"), tmp_path / "export.json"
        made = run("key", "export", place.root, "--file", export, "--key-file", key, "--json")
        assert made.document == {"file": str(export), "repository_id": made.document["repository_id"], "keys": 1}
        assert export.stat().st_mode & 0o777 == 0o600
        assert run("key", "export", place.root, "--file", export, "--key-file", key).code == 1, (
            "it is never overwritten"
        )
        place.delete("repository.json")
        assert run("key", "list", place.root).code == 1
        finished = run("key", "import", place.root, "--file", export, "--key-file", key, "--json")
        assert finished.code == 0, finished.err
        assert [each["is_given"] for each in finished.document["keys"]] == [True]
        assert opens(place, FIRST)


class TestStored:
    """``tests/golden/stored/keys``: repositories and an export of earlier versions are readable for ever."""

    FIRST = parse_key((GOLDEN / "first.key").read_text(), name="first")
    SECOND = parse_key((GOLDEN / "second.key").read_text(), name="second")

    @pytest.mark.parametrize(
        ("name", "keys"), [("one_key", [FIRST]), ("two_keys", [FIRST, SECOND]), ("rotated", [SECOND])]
    )
    def test_a_repository(self, name: str, keys: list[bytes]) -> None:
        place = open_location(str(GOLDEN / name))
        for key in (self.FIRST, self.SECOND):
            if key not in keys:
                with pytest.raises(RepositoryError, match="another key"):
                    Repository.open(with_key(place, key))
                continue
            repository = Repository.open(with_key(place, key))
            assert repository.location.read("audit/20261122T180000Z-0a1b2c3d.json") == b'{"golden": true}'
        assert len(ids(place)) == len(keys)

    def test_an_export(self, tmp_path: Path) -> None:
        shutil.copytree(GOLDEN / "rotated", there := tmp_path / "rotated")
        (there / "repository.json").unlink()
        shutil.rmtree(there / "keys")
        place = open_location(str(there))
        found = import_keys(with_key(place, self.SECOND), (GOLDEN / "export.json").read_bytes())
        assert [each.note for each in found] == ["after the audit of 2026"]
        assert Repository.open(with_key(place, self.SECOND)).repository_id == "3f7d0c58-7f0e-4d0c-9f3e-2f8f6a3b1c11"
