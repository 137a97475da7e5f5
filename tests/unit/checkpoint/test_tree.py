from __future__ import annotations

import os
from pathlib import Path

from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.location import Location
from tests.support.checkpoints import plant
from tests.support.counted_listings import ListingCounter
from tests.support.watched_stores import watched


def test_what_spark_ignores_is_not_there(place: Location) -> None:
    seen = {"offsets/1", "state/0/0/1.delta", "state/0/0/1.delta.crc", "top"}
    hidden = {
        ".metadata.crc",
        "offsets/.1.crc",
        "offsets/.2.5b8fb6a2.tmp",
        ".hidden/file",
        "state/0/.snapshot/1.delta",
    }
    tree = Tree.of(plant(place, dict.fromkeys(seen | hidden, b"x")))
    assert {file.path for file in tree.below("")} == seen
    assert tree.directories("state/0") == ["0"]
    assert tree.directories() == ["offsets", "state"]


def test_looking_things_up(place: Location) -> None:
    tree = Tree.of(plant(place, dict.fromkeys(("a/2/x", "a/10/x", "a/b/x", "l/3", "l/12", "l/9.compact", "l/x"), b"")))
    assert tree.numbered_directories("a") == [2, 10]
    assert tree.batches("l") == (3, 12)
    assert tree.batches("none") == ()
    assert (tree.get("a/2/x"), tree.get("a/2"), tree.get("a/2/y")) == (tree.files("a/2")["x"], None, None)


def test_each_directory_is_listed_once(tmp_path: Path) -> None:
    store = ListingCounter()
    plant(Location(store, str(tmp_path)), dict.fromkeys(("a/b/c/1", "a/b/2", "a/d/3", "4"), b""))
    Tree.of(Location(store, str(tmp_path)))
    expected = [tmp_path, tmp_path / "a", tmp_path / "a/b", tmp_path / "a/b/c", tmp_path / "a/d"]
    assert sorted(store.listed) == sorted(map(str, expected))


def test_a_file_is_read_once_while_it_stays_the_same(place: Location) -> None:
    plant(place, {"a": b"1", "b": b"2"})
    location, store = watched(place)
    first = Tree.of(location)
    a = first.get("a")
    assert a is not None
    assert first.content_in_hand(a) is None
    assert (first.read(a), first.read(a), first.content_in_hand(a)) == (b"1", b"1", b"1")
    second = Tree.of(location, like=first)
    again = second.get("a")
    assert again is not None
    assert second.read(again) == b"1"
    assert store.count("read") == 1


def test_a_replaced_file_is_read_again(tmp_path: Path) -> None:
    """Same name, same size: only the identity shows."""
    location = Location(LocalStore(), str(tmp_path))
    location.replace("a", b"1")
    first = Tree.of(location)
    assert first.read(first.files()["a"]) == b"1"
    location.replace("a", b"2")
    os.utime(tmp_path / "a", ns=(1, 1))
    second = Tree.of(location, like=first)
    assert second.read(second.files()["a"]) == b"2"


def test_content_in_hand_survives_the_file(place: Location) -> None:
    tree = Tree.of(plant(place, {"a": b"1"}))
    tree.read(tree.files()["a"])
    place.delete("a")
    assert tree.content_in_hand(tree.files()["a"]) == b"1"
