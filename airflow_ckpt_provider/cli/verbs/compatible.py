"""``compatible``: whether new code can continue from a checkpoint."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.cli.calling import Answer, Call
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.upgrade.compatibility.change import Effect
from airflow_ckpt_provider.upgrade.compatibility.compatibility import Compatibility, compare
from airflow_ckpt_provider.upgrade.compatibility.description import QueryDescription, parse_description
from airflow_ckpt_provider.verdict import Verdict

_STYLES = {
    Effect.FORBIDDEN: "bold red",
    Effect.UNNOTICED: "bold yellow",
    Effect.UNKNOWN: "yellow",
    Effect.IGNORED: "dim",
    Effect.ALLOWED: "green",
}


def compatible(call: Call) -> Answer:
    """Compare a checkpoint with the description of new code."""
    before = _description(call, call.args.old) if call.args.old else None
    checkpoint = Checkpoint.at(call.places(call.args.checkpoint, role="checkpoint"))
    found = compare(checkpoint, _description(call, call.args.description), before=before)
    if call.screen and call.args.markdown:
        call.screen.print(Text(found.to_markdown()), soft_wrap=True)
    elif call.screen:
        _show(found, call.screen)
    return Answer(found.to_json(), findings=found.verdict is not Verdict.SAFE)


def _description(call: Call, uri: str) -> QueryDescription:
    directory, _, name = uri.rpartition("/")
    try:
        data = call.places(directory or ".", role="description").read(name)
    except FileNotFoundError:
        raise RefusedError(
            f"{uri} does not exist",
            hint="make it with `spark-submit describe_query.py --build module:function --output URI`",
        ) from None
    return parse_description(data, path=uri)


def _show(found: Compatibility, screen: Console) -> None:
    style = "bold green" if found.verdict is Verdict.SAFE else "bold red"
    screen.print(
        Text.assemble(
            (found.verdict.value, style), f"  {found.build} on {found.checkpoint} after batch {found.batch_id}"
        )
    )
    if not found.changes:
        screen.print("nothing has changed that a checkpoint knows of")
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("effect", "code", "change", "Spark", "next step"):
        table.add_column(column, overflow="fold")
    for change in found.changes:
        kind = change.kind
        table.add_row(
            Text(change.effect.value, style=_STYLES[change.effect]),
            kind.code,
            Text(change.message),
            Text(kind.spark),
            Text(change.remedy or kind.remedy),
        )
    screen.print(table)
