"""Where a rewind stands, for whoever finds it stopped half-way: in words, and with the command that goes on from there."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.transfer import in_parallel
from airflow_ckpt_provider.change.plan import undo_of
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.progress import Progress
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import read_plan

UNTOUCHED = "untouched"
UNDER_WAY = "under_way"
SEALED_BY_ANOTHER = "sealed_by_another"
REWOUND = "rewound"
RUNNING_AGAIN = "running_again"


@dataclass(frozen=True, slots=True)
class RewindStatus:
    """What has become of a checkpoint that was to be rewound.

    :param kind: ``untouched``, ``under_way``, ``sealed_by_another``, ``rewound`` or ``running_again``.
    :param message: the situation in words.
    :param commands: what goes on from there, one command a line; the first is the usual one.
    :param plan_id: the rewind it is about; ``None`` where there was none.
    """

    kind: str
    message: str
    commands: tuple[str, ...]
    plan_id: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The situation as plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {"commands": list(self.commands)}

    def to_markdown(self) -> str:
        """The situation for a report."""
        return "\n".join([self.message, "", "```sh", *self.commands, "```"])


def status_of(checkpoint: Checkpoint, repository: Repository | None, *, since: datetime | None = None) -> RewindStatus:
    """Look at a checkpoint and at the records of its rewinds. Changes nothing.

    :param checkpoint: the checkpoint.
    :param repository: where its rewinds are kept; ``None``: there is none yet.
    :param since: rewinds recorded before this time are of no interest; ``None``: all are.
    """
    records = repository.records() if repository else ()
    return status_in(checkpoint.progress(), repository, records, since=since)


def status_in(
    progress: Progress,
    repository: Repository | None,
    records: Iterable[dict[str, Any]],
    *,
    since: datetime | None = None,
) -> RewindStatus:
    """The same, for whoever has looked at the checkpoint and has the records already.

    :param progress: how far the checkpoint is.
    :param repository: where its rewinds are kept.
    :param records: audit records of that repository, newest first; those of other checkpoints are passed over.
    :param since: as for :func:`status_of`.
    """
    place = progress.uri
    if progress.seal is not None:
        return _sealed(place, progress.seal, repository)
    record = next(_rewinds(place, records, since), None)
    committed = progress.latest_committed
    if record is None:
        return RewindStatus(
            UNTOUCHED,
            f"{place} was not changed: its newest committed batch is {committed}, and the stream can be started as it is.",
            (f"airflow-ckpt inspect {shlex.quote(place)}",),
        )
    plan_id, batch_id = str(record["plan_id"]), int(record["plan"]["batch_id"])
    undo = _undo(place, plan_id, str(record["plan"]["request"].get("sink", "")))
    if committed is not None and committed > batch_id:
        return RewindStatus(
            RUNNING_AGAIN,
            f"{place} was rewound to batch {batch_id} by plan {plan_id}, and the stream has run since, up to batch {committed}: "
            "it cannot be taken back by undo any more.",
            (f"airflow-ckpt inspect {shlex.quote(place)}", f"airflow-ckpt rewind {shlex.quote(place)} --list"),
            plan_id,
        )
    return RewindStatus(
        REWOUND,
        f"{place} was rewound to batch {batch_id} by plan {plan_id}, and the stream has not committed a batch since. Start the "
        "stream, or take the rewind back:",
        (undo,),
        plan_id,
    )


def _sealed(place: str, seal: Seal, repository: Repository | None) -> RewindStatus:
    plan = read_plan(repository, seal.plan_id) if repository else None
    if plan is None:
        return RewindStatus(
            SEALED_BY_ANOTHER,
            f"{place} is sealed by plan {seal.plan_id} ({seal.reason}, {seal.made_by}), which is no rewind of this repository: "
            "no Spark can start from it until whoever set the seal lifts it.",
            (f"airflow-ckpt unseal {shlex.quote(place)} --plan {shlex.quote(seal.plan_id)}",),
            seal.plan_id,
        )
    return RewindStatus(
        UNDER_WAY,
        f"{place} is being rewound to batch {plan.batch_id} by plan {plan.plan_id}, and that was stopped half-way. It is sealed, "
        "so that no Spark can start from it. The same rewind again completes it; undo takes it back"
        f"{' (both need --spark-submit, for the table goes by Spark)' if plan.by_spark else ''}:",
        (_again(place, plan), _undo(place, plan.plan_id, plan.request.sink)),
        plan.plan_id,
    )


def rewind_records(repository: Repository) -> list[dict[str, Any]]:
    """Audit records of what was done by plans that are kept (rewinds, resets, repairs) and of what took them back.

    Two listings and a read for each such record. Those of backups that expired, prunes and restores, of which there may be
    thousands, are not read.

    :return: newest first.
    """
    plans = {file.path.rpartition("/")[2].removesuffix(".json") for file in repository.location.list("plans").files}
    if not plans:
        return []
    ids = plans | {undo_of(plan_id) for plan_id in plans}
    names = (file.path for file in repository.location.list("audit").files)
    wanted = [path for path in names if path.partition("-")[2].removesuffix(".json") in ids]
    records: list[dict[str, Any]] = in_parallel(lambda path: load_json(repository.location.read(path)), wanted)
    return sorted(records, key=lambda record: str(record["at"]), reverse=True)


def _rewinds(place: str, records: Iterable[dict[str, Any]], since: datetime | None) -> Iterator[dict[str, Any]]:
    """Records of rewinds of this checkpoint that were not taken back, newest first."""
    undone = set()
    for record in records:
        if since is not None and datetime.fromisoformat(record["at"]) < since:
            return
        if record.get("checkpoint") != place:
            continue
        if record.get("kind") == "undo":
            undone.add(record.get("of"))
        elif record.get("kind") == "rewind" and record["plan_id"] not in undone:
            yield record


def _again(place: str, plan: RewindPlan) -> str:
    request = plan.request
    kind, _, value = request.target.partition(" ")
    if kind == "from-file":
        value = "OFFSETS.csv"
    words = ["airflow-ckpt", "rewind", place, f"--{kind}={value}" if value else f"--{kind}"]
    if request.sink:
        words += ["--sink", request.sink]
    if request.app_id:
        words += ["--txn-app-id", request.app_id]
    if request.sink_exit:
        words += ["--sink-exit", request.sink_exit]
    if not request.exact_replay:
        words.append("--fresh")
    if request.backup:
        words += ["--backup", request.backup]
    return shlex.join([*words, "--apply"])


def _undo(place: str, plan_id: str, sink: str) -> str:
    words = ["airflow-ckpt", "undo", place, "--plan", plan_id]
    return shlex.join([*words, "--sink", sink] if sink else words)
