"""Checkpoints and repositories that version 0.1.0 left half-done; see ``tests/golden/stored/README.md``."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.samples.archives import write_files

STORED = Path(__file__).parent / "stored"
HALF_DONE = STORED / "half_done"
#: Seconds since the files of a checkpoint were written last: the query has ended long ago.
_SILENT_FOR = 3600


@dataclass(frozen=True)
class HalfDone:
    """A change that somebody has to complete or to undo.

    :param checkpoint: the checkpoint.
    :param repository: the repository that keeps the plan and what was set aside.
    :param before: what the checkpoint held before the change.
    :param after: what it holds once the change is complete.
    """

    checkpoint: Path
    repository: Path
    before: dict[str, bytes]
    after: dict[str, bytes]

    @property
    def plan_id(self) -> str:
        """The id of the only plan in the repository."""
        [plan] = (self.repository / "plans").iterdir()
        return plan.stem


def half_done(name: str, place: Path) -> HalfDone:
    """Write a half-done change to a directory.

    :param name: ``<change>-<stage>``.
    :param place: an empty directory; the paths in the stored documents are rewritten for it.
    """
    document: dict[str, dict[str, Any]] = json.loads((HALF_DONE / f"{name}.json").read_text())

    def files(key: str, prefix: str = "") -> dict[str, bytes]:
        def content(path: str, value: Any) -> bytes:
            if value is True:
                return content(path, document["before"][path.removeprefix(prefix)])
            if isinstance(value, str):
                return value.replace("{PLACE}", str(place)).encode()
            if "json" in value:
                return json.dumps(value["json"]).replace("{PLACE}", str(place)).encode()
            return base64.b64decode(value["base64"])

        return {path: content(path, value) for path, value in document[key].items()}

    tree = files("tree", "orders/")
    manifests = [path for path in tree if path.startswith("backups/backups/")]
    write_files(place, tree | {path: _with_its_hash(tree[path]) for path in manifests})
    checkpoint, repository = place / "orders", place / "backups"
    then = time.time() - _SILENT_FOR
    for file in checkpoint.rglob("*"):
        os.utime(file, (then, then))
    if name.endswith("-done"):
        for record in (repository / "audit").iterdir():
            facts = json.loads(record.read_text())
            record.write_text(json.dumps({**facts, "after": fingerprint(checkpoint)}))
    return HalfDone(checkpoint, repository, files("before"), files("after"))


def fingerprint(checkpoint: Path) -> str:
    """The fingerprint of a checkpoint on a local disk as version 0.1.0 calculated it."""
    files = [file for file in checkpoint.rglob("*") if file.is_file()]
    lines = hashlib.sha256()
    for file in sorted(files, key=lambda file: (file.relative_to(checkpoint).parent.as_posix(), file.name)):
        status = file.stat()
        path = file.relative_to(checkpoint).as_posix()
        lines.update(f"{path} {status.st_size} inode:{status.st_ino}:{status.st_mtime_ns}\n".encode())
    return lines.hexdigest()[:16]


def _with_its_hash(manifest: bytes) -> bytes:
    """A manifest whose text was changed, with the hash that comes last in it."""
    document, found, _ = manifest.rpartition(b',"sha256":"')
    assert found
    return document + found + hashlib.sha256(document + b"}").hexdigest().encode() + b'"}'


def contents(place: Path) -> dict[str, bytes]:
    """All files below a directory and what they hold."""
    files = sorted(file for file in place.rglob("*") if file.is_file())
    return {file.relative_to(place).as_posix(): file.read_bytes() for file in files}
