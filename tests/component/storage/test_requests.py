"""What a backup asks of a real S3 server, counted on the way: what grows with the files, and what does not."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.opening import open_location
from benchmarks.sample_tree import SampleTree
from tests.support.s3_gate import Gate, Request, by_kind
from tests.support.s3_server import S3Server
from tests.support.stopped import STOPPED

#: Of a run with nothing new, whatever the files: GET repository.json, metadata, the newest offsets; the lease twice; the last
#: manifest; five small files of the closure; three for the check whether history is the same.
_GETS = 14
#: commits three times, offsets, names, marks of prunes, manifests, what is known to be damaged and, as there is no record of it,
#: what verifies of earlier versions noted; the two sweeps come on top, a request for each thousand files.
_LISTS = 9
#: Lease twice, claim, its end, the manifest.
_PUTS = 5
_PAGE = 1000


@pytest.fixture
def gate(s3_server: S3Server) -> Iterator[Gate]:
    made = Gate(s3_server)
    yield made
    made.close()


def with_nothing_new(server: S3Server, gate: Gate, tree: SampleTree) -> tuple[int, int, bool, list[Request]]:
    """Files of a checkpoint, files that hold its backup, and what a second backup asks."""
    bucket = server.make_bucket()
    plain = open_location(f"s3://{bucket}", storage_options=server.options())
    files = list(tree.files())
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda file: plain.replace(f"orders/{file[0]}", file[1]), files))

    def back_up(options: dict[str, object]) -> int:
        place = open_location(f"s3://{bucket}", storage_options=options)
        repository = Repository.open_or_create(place / "repository")
        return create_backup(Checkpoint.at(place / "orders"), repository).copied_files

    back_up(server.options())
    with gate.watched() as requests:
        assert back_up(gate.options()) == 0
    return len(files), len(plain.walk("repository/objects")), Repository.open(plain / "repository").packs, requests


def pages(files: int) -> int:
    return -(-files // _PAGE)


def check(files: int, objects: int, packs: bool, requests: list[Request]) -> int:
    kinds = by_kind(requests)
    lists = _LISTS + (1 if packs else 0)  # whether contents were moved
    assert kinds == {"GET": _GETS, "PUT": _PUTS, "LIST": lists + pages(files) + pages(objects)}, list(
        map(str, requests)
    )
    return len(requests)


def test_with_nothing_new_only_the_sweeps_grow(s3_server: S3Server, gate: Gate) -> None:
    few = with_nothing_new(s3_server, gate, SampleTree(partitions=4))
    more = with_nothing_new(s3_server, gate, SampleTree(partitions=44))
    assert check(*more) - check(*few) == grows(more), "one page more of each sweep, for a thousand files more"


def grows(asked: tuple[int, int, bool, list[Request]]) -> int:
    """Which sweeps grow with the files: that of the checkpoint, and that of the objects unless there are a few packs."""
    files, objects, *_ = asked
    return 2 if objects > files / 2 else 1


@pytest.mark.slow
def test_the_same_for_thousands(s3_server: S3Server, gate: Gate) -> None:
    few = with_nothing_new(s3_server, gate, SampleTree(partitions=20))
    more = with_nothing_new(s3_server, gate, SampleTree(partitions=200))
    assert (few[0] // 100, more[0] // 1000) == (5, 5)
    assert check(*more) - check(*few) == grows(more) * 5


@pytest.mark.format_1("the store copies the small files of this test; of packs: the next test")
def test_a_restore_asks_as_much_as_a_backup_and_in_place_for_what_differs(s3_server: S3Server, gate: Gate) -> None:
    tree, bucket = SampleTree(partitions=3), s3_server.make_bucket()
    plain = open_location(f"s3://{bucket}", storage_options=s3_server.options())
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda file: plain.replace(f"orders/{file[0]}", file[1]), tree.files()))
    through = open_location(f"s3://{bucket}", storage_options=gate.options())
    repository = Repository.open_or_create(through / "repository")
    with gate.watched() as backing_up:
        manifest = create_backup(Checkpoint.at(through / "orders"), repository).manifest
    with gate.watched() as restoring:
        apply_restore(plan_restore(repository, manifest, through / "elsewhere"))
    copied = [entry for entry in manifest.files if entry.checksum]
    assert by_kind(restoring)["COPY"] == len(copied) > 75
    # Of these one is a second try, to see whether the service refuses to copy over a file; a new lease is not read back for it.
    assert by_kind(backing_up) == {
        "COPY": len(copied) + 1,
        "GET": 14,  # with three of a first one: whether the bucket above is a repository or a checkpoint
        "PUT": _PUTS + len(manifest.files) - len(copied),
        "LIST": 13,  # with the names of the streams, what is known to be damaged, and the commits at the end
    }
    assert len(restoring) < len(backing_up) + 25, "nothing is read of what the store copies by itself"

    changed = tree.changed(0.1, 1)
    for path in changed:
        plain.replace(f"orders/{path}", b"somebody else's")
    with gate.watched() as in_place:
        outcome = apply_restore(plan_restore(repository, manifest, through / "orders", replace=True), rest=STOPPED)
    written = [
        r for r in in_place if r.kind in ("COPY", "PUT", "DELETE") and r.path.startswith(f"/{bucket}/orders/state")
    ]
    assert sorted(r.path.partition("/orders/")[2] for r in written if r.kind == "COPY") == sorted(changed)
    assert outcome.unchanged >= len(copied) - len(changed)
    state = [(plain / name / "state").walk() for name in ("orders", "elsewhere")]
    assert [{path: file.checksum for path, file in found.items()} for found in state] == [
        {path: file.checksum for path, file in state[1].items()}
    ] * 2


def test_packs_take_a_write_for_many_files_and_a_read_for_many(s3_server: S3Server, gate: Gate) -> None:
    tree, bucket = SampleTree(partitions=12), s3_server.make_bucket()
    plain = open_location(f"s3://{bucket}", storage_options=s3_server.options())
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda file: plain.replace(f"orders/{file[0]}", file[1]), tree.files()))
    through = open_location(f"s3://{bucket}", storage_options=gate.options())
    repository = Repository.open_or_create(through / "repository", format=2)
    with gate.watched() as backing_up:
        manifest = create_backup(Checkpoint.at(through / "orders"), repository).manifest
    files = len(manifest.files)
    assert files > 300
    asked = by_kind(backing_up)
    assert (asked["PUT"], asked["COPY"]) == (_PUTS + 1, 0), "one pack"
    assert asked["GET"] <= files + 12
    with gate.watched() as restoring:
        apply_restore(plan_restore(repository, manifest, through / "elsewhere"))
    asked = by_kind(restoring)
    written = [r for r in restoring if r.kind == "PUT" and r.path.startswith(f"/{bucket}/elsewhere")]
    assert files <= len(written) <= files + 4, "each file, and the seal"
    objects = [r for r in restoring if r.kind == "GET" and "/objects/" in r.path]
    # The pack is read when it is checked and when it is written, and the logs, whose order matters, one by one.
    assert len(objects) <= 2 + sum(
        entry.path.startswith(("offsets/", "commits/", "metadata")) for entry in manifest.files
    )
    with gate.watched() as verifying:
        assert verify_backup(repository, manifest, read_data=ReadData()).ok
    assert sum(r.kind == "GET" for r in verifying if "/objects/" in r.path) == 1
    there = (plain / "orders").walk()
    assert all(file.checksum == there[path].checksum for path, file in (plain / "elsewhere").walk().items())
