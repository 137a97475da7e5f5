"""``fleet``: the status of all streams."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call, UsageError
from airflow_ckpt_provider.cli.guard_options import options_of_guards
from airflow_ckpt_provider.cli.kafka_config import configuration
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.fleet import tables
from airflow_ckpt_provider.fleet.discovery import Discovery, discover
from airflow_ckpt_provider.fleet.fleet import Fleet, discovered, inspect_fleet
from airflow_ckpt_provider.fleet.metrics import to_openmetrics
from airflow_ckpt_provider.fleet.options import options_of
from airflow_ckpt_provider.fleet.report import keep_report
from airflow_ckpt_provider.fleet.stream import Limits
from airflow_ckpt_provider.guards.registry import GuardSettings, installed_guards
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.streams.parameters import guard_options
from airflow_ckpt_provider.streams.stream import Stream

OptionsOfKinds = dict[str, dict[str, Any]]


def fleet(call: Call) -> Answer:
    """Compare all streams with limits; a limit that is broken, or cannot be judged, is a finding."""
    args = call.args
    by_declaration = args.streams or args.stream
    if not (args.root or args.checkpoints or by_declaration):
        raise UsageError("no streams were given", hint="give ROOT, --checkpoints FILE, or --streams FILE")
    if args.json + args.csv + args.markdown > 1:
        raise UsageError("--json, --csv and --markdown exclude each other", hint="give one of them")
    settings, given = _settings(call)
    repository = Repository.open(call.places(args.repository, role="repository"))
    declared = _declared(call, repository) if by_declaration else {}
    own = options_of(list(declared.values()), given, guard_options)
    streams = _streams(call, declared)
    limits = Limits(args.max_age, args.max_gap, args.min_time_to_loss)
    with terminal.counting_bar("Looking", "streams") as on_progress:
        found = inspect_fleet(
            streams,
            repository,
            limits=limits,
            own_limits={uri: Limits.of(stream, limits) for uri, stream in declared.items()},
            objectives={uri: stream.objectives for uri, stream in declared.items()},
            guards=installed_guards if settings.options or own else None,
            settings=settings,
            options=own,
            sizes=args.size,
            workers=args.workers,
            on_progress=on_progress,
        )
    if args.keep_report:
        keep_report(repository, found, writer="airflow-ckpt fleet")
    if args.prometheus:
        LocalStore().replace(os.path.abspath(args.prometheus), to_openmetrics(found).encode())
    if call.screen and (args.csv or args.markdown):
        call.screen.out(tables.to_csv(found) if args.csv else tables.to_markdown(found), end="")
    elif call.screen:
        _show(found, call.screen)
    return Answer(found.to_json(), findings=bool(found.problems()))


def _declared(call: Call, repository: Repository) -> dict[str, Stream]:
    """The streams that are declared to have their backups in a repository, by the addresses of their checkpoints."""
    from airflow_ckpt_provider.page.shown import declared_in

    args = call.args
    known = call.streams(args.streams)
    chosen = [known.named(args.stream)] if args.stream else known.values()
    here = declared_in(repository.location.uri, chosen).values()
    if not here and not (args.root or args.checkpoints):
        raise RefusedError(
            f"no declared stream has its backups in {repository.location}",
            hint="give the repository that the file names, or ROOT",
        )
    return {_place(call, stream).uri: stream for stream in here}


def _place(call: Call, stream: Stream) -> Location:
    return call.places(stream.checkpoint, role="root", conn_id=stream.checkpoint_connection)


def _streams(call: Call, declared: Mapping[str, Stream]) -> Discovery:
    args = call.args
    roots = [call.places(uri, role="root") for uri in args.root]
    with terminal.counting_bar("Looking", "directories") as on_progress:
        found = discover(roots, depth=args.depth, workers=args.workers, on_progress=on_progress)
    listed = read_list(args.checkpoints) if args.checkpoints else []
    given: list[tuple[Location, str | None]] = [(call.places(uri, role="root"), name) for uri, name in listed]
    given += [(_place(call, stream), stream.repository_name) for stream in declared.values()]
    return discovered(found, given, workers=args.workers)


def read_list(file: str) -> list[tuple[str, str | None]]:
    """Read addresses and names of checkpoints.

    :raises RefusedError: the file cannot be read, or is no such list.
    """
    try:
        text = Path(file).read_text(encoding="utf-8")
        if text.lstrip().startswith(("{", "[")):
            document = load_json(text)
            rows = document["checkpoints"] if isinstance(document, dict) else document
            return [(r, None) if isinstance(r, str) else (str(r["checkpoint"]), r.get("name")) for r in rows]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise RefusedError(
            f"--checkpoints {file} cannot be read: {type(e).__name__}: {e}",
            hint="give one address a line, or what `airflow-ckpt discover --json` printed",
        ) from e
    lines = (line.strip().partition("\t") for line in text.splitlines())
    return [(uri.strip(), name.strip() or None) for uri, _, name in lines if uri and not uri.startswith("#")]


def _settings(call: Call) -> tuple[GuardSettings, dict[str, OptionsOfKinds]]:
    """Settings of guards of all streams, and of single ones."""
    given = [(key.rpartition(":"), value) for key, value in call.args.option]
    common = options_of_guards((key, value) for (stream, _, key), value in given if not stream)
    if call.args.kafka_config:
        common.setdefault("kafka", {})["config"] = configuration(call.args.kafka_config)
    names = {stream for (stream, _, _), _ in given if stream}
    own = {
        name: options_of_guards((key, value) for (stream, _, key), value in given if stream == name) for name in names
    }
    return GuardSettings(options=common), own


def _show(fleet: Fleet, screen: Console) -> None:
    ages = ("backup!", "verified!", "size>", "time to loss!", "drill!")
    shown = terminal.table("stream", "batch>", "gap>", *ages, "state!")
    for stream in fleet.streams:
        size = stream.size if stream.size is not None else stream.backup.size if stream.backup else None
        wrong = stream.problems(fleet.limits_of(stream))
        shown.add_row(
            Text(stream.name, style="bold red" if wrong else ""),
            tables.batch(stream),
            tables.gap(stream),
            tables.backup_age(stream),
            tables.verified(stream),
            "" if size is None else terminal.size(size),
            tables.time_left(stream),
            tables.drill_age(stream),
            tables.status(stream),
        )
    screen.print(shown)
    if fleet.too_deep:
        screen.print()
        screen.print(f"not looked below (see --depth): {', '.join(fleet.too_deep[:5])}", style="yellow")
    problems = fleet.problems()
    if problems:
        screen.print()
        screen.print(terminal.findings(f"{uri}: {'; '.join(found)}" for uri, found in problems.items()))
