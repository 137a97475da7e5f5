"""``discover``: which checkpoints there are."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call
from airflow_ckpt_provider.fleet.discovery import Discovery, Found, State
from airflow_ckpt_provider.fleet.discovery import discover as find


def discover(call: Call) -> Answer:
    """Find checkpoints; what is torn or cannot be read is a finding and does not hide the others."""
    roots = [call.places(uri, role="root") for uri in call.args.root]
    with terminal.counting_bar("Looking", "directories") as on_progress:
        found = find(roots, depth=call.args.depth, workers=call.args.workers, on_progress=on_progress)
    if call.screen:
        _show(found, call.screen)
    return Answer({"roots": [root.uri for root in roots], **found.to_json()}, findings=not found.ok)


def _show(discovery: Discovery, screen: Console) -> None:
    if discovery.found:
        shown = terminal.table("checkpoint", "name", "query id!", "batch>", "planned", "state!")
        for each in discovery.found:
            shown.add_row(*_row(each))
        screen.print(shown)
    else:
        screen.print("no checkpoint found")
    show_unread(discovery, screen)
    wrong = [f"{f.place.uri}: {f.message}" for f in discovery.found if f.state in (State.TORN, State.UNREADABLE)]
    if wrong:
        screen.print()
        screen.print(terminal.findings(wrong))


def show_unread(discovery: Discovery, screen: Console) -> None:
    """Say into what nobody looked, and what could not be listed."""
    if discovery.repositories:
        screen.print()
        screen.print(
            f"{terminal.count(len(discovery.repositories), 'repository', 'repositories')} left out", style="dim"
        )
    if discovery.too_deep:
        screen.print()
        screen.print(f"not looked below (see --depth): {', '.join(discovery.too_deep[:5])}", style="yellow")
    if discovery.unread:
        screen.print()
        screen.print(terminal.findings(f"{each.uri}: {each.message}" for each in discovery.unread))


def _row(found: Found) -> tuple[str | Text, ...]:
    p = found.progress
    latest = p.latest_committed if p else None
    version = f" (version {found.versions[-1]} of {len(found.versions)})" if len(found.versions) > 1 else ""
    style = {State.WHOLE: "green", State.SEALED: "yellow", State.NO_BATCH: "dim"}.get(found.state, "bold red")
    return (
        Text(found.place.uri + version),
        Text(found.name),
        (p.query_id if p else None) or "",
        "" if latest is None else str(latest),
        terminal.ago(p.batch_time) if p and p.batch_time else "",
        Text(found.state.value, style=style),
    )
