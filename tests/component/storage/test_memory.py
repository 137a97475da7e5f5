"""How much memory a backup and a restore need for each file, measured in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from fsspec.implementations.memory import MemoryFileSystem
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.restore import apply_restore, plan_restore
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.memory_store import MemoryStore
from tests.made_up_store import MadeUpStore

def peak():
    # Not getrusage: its high-water mark is inherited from the process that started this one.
    [line] = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024

files = int(sys.argv[1])
store = MadeUpStore(MemoryStore(MemoryFileSystem()), files // 5000)
repository = Repository.open_or_create(Location(store, "/repository"))
before = peak()
assert create_backup(Checkpoint.at(Location(store, "/orders")), repository).copied_files >= files
assert create_backup(Checkpoint.at(Location(store, "/orders")), repository).copied_files == 0
backed_up = peak()
plan = plan_restore(repository, repository.manifest("latest"), Location(store, "/elsewhere"))
assert apply_restore(plan).files >= files
assert store.copies == 2 * files
print(before, backed_up, peak())
"""

#: Bytes of memory for each file: two listings, the manifest before and the one being made.
_BY_FILE = 2_400


def peaks(files: int) -> tuple[int, int, int]:
    """Peak memory in bytes before, after two backups, and after a restore."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(files)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    before, backed_up, restored = map(int, done.stdout.split())
    return before, backed_up, restored


@pytest.mark.parametrize("files", [30_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_memory_grows_by_so_much_with_a_file(files: int) -> None:
    before, backed_up, restored = peaks(files)
    assert before < 60 * 2**20
    assert (backed_up - before) / files < _BY_FILE
    assert (restored - before) / files < _BY_FILE
