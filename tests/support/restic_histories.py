"""Random histories of backups, and what ``restic forget`` makes of them.

``restic backup`` takes most of a second for each snapshot, so the snapshots are written straight into a repository: one JSON
document each, encrypted as restic's design document says (AES-256-CTR, Poly1305-AES). The answers are restic's own.

To record the answers that the quick tests compare with::

    .venv/bin/python -m tests.support.restic_histories 80 > tests/unit/backup/restic_answers.json
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.poly1305 import Poly1305

from benchmarks.fetching import from_debian

PASSWORD = "histories"
RULES = ("last", "hourly", "daily", "weekly", "monthly", "yearly")
SPANS = ("within", "within-hourly", "within-daily", "within-weekly", "within-monthly", "within-yearly")
TAGS = ("env=prod", "kind=deploy", "team=orders", "night=yes")


@dataclass(frozen=True)
class History:
    """Backups of one stream, and a policy as options of restic.

    :param times: ISO 8601, oldest first.
    :param tags: of each.
    :param options: such as ``{"keep-last": "3"}``; ``keep-tag`` has a list.
    """

    times: list[str]
    tags: list[list[str]]
    options: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What restic keeps: position of the backup -> why."""

    history: History
    kept: dict[str, list[str]]


def random_history(number: int) -> History:
    """Make the same history for the same number, every time."""
    dice = random.Random(number)
    newest = datetime(2025, 12, 31, tzinfo=UTC) - timedelta(seconds=dice.randrange(3 * 365 * 86400))
    if dice.random() < 0.3:  # at the edges of the calendar
        newest = newest.replace(month=dice.choice((1, 3, 12)), day=dice.choice((1, 29, 30, 31)))
    step = dice.choice((600, 3600, 4 * 3600, 86400, 5 * 86400, 25 * 86400))
    times, time = [], newest
    for _ in range(dice.randint(1, 40)):
        times.append(time)
        # Never two of one time: restic's order is then that of its listing, which is random.
        time -= timedelta(seconds=dice.choice((1, step // 2, step, 1 + step * dice.random() * 2)))
    options: dict[str, Any] = {}
    for rule in dice.sample(RULES, dice.choice((0, 1, 1, 2, 3))):
        options[f"keep-{rule}"] = str(dice.choice((1, 1, 2, 3, 5, 8, 13)))
    for span in dice.sample(SPANS, dice.choice((0, 0, 1, 2))):
        options[f"keep-{span}"] = dice.choice(("1h", "7h", "1d", "3d12h", "14d", "1m", "2m", "1m1d", "1y", "1y2m3d4h"))
    if dice.random() < 0.25 or not options:
        options["keep-tag"] = [",".join(dice.sample(TAGS, dice.choice((1, 1, 2)))) for _ in range(dice.choice((1, 2)))]
    tags = [[t for t in TAGS if dice.random() < 0.15] for _ in times]
    return History([t.isoformat() for t in reversed(times)], tags, options)


def version() -> str:
    """What restic says of itself."""
    return subprocess.run([from_debian("restic"), "version"], capture_output=True, text=True, check=True).stdout


class ResticRepository:
    """A repository of restic with nothing but snapshots in it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        _run("init", place)
        (key,) = (place / "keys").iterdir()
        document = json.loads(key.read_text())
        salt = base64.b64decode(document["salt"])
        n, r, p = document["N"], document["r"], document["p"]
        user = hashlib.scrypt(PASSWORD.encode(), salt=salt, n=n, r=r, p=p, dklen=64, maxmem=2**30)
        master = json.loads(_opened(user, base64.b64decode(document["data"])))
        mac = master["mac"]
        self._key = b"".join(base64.b64decode(k) for k in (master["encrypt"], mac["k"], mac["r"]))
        # The same master key under a password that costs nothing to check: restic is run once for each history.
        cheap = hashlib.scrypt(PASSWORD.encode(), salt=salt, n=2, r=1, p=1, dklen=64)
        data = base64.b64encode(_closed(cheap, json.dumps(master).encode())).decode()
        key.unlink()
        text = json.dumps({**document, "N": 2, "r": 1, "p": 1, "data": data}).encode()
        (place / "keys" / hashlib.sha256(text).hexdigest()).write_bytes(text)

    def forget(self, history: History) -> dict[str, list[str]]:
        """Ask restic what it would keep."""
        snapshots = self.place / "snapshots"
        for old in snapshots.iterdir():
            old.unlink()
        for position, (time, tags) in enumerate(zip(history.times, history.tags, strict=True)):
            snapshot = {"time": time, "tree": "0" * 64, "paths": [f"/{position}"], "hostname": "h", "tags": tags}
            sealed = _closed(self._key, json.dumps(snapshot).encode())
            (snapshots / hashlib.sha256(sealed).hexdigest()).write_bytes(sealed)
        options = [
            f"--{option}={value}"
            for option, values in history.options.items()
            for value in (values if isinstance(values, list) else [values])
        ]
        (group,) = json.loads(_run("forget", self.place, "--dry-run", "--json", "--group-by", "host", *options))
        kept = {r["snapshot"]["paths"][0][1:]: r["matches"] for r in group["reasons"] or ()}
        assert sorted(kept) == sorted(k["paths"][0][1:] for k in group["keep"] or ())
        assert len(kept) + len(group["remove"] or ()) == len(history.times)
        return kept


def answers(count: int, place: Path) -> Iterator[Answer]:
    """Ask restic about ``count`` histories."""
    repository = ResticRepository(place)
    for number in range(count):
        history = random_history(number)
        yield Answer(history, repository.forget(history))


def _run(verb: str, place: Path, *options: str) -> str:
    # restic goes by the local time zone: it is to be ours.
    environment = {**os.environ, "TZ": "UTC", "RESTIC_PASSWORD": PASSWORD}
    restic = [from_debian("restic"), "-r", place, "--no-cache", *(["--no-lock"] if verb != "init" else [])]
    return subprocess.run([*restic, verb, *options], env=environment, capture_output=True, text=True, check=True).stdout


def _mac(key: bytes, nonce: bytes, ciphertext: bytes) -> bytes:
    k, r = key[32:48], bytearray(key[48:64])
    for at, mask in ((3, 15), (7, 15), (11, 15), (15, 15), (4, 252), (8, 252), (12, 252)):
        r[at] &= mask
    block = Cipher(algorithms.AES(k), modes.ECB()).encryptor()
    return Poly1305.generate_tag(bytes(r) + block.update(nonce) + block.finalize(), ciphertext)


def _closed(key: bytes, text: bytes) -> bytes:
    nonce = os.urandom(16)
    cipher = Cipher(algorithms.AES(key[:32]), modes.CTR(nonce)).encryptor()
    ciphertext = cipher.update(text) + cipher.finalize()
    return nonce + ciphertext + _mac(key, nonce, ciphertext)


def _opened(key: bytes, sealed: bytes) -> bytes:
    nonce, ciphertext, mac = sealed[:16], sealed[16:-16], sealed[-16:]
    assert mac == _mac(key, nonce, ciphertext)
    cipher = Cipher(algorithms.AES(key[:32]), modes.CTR(nonce)).decryptor()
    return cipher.update(ciphertext) + cipher.finalize()


def main() -> None:
    """Print answers as JSON, with the version of restic that gave them."""
    with tempfile.TemporaryDirectory() as directory:
        found = [asdict(a) for a in answers(int(sys.argv[1]), Path(directory) / "repository")]
    print(json.dumps({"restic": version().split()[1], "answers": found}, separators=(",", ":")))


if __name__ == "__main__":
    main()
