"""What each verb read and wrote, from what it says of itself: summaries, plans, outcomes and reports as plain JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.lineage.names import Dataset, dataset_of, topic_of
from airflow_ckpt_provider.redaction import redacted, redacted_text
from airflow_ckpt_provider.streams.parameters import parameters_of
from airflow_ckpt_provider.streams.stream import Stream

#: The JSON Schema of our facets; a facet's own is in its ``$defs``, under the name of :data:`FACETS`.
SCHEMA_FILE = Path(__file__).with_name("facets.schema.json")
SCHEMA_ID = "urn:airflow-ckpt-provider:openlineage-facets:1"
#: Name of a facet -> name of its schema.
FACETS = {
    "ckpt_backup": "CkptBackupDatasetFacet",
    "ckpt_checkpoint": "CkptCheckpointDatasetFacet",
    "ckpt_verification": "CkptVerificationDatasetFacet",
    "ckpt_change": "CkptChangeRunFacet",
    "ckpt_guard": "CkptGuardRunFacet",
    "ckpt_stream": "CkptStreamRunFacet",
}
#: Sentences and findings that a facet holds: all of them are in the task's log and result.
_SHOWN = 20
#: Where a rewind takes files from, if not from a backup.
_OWN_FILES = "checkpoint"
#: Plans of several streams, and where the plan of one is.
_JOINT = {"chain": "rewind", "set-restore": "restore"}


@dataclass(frozen=True, slots=True)
class Lineage:
    """One run.

    :param inputs: what it read.
    :param outputs: what it wrote; nothing where it only planned.
    :param run_facets: facets of ours by their names.
    """

    inputs: tuple[Dataset, ...] = ()
    outputs: tuple[Dataset, ...] = ()
    run_facets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(slots=True)
class Opened:
    """The places that a task has opened, by which datasets get their full names.

    :param uris: URI of a place -> the same with all that its name needs.
    :param repository: URI of the repository among them.
    """

    uris: dict[str, str] = field(default_factory=dict)
    repository: str | None = None

    def dataset(self, uri: object, *, below: str = "", **more: Any) -> Dataset | None:
        """Name a place.

        :param uri: as plans and summaries have it.
        :param below: a directory in it.
        :param more: the other fields of the dataset.
        """
        if not isinstance(uri, str):
            return None
        full = self.uris.get(uri, uri)
        return dataset_of(f"{full.rstrip('/')}/{below}" if below else full, **more)

    def backup(self, about: Mapping[str, Any], *, repository: str | None = None) -> Dataset | None:
        """Name the backups of a stream: the directory of their manifests, at the version that is this backup.

        :param about: its facet, with ``stream`` and ``backupId``.
        :param repository: URI of its repository; the default is the one that was opened.
        """
        return self.dataset(
            repository or self.repository,
            below=f"backups/{about['stream']}",
            version=str(about["backupId"]),
            facets={"ckpt_backup": _given(about)},
        )


def of_backup(summary: Mapping[str, Any], opened: Opened, facts: Mapping[str, Any], *, servers: str = "") -> Lineage:
    """A backup read the checkpoint, and the topics where it noted what they are; it wrote the backup, unless it took none.

    :param summary: the result of the task.
    :param opened: the places.
    :param facts: what its manifest says of the sources.
    :param servers: of the Kafka cluster that was asked; empty: none was.
    """
    sources = list(_topics(facts.get("end_offsets", ()), servers))
    about = {
        "stream": summary["name"],
        "backupId": summary["backup_id"],
        "batchId": summary["batch_id"],
        "restorableBatches": summary["restorable_batches"],
        "checkpoint": redacted(summary["checkpoint"]),
        "queryId": summary["query_id"],
        "created": summary["created"],
        "sequence": summary["sequence"],
        "immutableUntil": summary["immutable_until"],
    }
    backup = opened.backup(about, repository=summary["repository"])
    checkpoint = _checkpoint(opened, summary["checkpoint"], batchId=summary["batch_id"], queryId=summary["query_id"])
    if summary["unchanged"]:
        return Lineage(_known(checkpoint, *sources, backup))
    written = replace(backup, files=summary["files"], size=summary["bytes"]) if backup else None
    return Lineage(_known(checkpoint, *sources), _known(written))


def of_change(
    plan: Mapping[str, Any],
    outcome: Mapping[str, Any] | None,
    opened: Opened,
    *,
    mode: str,
    tables: Iterable[str] = (),
    servers: str = "",
) -> Lineage:
    """A restore, rewind or reset, or a rewind of several streams: what it was planned from, and what it changed.

    :param plan: the plan.
    :param outcome: what was carried out; ``None``: nothing, or that is not known because the task failed.
    :param opened: the places.
    :param mode: ``plan`` or ``apply``.
    :param tables: tables whose positions were read, besides those that the plan names.
    :param servers: of the Kafka cluster that was asked, of a reset; the plans of other verbs name it.
    """
    if plan["kind"] == "flow-restore":
        return of_change(plan["restore"], outcome, opened, mode=mode)
    if verb := _JOINT.get(plan["kind"]):
        done = {each["name"]: each for each in outcome["streams"]} if outcome else {}
        parts = [part for part in plan["parts"] if part[verb]]
        found = [of_change(part[verb], outcome and done.get(part["name"], {}), opened, mode=mode) for part in parts]
        return Lineage(
            _known(*(each for one in found for each in one.inputs)),
            _known(*(each for one in found for each in one.outputs)),
            {"ckpt_change": _of_plan(plan, outcome, [], mode=mode)},
        )
    place, sinks = changed_place(plan), list(_sinks(plan))
    backup_id = plan.get("backup_id") or (None if plan.get("from") in (None, _OWN_FILES) else plan["from"])
    about = {"stream": plan.get("name"), "backupId": backup_id, "batchId": plan.get("batch_id")}
    before = _checkpoint(opened, place, batchId=plan.get("newest"), queryId=plan.get("query_id"))
    inputs = [
        opened.backup(about) if backup_id else None,
        before if plan["kind"] != "restore" else None,
        *map(opened.dataset, tables),
        *_sources(plan.get("sources")),
        *_topics_of_readers(plan, servers),
        *(opened.dataset(sink["uri"], version=_version(sink.get("fromVersion"))) for sink in sinks),
    ]
    outputs: list[Dataset | None] = []
    if outcome is not None:
        versions = {each["uri"]: each["table_version"] for each in outcome.get("sinks", ())}
        for sink in sinks:
            if sink["rolledBack"]:
                sink["version"] = versions.get(sink["uri"], outcome.get("table_version"))
                outputs.append(opened.dataset(sink["uri"], version=_version(sink["version"])))
        query_id = plan.get("new_query_id") or plan.get("query_id")
        outputs.append(_checkpoint(opened, place, batchId=plan.get("batch_id"), queryId=query_id))
    return Lineage(
        _known(*inputs), _known(*outputs), {"ckpt_change": _of_plan(plan, outcome, sinks, backup_id, mode=mode)}
    )


def changes_of(plan: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The plans of single checkpoints that a plan consists of, as far as there is something to change.

    :param plan: a plan of whatever verb.
    """
    found = [plan]
    if verb := _JOINT.get(plan["kind"]):
        found = [part[verb] for part in plan["parts"] if part[verb]]
    elif plan["kind"] == "flow-restore":
        found = [plan["restore"]]
    return [each for each in found if not each.get("already_done")]


