"""``streams``: the file that declares them: a first one, its check, a list, its schema."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call, UsageError
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.fleet.declared import Finding, check_application, check_declared
from airflow_ckpt_provider.fleet.discovery import State, discover
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.redaction import redacted
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.streams.first_file import first_file, free_name
from airflow_ckpt_provider.streams.problems import DeclarationError, dotted
from airflow_ckpt_provider.streams.schema import SCHEMA_FILE, schema_text
from airflow_ckpt_provider.streams.stream import Stream
from airflow_ckpt_provider.streams.streams import Streams
from airflow_ckpt_provider.units import format_duration


def streams(call: Call) -> Answer:
    """Do what the action says."""
    return {"init": _init, "check": _check, "list": _list, "schema": _schema}[call.args.action](call)


def _init(call: Call) -> Answer:
    args = call.args
    if not args.root:
        raise UsageError("no place was given to look for checkpoints", hint="airflow-ckpt streams init ROOT")
    roots = [call.places(uri, role="root") for uri in args.root]
    with terminal.counting_bar("Looking", "directories") as on_progress:
        found = discover(roots, depth=args.depth, workers=args.workers, on_progress=on_progress)
    named: dict[str, str] = {}
    for each in found.found:
        if each.state is not State.NO_BATCH:
            named[free_name(each.name, named)] = each.place.uri
    if not named:
        raise RefusedError(
            f"there is no checkpoint with a committed batch below {', '.join(map(str, roots))}",
            hint="give another place, or look deeper: --depth",
        )
    text = first_file(
        named,
        root=", ".join(redacted(uri) for uri in args.root),
        repository=_from_anywhere(args.repository),
        schema=str(SCHEMA_FILE),
    )
    if call.screen:
        call.screen.out(text, end="")
    return Answer({"streams": named, "yaml": text}, findings=bool(found.unread))


def _from_anywhere(place: str | None) -> str | None:
    """An address that does not depend on the current directory, as the file needs it."""
    return os.path.abspath(place) if place and "://" not in place else place


def _chosen(call: Call) -> list[Stream]:
    return _chosen_of(call, call.streams(call.args.streams))


def _chosen_of(call: Call, declared: Streams) -> list[Stream]:
    return [declared.named(call.args.stream)] if call.args.stream else list(declared.values())


def _check(call: Call) -> Answer:
    try:
        declared = call.streams(call.args.streams)
        chosen = _chosen_of(call, declared)
    except DeclarationError as e:
        if call.screen:
            raise
        return Answer({"problems": [_problem(each) for each in e.problems], "findings": []}, findings=True)
    with terminal.counting_bar("Checking", "streams") as on_progress:
        findings = [*_findings(call, chosen, on_progress), *_of_applications(declared, chosen)]
    if call.screen:
        if findings:
            call.screen.print(terminal.findings(map(str, findings)))
        wrong = len({each.stream for each in findings})
        right = terminal.count(len(chosen) - wrong, "stream")
        call.screen.print(
            f"{right} as declared" + (f", {terminal.count(len(findings), 'finding')} in {wrong}" if findings else "")
        )
    return Answer({"problems": [], "findings": [each.to_json() for each in findings]}, findings=bool(findings))


def _findings(call: Call, chosen: Sequence[Stream], on_progress: Any) -> list[Finding]:
    def open_place(uri: str, *, conn_id: str | None, role: str) -> Location:
        return call.places(uri, role=role, conn_id=conn_id)

    def look(stream: Stream) -> list[Finding]:
        return check_declared(stream, open_place)

    found: list[Finding] = []
    for number, each in enumerate(in_parallel(look, chosen, workers=call.args.workers), 1):
        found += each
        if on_progress:
            on_progress(number, len(chosen))
    return found


def _of_applications(declared: Streams, chosen: Sequence[Stream]) -> list[Finding]:
    """What keeps the applications from being upgraded, each reported at the first of the chosen streams."""
    first: dict[str, Stream] = {}
    for stream in chosen:
        if stream.application:
            first.setdefault(stream.application, stream)
    return [
        finding
        for application, stream in first.items()
        for finding in check_application(stream, declared.of_application(application))
    ]


def _problem(each: Any) -> dict[str, Any]:
    return {"line": each.line, "field": dotted(each.path), "message": each.message, "hint": each.hint}


def _list(call: Call) -> Answer:
    chosen = _chosen(call)
    if call.screen:
        shown = terminal.table("stream", "checkpoint", "repository", "backed up", "rpo", "owner")
        for each in chosen:
            rpo = format_duration(each.objectives.rpo) if each.objectives.rpo else ""
            shown.add_row(each.name, each.checkpoint, each.repository or "", _schedule(each), rpo, each.owner or "")
        call.screen.print(shown)
    return Answer({"streams": [_row(each) for each in chosen]})


def _row(each: Stream) -> dict[str, Any]:
    return {
        "name": each.name,
        "checkpoint": each.checkpoint,
        "repository": each.repository,
        "name_in_repository": each.repository_name,
        "schedule": _schedule(each),
        "sinks": [sink.sink for sink in each.sinks],
        "tags": list(each.tags),
        "owner": each.owner,
    }


def _schedule(each: Stream) -> str:
    return each.schedule if isinstance(each.schedule, str) else f"every {format_duration(each.schedule)}"


def _schema(call: Call) -> Answer:
    if call.screen:
        call.screen.out(f"{SCHEMA_FILE}\n" if call.args.path else schema_text(), end="")
    return Answer({"path": str(SCHEMA_FILE), "schema": load_json(schema_text())})
