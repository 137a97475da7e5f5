from __future__ import annotations

from airflow_ckpt_provider.checkpoint.state_files import StateFiles, StateVersion, state_files
from airflow_ckpt_provider.storage.store import StoredFile

A = "436d53a7-d7a3-4d05-9a2f-5ea25d0a0a4b"


def sorted_out(*names: str) -> StateFiles:
    return state_files("state/0/0", {name: StoredFile(f"state/0/0/{name}", 1) for name in names})


def test_kinds_and_versions() -> None:
    found = sorted_out("1.delta", "2.delta", "2.snapshot", "3.zip", "12.changelog", f"4_{A}.zip", f"5_{A}.changelog")
    assert list(found.deltas) == [StateVersion(1), StateVersion(2)]
    assert list(found.snapshots) == [StateVersion(2)]
    assert list(found.zips) == [StateVersion(3), StateVersion(4, A)]
    assert list(found.changelogs) == [StateVersion(12), StateVersion(5, A)]
    assert found.zips[StateVersion(3)].path == "state/0/0/3.zip"
    assert found.newest == 12


def test_anything_else_is_left_out() -> None:
    found = sorted_out(
        "schema", "3.zip.crc", ".3.zip.crc", "3.delta.tmp", "x.delta", "3_short.zip", "3.sst", "-1.delta"
    )
    assert found.newest == 0
    assert not any((found.deltas, found.snapshots, found.zips, found.changelogs))


def test_version_as_spark_writes_it() -> None:
    assert str(StateVersion(7)) == "7"
    assert str(StateVersion(7, A)) == f"7_{A}"
    assert StateVersion(7) < StateVersion(10)
