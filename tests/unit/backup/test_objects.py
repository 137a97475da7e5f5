"""objects: named by content, trusted only when vouched for or read, never overwritten."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.objects import Objects, Stored
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.storage.file_set import FileSet
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.location import Location
from tests.support.checkpoints import contents, plant
from tests.support.watched_stores import watched


def store(place: Location, *, vouched: Sequence[FileEntry] = (), path: str = "offsets/7") -> Stored:
    tree = Tree.of(place / "ck")
    return Objects(place / "repo", "orders", vouched=vouched).store(
        tree, tree.files(path.rpartition("/")[0])[path.rpartition("/")[2]]
    )


def object_path(content: bytes, suffix: str = "") -> str:
    key = hashlib.sha256(content).hexdigest()
    return f"objects/orders/{hashlib.sha256(key.encode()).hexdigest()[:2]}/{key}{suffix}"


def test_named_by_its_content(place: Location) -> None:
    plant(place / "ck", {"offsets/7": b"content"})
    stored = store(place)
    assert (stored.copied, stored.unproven) == (True, False)
    assert stored.entry.object == object_path(b"content")
    assert (stored.entry.path, stored.entry.size) == ("offsets/7", 7)
    assert stored.entry.sha256 == hashlib.sha256(b"content").hexdigest()
    assert contents(place / "repo") == {stored.entry.object: b"content"}


def test_the_same_content_under_two_paths_is_one_object(place: Location) -> None:
    plant(place / "ck", {"commits/6": b"v1", "commits/7": b"v1"})
    tree = Tree.of(place / "ck")
    objects = Objects(place / "repo", "orders", vouched=())
    first, second = (objects.store(tree, tree.files("commits")[name]) for name in ("6", "7"))
    assert (first.copied, second.copied) == (True, False)
    assert first.entry.object == second.entry.object
    assert (first.entry.path, second.entry.path) == ("commits/6", "commits/7")


def test_known_by_its_identity_it_is_not_read_again(place: Location) -> None:
    plant(place / "ck", {"offsets/7": b"content"})
    entry = store(place).entry
    checkpoint, asked = watched(place / "ck")
    tree = Tree.of(checkpoint)
    files = FileSet(tree.files("offsets").values())
    assert list(Objects(place / "repo", "orders", vouched=[entry]).held(files)) == [(files["offsets/7"], entry)]
    assert asked.count("read") == 0


def test_a_replaced_file_is_read_though_path_and_size_are_the_same(tmp_path: Path) -> None:
    """Format-1 state files are replaced in place when a batch runs again."""
    place = Location(LocalStore(), str(tmp_path))
    plant(place / "ck", {"offsets/7": b"content"})
    first = store(place).entry
    plant(place / "ck", {"offsets/7": b"CONTENT"})
    second = store(place, vouched=[first])
    assert second.copied
    assert second.entry.object == object_path(b"CONTENT") != first.object
    assert place.read(f"repo/{first.object}") == b"content"


def test_which_batches_needed_it_last_time_does_not_matter(place: Location) -> None:
    plant(place / "ck", {"offsets/7": b"content"})
    entry = store(place).entry
    vouched = FileEntry(entry.path, entry.size, entry.object, entry.sha256, identity=entry.identity, batches=(3,))
    assert store(place, vouched=[vouched]).entry.batches is None


@pytest.mark.parametrize("damage", ["missing", "short", "empty"])
def test_vouched_for_but_not_there_any_more(place: Location, damage: str) -> None:
    """Seen in the listing: it is stored again, under another name where its own is taken."""
    plant(place / "ck", {"offsets/7": b"content"})
    entry = store(place).entry
    (place / "repo").delete(entry.object)
    if damage != "missing":
        plant(place / "repo", {entry.object: b"cont" if damage == "short" else b""})
    again = store(place, vouched=[entry])
    assert again.copied
    assert place.read(f"repo/{again.entry.object}") == b"content"
    assert (again.entry.object == entry.object) == (damage == "missing")


@pytest.mark.parametrize("wrong", [b"CONTENT", b"", b"content and more"], ids=["same size", "empty", "longer"])
def test_an_orphan_of_the_right_name_and_wrong_content(place: Location, wrong: bytes) -> None:
    """Left by a backup that was killed, or damaged since: neither trusted nor overwritten."""
    plant(place / "ck", {"offsets/7": b"content"})
    plant(place / "repo", {object_path(b"content"): wrong})
    stored = store(place)
    assert stored.copied
    assert stored.entry.object == object_path(b"content", ".1")
    assert contents(place / "repo") == {object_path(b"content"): wrong, object_path(b"content", ".1"): b"content"}
    plant(place / "repo", {object_path(b"content", ".1"): b"damaged too"})
    assert store(place).entry.object == object_path(b"content", ".2")


def test_an_orphan_of_the_right_content_is_used(place: Location) -> None:
    plant(place / "ck", {"offsets/7": b"content"})
    plant(place / "repo", {object_path(b"content"): b"content"})
    stored = store(place)
    assert (stored.copied, stored.entry.object) == (False, object_path(b"content"))
    assert list(contents(place / "repo")) == [object_path(b"content")]


@pytest.mark.parametrize("theirs", [b"content", b"CONTENT"])
def test_written_by_somebody_else_since_the_listing(place: Location, theirs: bytes) -> None:
    plant(place / "ck", {"offsets/7": b"content"})

    def be_faster(operation: str, path: str) -> None:
        if operation == "create" and path.endswith(object_path(b"content")):
            plant(place / "repo", {object_path(b"content"): theirs})

    repository, _ = watched(place / "repo", be_faster)
    tree = Tree.of(place / "ck")
    stored = Objects(repository, "orders", vouched=()).store(tree, tree.files("offsets")["7"])
    assert stored.copied == (theirs != b"content")
    assert place.read(f"repo/{stored.entry.object}") == b"content"
    assert place.read(f"repo/{object_path(b'content')}") == theirs


class TestDamaged:
    """Objects that are known to be damaged: their content gets another name, whatever there is of them."""

    def stored(self, place: Location, damaged: Sequence[str], vouched: Sequence[FileEntry] = ()) -> Stored:
        tree = Tree.of(place / "ck")
        objects = Objects(place / "repo", "orders", vouched=vouched, damaged=damaged)
        (_, held) = next(iter(objects.held(FileSet(tree.files("offsets").values()))))
        assert held is None or held.object not in damaged
        return objects.store(tree, tree.files("offsets")["7"])

    @pytest.mark.parametrize("left", ["rotten", "right", "missing"])
    def test_the_content_is_stored_anew(self, place: Location, left: str) -> None:
        plant(place / "ck", {"offsets/7": b"content"})
        entry = store(place).entry
        if left == "missing":
            (place / "repo").delete(entry.object)
        elif left == "rotten":
            plant(place / "repo", {entry.object: b"CONTENT"})
        stored = self.stored(place, [entry.object], [entry])
        assert (stored.copied, stored.entry.object) == (True, object_path(b"content", ".1"))
        assert place.read(f"repo/{stored.entry.object}") == b"content"
        # Again, by a backup of which no manifest was written, and by one that lists both.
        assert self.stored(place, [entry.object], [entry]).copied is False
        for vouched in ([entry, stored.entry], [stored.entry, entry]):
            again = self.stored(place, [entry.object], vouched)
            assert (again.copied, again.entry.object) == (False, stored.entry.object)

    def test_the_one_after_it_is_damaged_too(self, place: Location) -> None:
        plant(place / "ck", {"offsets/7": b"content"})
        damaged = [object_path(b"content", suffix) for suffix in ("", ".1", ".2")]
        plant(place / "repo", {damaged[1]: b"CONTENT"})
        assert self.stored(place, damaged).entry.object == object_path(b"content", ".3")

    @pytest.mark.parametrize("missing", [False, True])
    def test_copied_within_the_store(self, place: Location, missing: bool) -> None:
        plant(place / "ck", {"offsets/7": b"content"})
        checkpoint, _ = watched(place / "ck", copies_within=True)
        repository, asked = watched(place / "repo", copies_within=True)
        tree = Tree.of(checkpoint)
        file = tree.files("offsets")["7"]
        first = Objects(repository, "orders", vouched=()).store(tree, file).entry
        if missing:
            (place / "repo").delete(first.object)
        for copied in (True, False):
            objects = Objects(repository, "orders", vouched=[first], damaged=[first.object])
            stored = objects.store(tree, file)
            assert (stored.copied, stored.entry.object) == (copied, f"{first.object}.1")
        assert asked.count("copy") == 2

    @pytest.mark.parametrize("missing", [False, True])
    def test_another_process_is_told(self, place: Location, missing: bool) -> None:
        """What it is not reported of it would write over."""
        plant(place / "ck", {"offsets/7": b"content"})
        checkpoint, _ = watched(place / "ck", copies_within=True)
        repository, _ = watched(place / "repo", copies_within=True)
        tree = Tree.of(checkpoint)
        file = tree.files("offsets")["7"]
        first = Objects(repository, "orders", vouched=()).store(tree, file).entry.object
        plant(place / "repo", {f"{first}.1": b"somebody else's, and longer"})
        if missing:
            (place / "repo").delete(first)
        (known,) = Objects(repository, "orders", vouched=(), damaged=[first]).known([[file]])
        there = Objects.like(repository, "orders", known)
        assert there.store(tree, file).entry.object == f"{first}.2"
        assert place.read(f"repo/{first}.1") == b"somebody else's, and longer"

    def test_an_encrypted_orphan_that_is_rotten_is_no_content(self, place: Location) -> None:
        plant(place / "ck", {"offsets/7": b"content"})
        repository = Repository.open_or_create(
            Location((place / "repo").store, (place / "repo").root, b"k" * 32)
        ).location
        tree = Tree.of(place / "ck")
        file = tree.files("offsets")["7"]
        first = Objects(repository, "orders", vouched=()).store(tree, file).entry.object
        content = (place / "repo").read(first)
        plant(place / "repo", {first: content[:-1] + bytes([content[-1] ^ 1])})
        stored = Objects(repository, "orders", vouched=()).store(tree, file)
        assert (stored.copied, stored.entry.object) == (True, f"{first}.1")
        assert repository.read(f"{first}.1") == b"content"


def test_a_hundred_damaged_ones(place: Location) -> None:
    plant(place / "ck", {"offsets/7": b"content"})
    plant(place / "repo", {object_path(b"content", s): b"x" for s in ("", *(f".{n}" for n in range(1, 100)))})
    with pytest.raises(StorageError) as error:
        store(place)
    assert error.value.message == f"{object_path(b'content')}: a hundred damaged objects of this name"
    assert error.value.hint == "use another repository"


def test_replaced_between_the_listing_and_the_read(place: Location) -> None:
    plant(place / "ck", {"offsets/7": b"content"})
    tree = Tree.of(place / "ck")
    plant(place / "ck", {"offsets/7": b"more content"})
    with pytest.raises(FileNotFoundError) as error:
        Objects(place / "repo", "orders", vouched=()).store(tree, tree.files("offsets")["7"])
    assert str(error.value) == "offsets/7 was replaced: 7 bytes when listed, 12 when read"
    assert contents(place / "repo") == {}


def test_gone_between_the_listing_and_the_read(place: Location) -> None:
    plant(place / "ck", {"offsets/7": b"content"})
    tree = Tree.of(place / "ck")
    (place / "ck").delete("offsets/7")
    with pytest.raises(FileNotFoundError):
        Objects(place / "repo", "orders", vouched=()).store(tree, tree.files("offsets")["7"])


class TestCopiesWithinTheStore:
    """Object stores copy by themselves; no byte passes through here, so the listing has to prove what arrived."""

    def test_no_byte_is_read(self, place: Location) -> None:
        plant(place / "ck", {"offsets/7": b"content"})
        checkpoint, asked_there = watched(place / "ck", copies_within=True)
        repository, asked_here = watched(place / "repo", copies_within=True)
        tree = Tree.of(checkpoint)
        file = tree.files("offsets")["7"]
        objects = Objects(repository, "orders", vouched=())
        stored = objects.store(tree, file)
        assert (stored.copied, stored.unproven) == (True, True)
        (entry,) = objects.prove(tree, [stored.entry], FileSet([file]))
        assert (entry.sha256, entry.checksum) == (None, file.checksum)
        assert place.read(f"repo/{entry.object}") == b"content"
        assert (asked_there.count("read"), asked_here.count("read")) == (0, 0)
        # Again, without a manifest: the store's checksum in the listing proves it.
        again = Objects(repository, "orders", vouched=()).store(tree, file)
        assert (again.copied, again.unproven, again.entry.object) == (False, False, entry.object)

    @pytest.mark.parametrize("gone", [False, True])
    def test_a_snapshot_that_was_read_already(self, place: Location, gone: bool) -> None:
        """Copied by the store all the same, unless maintenance has deleted it since."""
        plant(place / "ck", {"state/0/1/7.zip": b"content"})
        checkpoint, asked_there = watched(place / "ck", copies_within=True)
        repository, _ = watched(place / "repo", copies_within=True)
        tree = Tree.of(checkpoint)
        file = tree.files("state/0/1")["7.zip"]
        tree.read(file)
        if gone:
            (place / "ck").delete(file.path)
        stored = Objects(repository, "orders", vouched=()).store(tree, file)
        assert (stored.copied, stored.unproven) == (True, not gone)
        assert place.read(f"repo/{stored.entry.object}") == b"content"
        assert asked_there.count("read") == 1

    def test_replaced_while_it_was_copied(self, place: Location) -> None:
        plant(place / "ck", {"offsets/7": b"content"})

        def replace_it(operation: str, path: str) -> None:
            if operation == "copy":
                plant(place / "ck", {"offsets/7": b"CONTENT"})

        checkpoint, _ = watched(place / "ck", copies_within=True)
        repository, _ = watched(place / "repo", replace_it, copies_within=True)
        tree = Tree.of(checkpoint)
        file = tree.files("offsets")["7"]
        objects = Objects(repository, "orders", vouched=())
        stored = objects.store(tree, file)
        # What the manifest gets must not vouch for the content that was listed.
        with suppress(FileNotFoundError):
            (entry,) = objects.prove(tree, [stored.entry], FileSet([file]))
            assert entry.sha256 == hashlib.sha256(b"CONTENT").hexdigest()
            assert entry.checksum != file.checksum

    def test_an_orphan_that_the_store_says_is_another_content(self, place: Location) -> None:
        plant(place / "ck", {"offsets/7": b"content"})
        checkpoint, _ = watched(place / "ck", copies_within=True)
        repository, _ = watched(place / "repo", copies_within=True)
        tree = Tree.of(checkpoint)
        file = tree.files("offsets")["7"]
        first = Objects(repository, "orders", vouched=()).store(tree, file).entry.object
        plant(place / "repo", {first: b"CONTENT"})
        stored = Objects(repository, "orders", vouched=()).store(tree, file)
        assert (stored.copied, stored.entry.object) == (True, f"{first}.1")
        assert place.read(f"repo/{first}") == b"CONTENT"
