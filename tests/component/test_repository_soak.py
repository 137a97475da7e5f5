"""Real processes on one repository, several at once, killed at random: what is listed at the end can be restored.

``SOAK_SECONDS`` says how long; ``SOAK_SEED`` which history.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.prune import apply_prune, plan_prune
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import check_repository
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.backups import stream
from tests.support.checkpoints import plant
from tests.support.s3_server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STREAMS = ("orders", "payments")
AT_ONCE = 5


@dataclass
class Soak:
    """Who is at work.

    :param base: where checkpoints, repository and targets are.
    :param environment: of the processes.
    """

    base: Location
    environment: dict[str, str]
    dice: random.Random
    running: list[tuple[str, subprocess.Popen[str], float]] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)
    newest: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STREAMS, 4))
    targets: int = 0

    def uri(self, path: str) -> str:
        return (self.base / path).uri

    def command(self) -> list[str]:
        """Choose what somebody does next."""
        name = self.dice.choice(STREAMS)
        repository = self.uri("repository")
        verb = self.dice.choices(("backup", "restore", "expire", "prune", "verify", "hold"), (8, 2, 4, 4, 2, 1))[0]
        abandoned = ["--abandoned-after", self.dice.choice(("0", "24h", "24h"))]
        match verb:
            case "backup":
                self.newest[name] += self.dice.randrange(3)
                plant(self.base / name, stream(self.newest[name]))
                return ["backup", self.uri(name), repository, *self.dice.choice(([], ["--skip-if-unchanged"]))]
            case "restore":
                self.targets += 1
                return ["restore", repository, "latest", self.uri(f"target{self.targets}"), "--name", name, "--apply"]
            case "expire":
                prune = ["--prune", *abandoned] if self.dice.random() < 0.5 else []
                return ["expire", repository, "--keep-last", str(self.dice.randint(1, 3)), *prune, "--apply"]
            case "prune":
                return ["prune", repository, "--max-unused", self.dice.choice(("0", "30%")), *abandoned, "--apply"]
            case "hold":
                return ["hold", repository, "latest", "--name", name, "--reason", "soak"]
            case _:
                return ["verify", repository, "latest", "--name", name, "--read-data"]

    def start(self) -> None:
        argv = self.command()
        process = subprocess.Popen(
            [sys.executable, "-m", "airflow_ckpt_provider.cli.main", *argv],
            env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        # Half of them are killed: most while they work, some before they begin.
        dies = time.monotonic() + (self.dice.uniform(0.5, 6.0) if self.dice.random() < 0.5 else 300)
        self.running.append((argv[0], process, dies))

    def look(self) -> None:
        for each in list(self.running):
            verb, process, dies = each
            if process.poll() is None and time.monotonic() > dies:
                process.kill()
            if process.poll() is not None:
                _, said = process.communicate()
                assert "this is a defect" not in said, (verb, said)
                self.ended[f"{verb} {process.returncode}"] += 1
                self.running.remove(each)


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_every_listed_backup_can_be_restored(
    repository_format: int, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    environment = dict(os.environ)
    if kind == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        environment |= server.environment()
        base = open_location(f"s3://{server.make_bucket()}/soak", storage_options=server.options())
    else:
        base = open_location(str(tmp_path))
    soak = Soak(base, environment, random.Random(int(os.environ.get("SOAK_SEED", "1"))))
    for name in STREAMS:
        plant(base / name, stream(4))
        create_backup(Checkpoint.at(base / name), Repository.open_or_create(base / "repository"))
    until = time.monotonic() + float(os.environ.get("SOAK_SECONDS", "60"))
    while time.monotonic() < until:
        while len(soak.running) < AT_ONCE:
            soak.start()
        soak.look()
        time.sleep(0.02)
    while soak.running:
        soak.look()
        time.sleep(0.02)
    print(kind, dict(soak.ended))
    assert soak.ended["backup 0"] > 0
    assert any(verb.endswith(" -9") for verb in soak.ended)

    repository = Repository.open(base / "repository")
    for name in STREAMS:
        done = create_backup(Checkpoint.at(base / name), repository, skip_if_unchanged=True)
        assert done.batch_id == soak.newest[name]
    assert check_repository(repository).ok
    for number, manifest in enumerate(repository.backups()):
        assert verify_backup(repository, manifest, read_data=ReadData()).ok
        outcome = apply_restore(plan_restore(repository, manifest, base / f"end{number}"))
        assert outcome.files == len(manifest.files)
    plan = plan_prune(repository)
    going = sum(len(each.objects) + len(each.packed_anew) for each in plan.streams)
    assert apply_prune(repository, plan, abandoned_after=timedelta(0)).objects == going
    assert plan_prune(repository).objects == 0
    assert check_repository(repository).ok
