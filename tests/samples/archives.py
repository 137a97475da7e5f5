"""The committed samples: ``<version>.tar.xz`` with ``<kind>/ck/…`` and ``<kind>/rows.json``, made by ``remake.py``."""

from __future__ import annotations

import io
import json
import tarfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.samples.kinds import KINDS

VERSIONS = ("3.5.9", "4.0.0", "4.1.4", "4.2.1", "4.3.0")
#: Where the streams ran, as far as the samples tell: nowhere, on any machine.
HOME = "/srv/streams"
#: Hadoop's hidden checksums are left out, Spark does not miss them; of this kind they are kept, to be ignored by tests.
WITH_HIDDEN_CHECKSUMS = "hdfs_agg"

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Sample:
    """A checkpoint as one Spark version left it.

    :param files: content by path, relative to the checkpoint.
    :param rows: what the batches gave, see ``kinds.py``; empty for kinds on the clock.
    """

    version: str
    kind: str
    files: dict[str, bytes]
    rows: dict[str, dict[str, list[str]]]

    def unpack(self, place: Path) -> Path:
        """Write the checkpoint to ``place``."""
        return write_files(place, self.files)

    def rows_after(self, batch: int) -> Counter[str]:
        """What the query must give when it continues after ``batch`` until all files are read."""
        left = Counter(row for rows in self.rows["never_stopped"].values() for row in rows)
        left.subtract(row for b, rows in self.rows["sample"].items() if int(b) <= batch for row in rows)
        assert min(left.values()) >= 0, f"{self.kind}: the sample gave rows that the run without a stop did not"
        return +left


def write_files(place: Path, files: dict[str, bytes]) -> Path:
    """Write files below a directory."""
    for path, content in files.items():
        file = place / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return place


def kinds_of(version: str) -> list[str]:
    """Kinds that a Spark version has."""
    return [name for name, kind in KINDS.items() if kind.since <= tuple(map(int, version.split(".")[:2]))]


def sample(version: str, kind: str) -> Sample:
    """A sample of the archives."""
    return _samples(version)[kind]


@cache
def _samples(version: str) -> dict[str, Sample]:
    samples: dict[str, Sample] = {}
    with tarfile.open(_HERE / f"{version}.tar.xz") as archive:
        for member in archive:
            kind, _, path = member.name.partition("/")
            found = samples.setdefault(kind, Sample(version, kind, {}, {}))
            opened = archive.extractfile(member)
            assert opened
            if path == "rows.json":
                found.rows.update(json.loads(opened.read()))
            else:
                found.files[path.removeprefix("ck/")] = opened.read()
    return samples


def pack(version: str, made: Path) -> Path:
    """Make the archive of a version from what ``kinds.py make`` left in ``made``."""
    archive = _HERE / f"{version}.tar.xz"
    packed: list[tuple[str, bytes]] = []
    for kind in sorted(kinds_of(version)):
        checkpoint = made / kind / "ck"
        assert (checkpoint / "metadata").exists(), f"{kind} was not made"
        for file in sorted(p for p in checkpoint.rglob("*") if p.is_file()):
            if not file.name.startswith(".") or _is_kept_checksum(kind, file):
                content = file.read_bytes().replace(str(made).encode(), HOME.encode())
                packed.append((f"{kind}/{file.relative_to(made / kind).as_posix()}", content))
        rows = made / kind / "rows.json"
        if rows.exists():
            packed.append((f"{kind}/rows.json", rows.read_bytes()))
    # State files last and by size: like lies by like, which packs better.
    packed.sort(key=lambda f: (f[0].rpartition(".")[2] if "/state/" in f[0] else "", f[0]))
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for name, content in packed:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return archive


def _is_kept_checksum(kind: str, file: Path) -> bool:
    return kind == WITH_HIDDEN_CHECKSUMS and file.name.endswith(".crc") and "sources" not in file.parts


def offset_lines(files: dict[str, bytes], batch: int) -> list[Any]:
    """Offsets of a batch as JSON, read without the code under test."""
    lines = files[f"offsets/{batch}"].decode().split("\n")[2:]
    return [json.loads(line) for line in lines]