def changed_place(plan: Mapping[str, Any]) -> str:
    """URI of the checkpoint that a plan changes.

    :param plan: the plan of one change.
    """
    return str(plan.get("checkpoint") or plan.get("path") or plan.get("target"))


def of_undo(outcome: Mapping[str, Any], opened: Opened, sinks: Sequence[str] = ()) -> Lineage:
    """A change was undone: its checkpoint was written, and the tables that it had rolled back.

    :param outcome: what was undone.
    :param opened: the places.
    :param sinks: the sinks that were named.
    """
    versions = {each["uri"]: each["table_version"] for each in outcome.get("sinks", ())}
    if len(sinks) == 1 and outcome["table_version"] is not None:
        versions[sinks[0]] = outcome["table_version"]
    tables = [
        opened.dataset(uri, version=_version(version)) for uri, version in versions.items() if version is not None
    ]
    checkpoint = _checkpoint(opened, outcome["checkpoint"])
    facet = {"kind": "undo", "of": outcome["kind"], "planId": outcome["plan_id"], "applied": True}
    return Lineage(_known(checkpoint), _known(checkpoint, *tables), {"ckpt_change": facet})


def of_chain_undo(outcome: Mapping[str, Any], opened: Opened, sinks: Mapping[str, Sequence[str]]) -> Lineage:
    """A rewind of several streams was undone.

    :param outcome: what was undone.
    :param opened: the places.
    :param sinks: name of a stream -> its sinks.
    """
    found = [of_undo(each, opened, sinks.get(each["name"], ())) for each in outcome["streams"]]
    facet = {"kind": "undo", "of": "chain", "planId": outcome["plan_id"], "applied": True}
    return Lineage(
        _known(*(each for one in found for each in one.inputs)),
        _known(*(each for one in found for each in one.outputs)),
        {"ckpt_change": facet},
    )


