"""What a restore reads: every pack once, though all of a backup is checked before anything is changed."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from airflow_ckpt_provider.backup import kept_contents
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.kept_contents import KeptContents
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.pack_file import PackBuilder
from airflow_ckpt_provider.backup.pack_reads import SPAN, spans
from airflow_ckpt_provider.backup.packing import PACK_SIZE, PACKED_BELOW
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import DamagedBackupError
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import content_path
from tests.support.backups import back_up, files_in, stream
from tests.support.checkpoints import contents
from tests.support.packs import packed_repository, packs_of, rot, with_big_files
from tests.support.watched_stores import in_memory, watched


def restored(place: Location, made: Manifest) -> Counter[str]:
    """Restore a backup; how often each object was read."""
    seen, store = watched(place / "backups")
    apply_restore(plan_restore(Repository.open(seen), made, place / "target"))
    assert contents(place / "target") == files_in(made, place)
    reads = [path for operation, path in store.requests if operation.startswith("read") and "/objects/" in path]
    return Counter(path.rpartition("/backups/")[2] for path in reads)


def test_each_pack_is_read_once(place: Location) -> None:
    repository = packed_repository(place)
    back_up(place, stream(4))
    made = back_up(place, with_big_files(stream(6))).manifest
    assert restored(place, made) == dict.fromkeys(packs_of(repository), 1) | {
        e.object: 2 for e in made.files if not e.is_packed
    }


@pytest.mark.parametrize("most", [0, 1500])
def test_what_does_not_fit_into_memory_is_read_again(
    place: Location, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(KeptContents.__init__, "__defaults__", (most,))
    packed_repository(place)
    made = back_up(place, stream(6)).manifest
    assert max(restored(place, made).values()) >= 2


def test_nothing_is_changed_where_a_content_is_damaged(place: Location) -> None:
    repository = packed_repository(place)
    made = back_up(place, stream(6)).manifest
    rot(repository.location, next(e.object for e in made.files if e.path.startswith("state/") and e.size))
    with pytest.raises(DamagedBackupError):
        apply_restore(plan_restore(repository, made, place / "target"))
    assert contents(place / "target") == {}


def test_what_is_kept_is_compared_again_and_takes_little_room() -> None:
    import hashlib

    def entry(content: bytes) -> FileEntry:
        return FileEntry("a", len(content), "objects/orders/aa/x", hashlib.sha256(content).hexdigest())

    kept = KeptContents(2 * kept_contents._EACH + 10)
    for content in (b"12345", b"12345", b"6789", b"0", bytes(PACKED_BELOW)):
        kept.keep(entry(content), content)
    assert [kept.get(entry(c)) for c in (b"12345", b"6789", b"0")] == [b"12345", b"6789", None]
    kept.keep(FileEntry("a", 1, "objects/orders/aa/y"), b"1")
    other = KeptContents()
    other.keep(entry(b"right"), b"wrong")
    assert other.get(entry(b"right")) is None
    other.keep(entry(bytes(PACKED_BELOW)), bytes(PACKED_BELOW))
    assert other.get(entry(bytes(PACKED_BELOW))) is None


@pytest.mark.parametrize("seed", range(5))
def test_two_requests_read_a_full_pack(seed: int) -> None:
    chance = random.Random(seed)
    pack = PackBuilder()
    rows: list[tuple[str, int, int]] = []
    while len(pack) < PACK_SIZE:
        length = PACKED_BELOW - 1 if seed == 0 else chance.randint(1, chance.choice((3_000, PACKED_BELOW - 1)))
        sha256 = f"{len(rows):064x}"
        rows.append((sha256, pack.add(bytes(length), sha256), length))
    path = f"objects/orders/aa/{0:064x}-{len(pack.sealed())}.pack"
    entries = [FileEntry(str(n), row[2], content_path(path, *row), row[0]) for n, row in enumerate(rows)]
    found = list(spans(in_memory(), path, entries))
    assert len(found) == 2
    assert all(span.end - span.start <= SPAN for span in found)


@pytest.mark.parametrize(
    ("files", "size", "pays"), [(5_000, 54_000_000, True), (50_000, 540_000_000, True), (1_000_000, 450_000_000, False)]
)
def test_contents_of_which_few_fit_into_memory_are_not_kept(files: int, size: int, pays: bool) -> None:
    assert kept_contents.fit(files, size) is pays
