"""The status of a change of a checkpoint that was stopped half-way, with the command that resumes it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from typing import Any

from airflow_ckpt_provider.backup.beside import is_beside
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.history import UNDOABLE, is_at, not_undone
from airflow_ckpt_provider.change.plan import chain_command, sink_command, sink_words, undo_command, undo_of, undone_by
from airflow_ckpt_provider.change.risks import sink_risk
from airflow_ckpt_provider.change.sealing import STOPPING, of_change
from airflow_ckpt_provider.change.target import Target, inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.progress import Progress
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.errors import CkptError, NoSuchBackupError, RepositoryError, command
from airflow_ckpt_provider.recovery.flows.reset import flow_reset_command
from airflow_ckpt_provider.recovery.kept_changes import repository_of_change
from airflow_ckpt_provider.recovery.repair.plan import RepairPlan
from airflow_ckpt_provider.recovery.reset.plan import ResetRequest, reset_command
from airflow_ckpt_provider.recovery.restore.plan import RestorePlan, restore_command
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.specifier import option_for
from airflow_ckpt_provider.sinks.named_tables import UNITY
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.units import shown_time
from airflow_ckpt_provider.verdict import Verdict

UNTOUCHED = "untouched"
UNDER_WAY = "under_way"
SEALED_BY_ANOTHER = "sealed_by_another"
REWOUND = "rewound"
CHANGED = "changed"
RUNNING_AGAIN = "running_again"
#: Kinds that somebody has to end.
UNFINISHED = (UNDER_WAY, SEALED_BY_ANOTHER)

#: What a sink does that somebody has accepted.
_OF_SINKS = tuple(map(sink_risk, (Verdict.WILL_SKIP, Verdict.WILL_DUPLICATE, Verdict.UNKNOWN)))
#: After which a checkpoint is there that can be compared with its sink; after a reset there is none yet.
_COMPARED = (RestorePlan.kind, RewindPlan.kind, RepairPlan.kind)

#: Without it the commands that are shown are refused: the statement that a killed worker was given is not kept.
_SAY_SO = "Say that the query is stopped (--query-is-stopped)"


@dataclass(frozen=True, slots=True)
class RewindStatus:
    """What has become of a checkpoint that was to be rewound.

    :param kind: ``untouched``, ``under_way``, ``sealed_by_another``, ``rewound``, ``changed`` or ``running_again``.
    :param message: the situation in words.
    :param commands: commands that continue from there, one a line; the first is the usual one.
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
    """Inspect a checkpoint and the records of its changes, by whatever verb. Changes nothing.

    :param checkpoint: the checkpoint; it may be too broken to be read, or not there any more.
    :param repository: where its changes are kept; ``None``: there is none yet.
    :param since: changes recorded before this time are of no interest; ``None``: all are.
    """
    records = list(repository.records()) if repository else []
    newest = next(_changes(checkpoint.location.uri, records, since, kinds=UNDOABLE), None)
    there = inspect_target(checkpoint.location)
    if there.seal is not None:
        return _sealed(checkpoint.location.uri, there.seal, repository)
    if newest is None or newest["kind"] == RewindPlan.kind:
        try:
            return status_in(checkpoint.progress(), repository, records, since=since)
        except CkptError:
            if newest is None:
                raise
    return _changed(checkpoint.location.uri, repository, there, newest)


def status_by(checkpoint: Checkpoint, given: Repository | None) -> RewindStatus:
    """The same by the repository that has the newest change of it: the one that is named, or one beside the checkpoint.

    :param checkpoint: the checkpoint.
    :param given: the repository that is named; ``None``: there is none. If what is beside the checkpoint cannot be read, its
        answer counts, and the message says so.
    """
    try:
        return status_of(checkpoint, repository_of_change(checkpoint.location, given=given, stands=True))
    except NoSuchBackupError:
        return status_of(checkpoint, None)
    except CkptError as e:
        if given is None:
            raise
        found = status_of(checkpoint, given)
        return replace(found, message=f"{found.message} Whether a change is kept beside it is not known: {e.message}.")