def of_guard(report: Mapping[str, Any], opened: Opened) -> Lineage:
    """A guard read the checkpoint and asked the sources; it wrote nothing.

    :param report: what it found.
    :param opened: the places.
    """
    about = ("source", "kind", "verdict", "lost", "seconds_left")
    sources = [
        _given({_camel(key): each.get(key) for key in about} | {"source": str(each.get("name", each.get("index")))})
        for each in report["sources"]
    ]
    facet = {
        "subject": redacted_text(report["subject"]),
        "verdict": report["verdict"],
        "reasons": _shown(report["reasons"]),
        "nextBatchId": report["batch_id"],
        "lost": report["lost"],
        "secondsLeft": report["seconds_left"],
        "sources": sources[:_SHOWN],
    }
    return Lineage(_known(_checkpoint(opened, report["subject"]), *_sources(report)), (), {"ckpt_guard": _given(facet)})


def of_verification(report: Mapping[str, Any], opened: Opened) -> Lineage:
    """A backup was read, or only its structure; what was found is a facet of it.

    :param report: the result of the task that verified one backup.
    :param opened: the places.
    """
    backup = opened.backup({"stream": report["name"], "backupId": report["backup_id"], "batchId": report["batch_id"]})
    facet = {
        "whole": report["ok"],
        "files": report["files"],
        "readFiles": report["read_files"],
        "readBytes": report["read_bytes"],
        "findings": _shown(str(each["message"]) for each in report["findings"]),
    }
    return Lineage(_known(replace(backup, facets={**backup.facets, "ckpt_verification": facet}) if backup else None))


def of_copy(result: Mapping[str, Any], opened: Opened) -> Lineage:
    """Backups were read in one repository, and written into another where that did not have them.

    :param result: the result of the task.
    :param opened: the places.
    """
    inputs, outputs = [], []
    for copied in reversed(result["backups"]):  # the newest of a stream counts
        about = {"stream": copied["name"], "backupId": copied["backup_id"]}
        inputs.append(opened.backup(about, repository=result["repository"]))
        if not copied["already_there"] and (target := opened.backup(about, repository=result["target"])):
            outputs.append(replace(target, files=copied["files"], size=copied["bytes"]))
    return Lineage(_known(*inputs), _known(*outputs))


def facet_of_stream(stream: Stream) -> dict[str, Any]:
    """What is declared of the stream that a task is about: its places and tables as datasets, and its objectives.

    :param stream: the stream.
    """
    said = parameters_of(stream)
    tables = [uri for source in stream.sources.values() for uri in source.tables.values()]
    objectives = stream.objectives
    durations = {"rpo": objectives.rpo, "rto": objectives.rto, "maxDowntime": stream.max_downtime}
    return _given(
        {
            "name": stream.name,
            "nameInRepository": stream.repository_name,
            "owner": stream.owner,
            "tags": list(stream.tags),
            "checkpoint": _identifier(said["checkpoint"]),
            "repository": _identifier(stream.repository),
            "sourceKinds": sorted(stream.sources),
            "sourceTables": [each for uri in tables if (each := _identifier(uri))],
            "sinks": [each for sink in stream.sinks if (each := _identifier(sink.sink))],
            **{f"{name}Seconds": time and time.total_seconds() for name, time in durations.items()},
        }
    )


