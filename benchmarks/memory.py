"""How much memory a step needs: ``python -m benchmarks.memory --files 1000000``, each in a process of its own.

A million files are in a store that makes their names and contents up as it is asked for them; logs, manifests and packs are
really written. What packs need on top is measured on an S3 server (``--server-files``), the same tree with both formats.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.packing import PACK_SIZE
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.store import StoredFile
from benchmarks import report
from benchmarks.alone import alone, peak, run
from benchmarks.ground import Ground
from benchmarks.results import MEMORY, read, write
from benchmarks.sample_tree import SampleTree
from benchmarks.setting import setting, today
from benchmarks.steps import Step
from benchmarks.tools import OursInProcess, PacksInProcess
from tests.support.made_up_store import MadeUpStore
from tests.support.s3_server import running_s3_server
from tests.support.stopped import STOPPED

#: Files of a partition of the store that makes them up.
_PER_PARTITION = 5_000
_MADE_UP_STEPS = (Step.FIRST, Step.NOTHING, Step.READ, Step.RESTORE)
_SERVER_STEPS = (Step.FIRST, Step.READ, Step.RESTORE)


class MadeUpContents(MadeUpStore):
    """A store that makes up contents of 300 to 600 bytes as well, and takes note of what a restore writes.

    :param root: as for the other one.
    :param partitions: of five thousand files each.
    """

    reads_parts = True
    #: A copy would have the name that the other store makes up, of another content.
    copies_within = False

    def read_part(self, path: str, start: int, length: int) -> bytes:
        return self._inner.read_part(path, start, length)

    def _file(self, number: int, path: str) -> StoredFile:
        content = _content(number)
        mark = f"etag:{hashlib.md5(content, usedforsecurity=False).hexdigest()}"
        return StoredFile(path, len(content), mark, mark)

    def read(self, path: str) -> bytes:
        return super().read(path) if (number := _number(path)) is None else _content(number)

    def create(self, path: str, data: bytes) -> None:
        if (number := _number(path)) is None:
            super().create(path, data)
        else:
            self._note(path, number)

    def replace(self, path: str, data: bytes) -> None:
        if (number := _number(path)) is None:
            super().replace(path, data)
        else:
            self._note(path, number)

    def _note(self, path: str, number: int) -> None:
        directory = path.partition("/state/")[0]
        with self._lock:
            self._objects.setdefault(directory, False)
            self._copied.setdefault(directory, bytearray(self.partitions * _PER_PARTITION))[number] = 1


def _number(path: str) -> int | None:
    """Which file a path names; ``None``: one that is really there."""
    _, state, file = path.partition("/state/0/")
    if not state or not file.endswith(".changelog"):
        return None
    partition, _, version = file.removesuffix(".changelog").partition("/")
    return int(partition) * _PER_PARTITION + int(version) - 1


def _content(number: int) -> bytes:
    return hashlib.sha256(number.to_bytes(8)).digest() * (10 + number % 10)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--files", type=int, nargs="*", default=[100_000, 1_000_000], help="made up")
    parser.add_argument("--server-files", type=int, nargs="*", default=[5_000, 50_000], help="on an S3 server")
    parser.add_argument("--no-report", action="store_true", help="keep no figures, leave docs/benchmarks.md alone")
    args = parser.parse_args()
    rows = [row for files in args.files for row in made_up(files)]
    rows += [row for files in args.server_files for row in on_a_server(files)]
    if not args.no_report:
        keep(rows)
        report.main()


def made_up(files: int) -> list[dict[str, Any]]:
    """A row for each step and format, with so many files that are made up."""
    rows = []
    for repository_format in (1, 2):
        with tempfile.TemporaryDirectory(prefix="memory-") as root:
            for step in _MADE_UP_STEPS:
                if repository_format == 1 and step is Step.READ:
                    continue  # what the store has copied has no content
                found = run("benchmarks.memory", "one", str(files), root, str(repository_format), str(step))
                rows.append({"store": "made up", "files": files, "format": repository_format, "step": step, **found})
                print(rows[-1], flush=True)
    return rows


def on_a_server(files: int) -> list[dict[str, Any]]:
    """A row for each step and format, with a tree of so many files on an S3 server."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="memory-") as directory:
        for name in ("server", "scratch"):
            Path(directory, name).mkdir()
        with running_s3_server(Path(directory, "server")) as server:
            ground = Ground(server, Path(directory, "scratch"), SampleTree.of_about(files), local=False)
            for kind in (OursInProcess, PacksInProcess):
                tool, target = kind(server, Path(directory)), ground.new_bucket("target") + "/orders"
                tool.begin(target)
                for step in _SERVER_STEPS:
                    back = ground.new_bucket("restored") + "/orders"
                    found = alone(server.port, tool.name, step, ground.source, target, back)
                    del found["seconds"]
                    rows.append({"store": "S3", "files": ground.files, "format": kind.format, "step": step, **found})
                    print(rows[-1], flush=True)
                    ground.drop(back)
    return rows


def keep(rows: Sequence[dict[str, Any]]) -> None:
    """Put rows in the place of earlier ones of the same; those of another code are forgotten."""
    now = setting()
    before = read(MEMORY) or {"code": now["code"], "rows": []}

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["store"], row["files"], row["format"], list(Step).index(Step(row["step"]))

    earlier = before["rows"] if before["code"] == now["code"] else []
    kept = {key(row): row for row in [*earlier, *rows]}
    document = {"date": today(), "code": now["code"], "machine": now["machine"], "pack_size": PACK_SIZE}
    write(MEMORY, {**document, "rows": [kept[each] for each in sorted(kept)]})


def one(files: int, root: str, repository_format: int, step: Step) -> dict[str, int]:
    """Take a step in this process; the most memory before it and until its end."""
    store = (MadeUpContents if repository_format == 2 else MadeUpStore)(Path(root), files // _PER_PARTITION)
    repository = Repository.open_or_create(Location(store, f"{root}/repository"), format=repository_format)
    before = peak()
    if step is Step.RESTORE:
        plan = plan_restore(repository, repository.manifest("latest"), Location(store, f"{root}/elsewhere"))
        done = apply_restore(plan, rest=STOPPED).files
    elif step is Step.READ:
        done = files if verify_backup(repository, repository.manifest("latest"), read_data=ReadData()).ok else 0
    else:
        result = create_backup(Checkpoint.at(Location(store, f"{root}/orders")), repository)
        done = result.files
        if (result.copied_files > 0) != (step is Step.FIRST):
            raise AssertionError(f"{step}: {result.copied_files} files were copied")
    if done < files:
        raise AssertionError(f"{step}: {done} files of {files}")
    store.remember()
    return {"before": before, "peak": peak()}


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        print(json.dumps(one(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), Step(sys.argv[5]))))
    else:
        main()
