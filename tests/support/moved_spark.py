"""A checkpoint that is moved to another Spark."""

from __future__ import annotations

import re
import time
from pathlib import Path

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.packing import PACKED_BELOW
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.closure import Closure
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.recovery.restore.relocate import holds_absolute_paths, relocated
from airflow_ckpt_provider.storage.opening import open_location
from tests.samples.archives import HOME, Sample, offset_lines, write_files
from tests.samples.kinds import KINDS, write_input
from tests.support.checkpoints import contents


class Moved:
    """The closure of a batch of a sample, alone, at a place where the checkpoint never was.

    :param batch: the batch; the newest committed one by default.
    :param leave_out: a pattern; the last file of the closure that matches is left out.
    :param through_packs: backed up into packs, and restored from them. Only of the newest batch.
    """

    def __init__(
        self,
        of: Sample,
        place: Path,
        *,
        before_newest: int = 0,
        leave_out: str | None = None,
        through_packs: bool = False,
    ) -> None:
        self.sample = of
        self.place = place / "moved" / "ck"
        self.input = place / "input"
        original = Checkpoint.at(open_location(str(of.unpack(place / "original"))))
        newest = original.progress().latest_committed
        assert newest is not None
        self.batch = newest - before_newest
        self.closure: Closure = original.closure(self.batch)
        self.left_out = ""
        files = {file.path: of.files[file.path] for file in self.closure.files}
        if leave_out:
            self.left_out = [path for path in sorted(files) if Path(path).match(leave_out)][-1]
            del files[self.left_out]
        if through_packs:
            restored = _through_packs(original, place / "backups", self.place)
            assert restored.keys() == files.keys()
            files = restored
        for path, content in files.items():
            if holds_absolute_paths(path) and not through_packs:
                files[path] = relocated(content, path=path, target=f"file:{self.place}")
            elif path.startswith("sources/"):
                # The input stays where it was: Spark insists that the newest files lie where it reads ("Wrong basePath").
                files[path] = content.replace(f"{HOME}/{of.kind}".encode(), str(self.input).encode())
        if KINDS[of.kind].on_the_clock:
            files = _as_if_made_now(files, self.batch)
        write_files(self.place, files)

    def add_input(self) -> None:
        """Put all input in place: what the query has read, and more."""
        kind = KINDS[self.sample.kind]
        first, second = (sample + further for sample, further in zip(kind.files, kind.further_files, strict=True))
        write_input(self.input, self.sample.kind, first=(0, 0), count=(first, second))


def _through_packs(original: Checkpoint, backups: Path, target: Path) -> dict[str, bytes]:
    """Back up a checkpoint into packs, and restore it; the files that are there then."""
    repository = Repository.open_or_create(open_location(str(backups)), format=2)
    made = create_backup(original, repository, name="orders").manifest
    assert all(entry.is_packed for entry in made.files if entry.size < PACKED_BELOW)
    apply_restore(plan_restore(repository, made, open_location(str(target))))
    return contents(open_location(str(target)))


def _as_if_made_now(files: dict[str, bytes], batch: int) -> dict[str, bytes]:
    """Set the start of a rate source so that it has not to catch up with the time since the sample was made."""
    now = int(time.time() * 1000)
    moved = {p: re.sub(rb'"runTimeMs":\d+', b'"runTimeMs":%d' % now, c) for p, c in files.items()}
    if "sources/0/0" in moved:
        end = offset_lines(files, batch)[0]
        moved["sources/0/0"] = b"v1\n%d" % (now - (end * 1000 if isinstance(end, int) else 0))
    return moved