def _topics(offsets: Iterable[Mapping[str, Any]], servers: str) -> Iterator[Dataset | None]:
    """The topics in the offsets of a batch, as the facts of a backup have them; the offsets do not name their cluster."""
    for each in offsets:
        if each.get("kind") == "kafka":
            yield from (topic_of(servers, topic) for topic in each["offset"] or ())


def _checkpoint(opened: Opened, uri: object, **about: Any) -> Dataset | None:
    given, batch = _given(about), about.get("batchId")
    return opened.dataset(uri, version=_version(batch), facets={"ckpt_checkpoint": given} if given else {})


def _of_plan(
    plan: Mapping[str, Any],
    outcome: Mapping[str, Any] | None,
    sinks: list[dict[str, Any]],
    backup_id: object = None,
    *,
    mode: str,
) -> dict[str, Any]:
    return _given(
        {
            "kind": plan["kind"],
            "planId": plan["plan_id"],
            # Of a task that failed while it carried the plan out, it is not known.
            "applied": True if outcome is not None else False if mode == "plan" else None,
            "stream": plan.get("name"),
            "verdict": plan["verdict"],
            "reasons": _shown(plan["reasons"]),
            "risks": list(plan["accept"]),
            "batchId": plan.get("batch_id"),
            "newestBatchId": plan.get("newest"),
            "backupId": backup_id,
            "batches": plan.get("batches"),
            "sinks": [_given({**sink, "uri": redacted(sink["uri"])}) for sink in sinks],
        }
    )


def _sinks(plan: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The sinks of a plan of whatever verb: one is ``sink``, several are ``sinks``, with a report each or as reports."""
    one = plan.get("sink")
    entries = [{"report": one, "sink_exit": plan.get("sink_exit")}] if one else plan.get("sinks") or ()
    for entry in entries:
        report = entry.get("report", entry)
        rollback = report.get("rollback") or {}
        yield {
            "uri": str(report["uri"]),
            "kind": report["kind"],
            "verdict": entry.get("verdict", report["verdict"]),
            "rolledBack": entry.get("sink_exit") == "rollback" and bool(rollback),
            "fromVersion": rollback.get("from_version"),
            "toVersion": rollback.get("to_version"),
        }


def _sources(report: object) -> Iterator[Dataset | None]:
    """The sources that guards were asked about, as far as their reports name them; those of a reset are its readers."""
    found = report.get("sources", ()) if isinstance(report, Mapping) else report
    for source in found if isinstance(found, list | tuple) else ():
        servers = source.get("servers")
        if isinstance(servers, str):
            topics = [*source.get("topics", ()), *(part.get("topic") for part in source.get("parts", ()))]
            yield from (topic_of(servers, topic) for topic in dict.fromkeys(filter(None, topics)))
        elif isinstance(source.get("table"), str):
            yield dataset_of(source["table"])


def _topics_of_readers(plan: Mapping[str, Any], servers: str) -> Iterator[Dataset | None]:
    """The topics that the readers of a reset begin in."""
    for reader in (plan.get("sources") or ()) if servers else ():
        with suppress(ValueError, AttributeError, TypeError):
            yield from (topic_of(servers, topic) for topic in load_json(reader["options"]["startingOffsets"]))


def _known(*datasets: Dataset | None) -> tuple[Dataset, ...]:
    """Those that have a name, each once: the first one counts."""
    found: dict[tuple[str, str], Dataset] = {}
    for each in datasets:
        if each is not None:
            found.setdefault((each.namespace, each.name), each)
    return tuple(found.values())


def _identifier(uri: str | None) -> dict[str, str] | None:
    found = dataset_of(uri) if uri else None
    return {"namespace": found.namespace, "name": found.name} if found else None


def _version(value: object) -> str:
    return "" if value is None else str(value)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(each.title() for each in others)


def _shown(sentences: Iterable[str]) -> list[str]:
    found = [redacted_text(each) for each in sentences]
    return [*found[:_SHOWN], *([f"… and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else [])]


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and value != []}
