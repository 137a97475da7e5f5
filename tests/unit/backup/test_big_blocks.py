"""Packs leave no memory behind that nobody uses."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from airflow_ckpt_provider.backup.packing import PACK_SIZE

#: Writes 25 packs with as many threads as a backup has; prints by how much the most memory has grown.
_PROGRAM = """
import hashlib, os
from concurrent.futures import ThreadPoolExecutor
from airflow_ckpt_provider.backup.packing import Packer
from benchmarks.alone import peak

def add(_):
    content = os.urandom(40_000)
    packer.add(content, hashlib.sha256(content).hexdigest())

before = peak()
packer = Packer("objects/orders", lambda pack: "objects/orders/aa/some.pack")
with ThreadPoolExecutor(64) as pool:
    list(pool.map(add, range(10_500)))
print(peak() - before)
"""


def _grown(**environment: str) -> float:
    """By how many packs the memory has grown."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=plain | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout) / PACK_SIZE


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator of glibc")
def test_no_more_packs_than_are_written_at_once() -> None:
    assert _grown() < 4
    # The control: a setting of the user's own is left alone, this one is what glibc does by itself.
    assert _grown(GLIBC_TUNABLES="glibc.malloc.check=0") > 6
