"""How much memory a backup and a restore need for each file, measured in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from pathlib import Path
from tests.support.stopped import STOPPED
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.storage.location import Location
from tests.support.made_up_store import MadeUpStore

def peak():
    # Not getrusage: its high-water mark is inherited from the process that started this one.
    [line] = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024

files, root, step = int(sys.argv[1]), sys.argv[2], sys.argv[3]
store = MadeUpStore(Path(root), files // 5000)
repository = Repository.open_or_create(Location(store, f"{root}/repository"))
before = peak()
if step == "restore":
    plan = plan_restore(repository, repository.manifest("latest"), Location(store, f"{root}/elsewhere"))
    assert apply_restore(plan, rest=STOPPED).files >= files
else:
    copied = create_backup(Checkpoint.at(Location(store, f"{root}/orders")), repository).copied_files
    assert copied >= files if step == "first" else copied == 0
assert store.copies == (0 if step == "again" else files)
store.remember()
print(before, peak())
"""

#: Of a process: two listings, the manifest before and the one being made. Measured: 630 to 690, 720 on a busy machine, of which a
#: third does not grow with the files.
_BY_FILE = 800


def peaks(files: int, root: Path) -> dict[str, tuple[int, int]]:
    """Step -> peak memory in bytes before and after it; each in a process of its own, as a task or a command is."""
    found = {}
    for step in ("first", "again", "restore"):
        command = [sys.executable, "-c", PROGRAM, str(files), str(root), step]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        before, after = map(int, done.stdout.split())
        found[step] = before, after
    return found


@pytest.mark.slow
def test_memory_grows_by_so_much_with_a_file(tmp_path: Path) -> None:
    files = 30_000
    for step, (before, after) in peaks(files, tmp_path).items():
        assert before < 60 * 2**20, step
        assert (after - before) / files < _BY_FILE, step


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_files_need_less_than_500_megabytes(tmp_path: Path) -> None:
    """The worst there is: every file is needed, and none is to be left out."""
    found = {step: after / 1e6 for step, (_, after) in peaks(1_000_000, tmp_path).items()}
    print(found)
    assert max(found.values()) < 500, found
