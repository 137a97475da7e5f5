"""Long names: of files in a checkpoint, and of streams. What can be backed up can be restored."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.names import LONGEST_NAME
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.recovery.rewind.planning import reachable
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.storage.hidden_name import hidden_name
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.backups import back_up, files_in, repository, stream, visible
from tests.support.stopped import STOPPED


@pytest.fixture
def disk(tmp_path: Path) -> Location:
    return open_location(str(tmp_path))


@pytest.mark.parametrize("name", ["n" * 240, "n" + "ü" * 124])
def test_a_file_with_a_long_name_is_restored_and_put_back(disk: Location, name: str) -> None:
    path = f"_schema_log_of_a_source/{name}"
    manifest = back_up(disk, stream() | {path: b"a schema"}).manifest
    assert files_in(manifest, disk)[path] == b"a schema"
    apply_restore(plan_restore(repository(disk), manifest, disk / "elsewhere"))
    assert visible(disk / "elsewhere") == files_in(manifest, disk)

    (disk / "orders").replace(path, b"another")
    plan = plan_restore(repository(disk), manifest, disk / "orders", replace=True)
    apply_restore(plan, rest=STOPPED)
    assert (disk / "orders").read(path) == b"a schema"
    undo(disk / "orders", repository(disk), rest=STOPPED)
    assert (disk / "orders").read(path) == b"another"


def test_a_hidden_name_fits_wherever_the_name_does(tmp_path: Path) -> None:
    for name in ("x", "n" * 255, "ü" * 127, "n" + "ü" * 127, "€" * 85):
        hidden = Path(hidden_name(f"{tmp_path}/{name}"))
        assert hidden.name.startswith(f".{name[:70]}")
        assert hidden.name.endswith(".tmp")
        assert len(os.fsencode(hidden.name)) <= 255
        hidden.touch()
    assert len(list(tmp_path.iterdir())) == 5


def test_the_longest_name_of_a_stream_does_for_everything(disk: Location) -> None:
    name = "n" * LONGEST_NAME
    manifest = back_up(disk, stream(), name=name).manifest
    back_up(disk, stream(5), name=name)
    assert [target.batch_id for target in reachable(Checkpoint.at(disk / "orders"), repository(disk), name=name)]
    plan = plan_restore(repository(disk), manifest, disk / "orders", replace=True)
    apply_restore(plan, rest=STOPPED)
    undo(disk / "orders", repository(disk), rest=STOPPED)


def test_a_longer_name_of_a_stream_is_refused_before_anything_is_copied(disk: Location, place: Location) -> None:
    for where in (disk, place):
        with pytest.raises(RefusedError) as error:
            back_up(where, stream(), name="n" * (LONGEST_NAME + 1))
        assert error.value.message == f"the name {'n' * 20}… of a stream has 241 characters, and at most 240 fit"
        assert error.value.hint == "give a shorter name (--name, or name=)"
        assert not (where / "backups").walk("objects")