def status_among(
    checkpoint: Location, progress: Progress, keepers: Sequence[tuple[Repository, Iterable[dict[str, Any]]]]
) -> RewindStatus:
    """The same of one of many streams, for whoever has read how far it is, and the records.

    :param checkpoint: the checkpoint.
    :param progress: how far it is.
    :param keepers: repositories that may keep its changes, each with its audit records, newest first. At least one.
    """
    if progress.seal is not None:
        wanted = undone_by(progress.seal.plan_id)
        knows = (repository for repository, _ in keepers if repository.kept_plan(wanted) is not None)
        return _sealed(progress.uri, progress.seal, next(knows, keepers[0][0]))
    standing = [
        (newest, repository)
        for repository, records in keepers
        if (newest := next(_changes(progress.uri, records, None, kinds=UNDOABLE), None))
    ]
    if not standing:
        return status_in(progress, keepers[0][0], ())
    record, repository = max(standing, key=lambda each: str(each[0]["at"]))
    if record["kind"] == RewindPlan.kind:
        return status_in(progress, repository, [record])
    plan = record.get("plan")
    batch_id = plan.get("batch_id") if isinstance(plan, Mapping) else None
    if isinstance(batch_id, int) and progress.latest_committed is not None and progress.latest_committed > batch_id:
        return _has_run_since(progress.uri, record)  # known without a listing of all that is there
    return _changed(progress.uri, repository, inspect_target(checkpoint), record)


def _has_run_since(place: str, record: Mapping[str, Any]) -> RewindStatus:
    kind, plan_id = str(record["kind"]), str(record["plan_id"])
    return RewindStatus(
        RUNNING_AGAIN,
        f"{place} was changed by {kind} {plan_id} at {shown_time(record['at'])}, and was written to since: the {kind} cannot be "
        "undone any more.",
        (command("inspect", place),),
        plan_id,
    )


def _changed(place: str, repository: Repository | None, there: Target, record: dict[str, Any]) -> RewindStatus:
    after = record.get("after")
    if after not in (None, there.fingerprint) and not (repository and is_at(str(after), there, repository)):
        return _has_run_since(place, record)
    kind, plan_id = str(record["kind"]), str(record["plan_id"])
    plan = record.get("plan")
    chain = plan.get("chain") if isinstance(plan, Mapping) else None
    start, look = _before_a_start(place, record)
    return RewindStatus(
        CHANGED,
        f"{place} was changed by {kind} {plan_id} at {shown_time(record['at'])}, and nothing was written to it since. "
        f"{start}, or undo the {kind}{', with the other streams of its chain' if chain else ''}:",
        (*look, chain_command("undo", chain) if chain else undo_command(place, plan_id, repository)),
        plan_id,
    )


def status_in(
    progress: Progress,
    repository: Repository | None,
    records: Iterable[dict[str, Any]],
    *,
    since: datetime | None = None,
) -> RewindStatus:
    """The same, for whoever has inspected the checkpoint and has the records already.

    :param progress: how far the checkpoint is.
    :param repository: where its rewinds are kept.
    :param records: audit records of that repository, newest first; those of other checkpoints are passed over.
    :param since: as for :func:`status_of`.
    """
    place = progress.uri
    if progress.seal is not None:
        return _sealed(place, progress.seal, repository)
    record = next(_changes(place, records, since, kinds=(RewindPlan.kind,)), None)
    committed = progress.latest_committed
    if record is None:
        where = f"in {repository.location}" if repository else "beside it"
        return RewindStatus(
            UNTOUCHED,
            f"No change of {place} that is not undone is recorded {where}. Its newest committed batch is {committed}. "
            "`inspect` and `doctor` say what its next start does. A restore, or another change, that was made with another "
            "repository is recorded in that one: name it (--repository).",
            (command("inspect", place),),
        )
    plan_id = str(record["plan_id"])
    batch_id, sinks = _rewound_to(record)
    chain = record["plan"].get("chain")
    undo = chain_command("undo", chain) if chain else undo_command(place, plan_id, repository, sinks)
    if committed is not None and committed > batch_id:
        return RewindStatus(
            RUNNING_AGAIN,
            f"{place} was rewound to batch {batch_id} by plan {plan_id}, and the stream has run since, up to batch {committed}: "
            "undo is not possible any more.",
            (command("inspect", place), command("rewind", place, "--list")),
            plan_id,
        )
    start, look = _before_a_start(place, record)
    return RewindStatus(
        REWOUND,
        f"{place} was rewound to batch {batch_id} by plan {plan_id}, and the stream has not committed a batch since. {start}, "
        "or undo the rewind:",
        (*look, undo),
        plan_id,
    )


def _before_a_start(place: str, record: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """What is left to do after a change, and the command for it: a sink that was accepted may skip or double rows."""
    given, plan = record.get("accepted"), record.get("plan")
    words = [str(word) for word in _OF_SINKS if isinstance(given, list) and word in given]
    is_safe = isinstance(plan, Mapping) and plan.get("verdict") == Verdict.SAFE.value
    if not words or is_safe or record.get("kind") not in _COMPARED:
        return "Start the stream", ()
    said = f"{', '.join(words)} was accepted: see what the sink does before you start the stream"
    return said, (sink_command(place),)


def _rewound_to(record: Mapping[str, Any]) -> tuple[int, list[str]]:
    """The batch that a rewind went to, and its sinks, by its audit record."""
    try:
        request = record["plan"]["request"]
        sinks = [str(sink.get("sink", "")) for sink in request.get("sinks", [request])]
        return int(record["plan"]["batch_id"]), sinks
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise RepositoryError(
            f"the audit record of rewind {record['plan_id']}, of {shown_time(record['at'])}, cannot be read, or is forged "
            f"({type(e).__name__}: {e})",
            hint="put the record back from a copy of the repository. Without one, move it out of the repository; what it says "
            "is then not known",
        ) from e


def _sealed(place: str, seal: Seal, repository: Repository | None) -> RewindStatus:
    document = repository.kept_plan(undone_by(seal.plan_id)) if repository else None
    if document is None and seal.reason.startswith(STOPPING):
        change = seal.reason.removeprefix(STOPPING)
        return RewindStatus(
            SEALED_BY_ANOTHER,
            f"{place} is sealed by plan {seal.plan_id} to stop its query for a {change}. Nothing was changed: the query is not "
            f"known to be stopped. Run the same {change} again once it is, or lift the seal right before the stream is started:",
            (command("unseal", place, "--for-start"),),
            seal.plan_id,
        )
    if document is None and of_change(seal):
        unknown_to = "this repository does" if repository else "the repositories beside it do"
        return RewindStatus(
            SEALED_BY_ANOTHER,
            f"{place} is sealed by plan {seal.plan_id} ({seal.reason}, {seal.made_by}): a change that was stopped half-way, "
            f"or is under way, and {unknown_to} not know it. Do not lift the seal: files may be half-changed. Name the "
            "repository that the change was carried out with:",
            (command("status", place, "--repository", "REPOSITORY"),),
            seal.plan_id,
        )
    if document is None or document.get("kind") not in UNDOABLE:
        return RewindStatus(
            SEALED_BY_ANOTHER,
            f"{place} is sealed by plan {seal.plan_id} ({seal.reason}, {seal.made_by}), which is no change that "
            f"{'this repository knows' if repository else 'a repository beside it knows'}: no Spark can start from it until "
            "whoever set the seal lifts it.",
            (command("unseal", place, "--plan", seal.plan_id),),
            seal.plan_id,
        )
    kind, plan_id = str(document["kind"]), str(document["plan_id"])
    what = f"{kind} {plan_id}"
    if kind == RewindPlan.kind:
        plan = RewindPlan.of_document(document)
        by_spark = _needs(plan)
        doing = f"rewound to batch {plan.batch_id} by plan {plan_id}"
        again = _again(place, plan, repository)
        if plan.chain:
            doing += f", with the streams of chain {plan.chain['plan_id']}"
            again = chain_command("rewind", plan.chain)
        commands: tuple[str, ...] = (again, plan.command_to_undo(repository))
    else:
        by_spark = ""
        doing = f"changed by {what}"
        commands = (*_same_command(place, repository, document), undo_command(place, plan_id, repository))
        if chain := document.get("chain"):
            doing += f", with the streams of chain {chain['plan_id']}"
            commands = tuple(chain_command(action, chain) for action in ("restore", "undo"))
    if seal.plan_id != plan_id:
        return RewindStatus(
            UNDER_WAY,
            f"{place} is being put back to what it was before {what}, and that was stopped half-way. It is sealed, so that no "
            f"Spark can start from it. The same undo again completes it{by_spark}. {_SAY_SO}:",
            (commands[-1],),
            plan_id,
        )
    return RewindStatus(
        UNDER_WAY,
        f"{place} is being {doing}, and that was stopped half-way. It is sealed, so that no Spark can start from it. The same "
        f"{kind} again{'' if len(commands) > 1 else ', with all that it was given,'} completes it; undo undoes it{by_spark}. "
        f"{_SAY_SO}:",
        commands,
        plan_id,
    )


def _needs(plan: RewindPlan) -> str:
    """What the commands need besides, in words."""
    kinds = {sink.report.kind for sink in plan.sinks if sink.by_spark}
    if UNITY in kinds:
        return " (both need --warehouse, for Unity Catalog rolls the table back)"
    return " (both need --spark-submit, for Spark rolls the table back)" if kinds else ""


def _same_command(place: str, repository: Repository | None, document: dict[str, Any]) -> tuple[str, ...]:
    """The command that resumes a change; none where its plan does not say all that was asked for."""
    kind, held = document["kind"], repository.location.uri if repository else "REPOSITORY"
    if kind == "restore":
        return (restore_command(document, held),)
    if kind == "repair":
        return (command("doctor", place, "--repair", "--repository", held, "--apply"),)
    if kind == "reset":
        return (reset_command(place, ResetRequest.from_json(document["request"]), held),)
    # Earlier versions did not keep what was asked for.
    return (flow_reset_command(document, held),) if "request" in document else ()


def rewind_records(repository: Repository) -> list[dict[str, Any]]:
    """Audit records of what was done by plans that are kept (every change of a checkpoint) and of what took them back.

    Two listings and a read for each such record. Those of backups that expired and of prunes, of which there may be thousands,
    are not read.

    :return: newest first.
    """
    plans = {file.path.rpartition("/")[2].removesuffix(".json") for file in repository.location.list("plans").files}
    if not plans:
        return []
    ids = plans | {undo_of(plan_id) for plan_id in plans}
    names = (file.path for file in repository.location.list("audit").files)
    wanted = [path for path in names if path.partition("-")[2].removesuffix(".json") in ids]
    return sorted(repository.read_records(wanted), key=lambda record: str(record["at"]), reverse=True)


def _changes(
    place: str, records: Iterable[dict[str, Any]], since: datetime | None, *, kinds: Collection[str]
) -> Iterator[dict[str, Any]]:
    """Records of changes of this checkpoint that were not undone, newest first."""
    recent = takewhile(lambda r: since is None or datetime.fromisoformat(r["at"]) >= since, records)
    return not_undone((record for record in recent if record.get("checkpoint") == place), kinds=kinds)


def _again(place: str, plan: RewindPlan, repository: Repository | None) -> str:
    request = plan.request
    words = ["rewind", place, option_for(request.target)]
    sinks = request.sinks
    words += sink_words([(sink.sink, sink.app_id) for sink in sinks])
    if any(sink.sink_exit for sink in sinks):
        # A rewind that is resumed need not accept anything again.
        keep = ("", SinkPolicy.ACCEPT.value)
        policies = ["keep" if sink.sink_exit in keep else sink.sink_exit for sink in sinks]
        one = policies[:1] if len(set(policies)) == 1 else policies
        words += [word for policy in one for word in ("--sink-policy", policy)]
    if not request.exact_replay:
        words.append("--no-exact-replay")
    if request.backup:
        words += ["--backup-id", request.backup]
    if repository is not None and not is_beside(repository, place):
        words += ["--repository", repository.location.uri]
    return command(*words, "--apply")
