"""What people see: tables, sizes, a progress bar. All of it through rich, none of it in JSON."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from airflow_ckpt_provider.cli.calling import printable, unwritten, without_reader
from airflow_ckpt_provider.cli.next_commands import PROGRAM
from airflow_ckpt_provider.units import format_ago, format_size, format_time, is_number
from airflow_ckpt_provider.verdict import Verdict

if TYPE_CHECKING:
    from rich.markdown import Markdown

    from airflow_ckpt_provider.backup.copy_progress import CopyProgress, OnProgress
    from airflow_ckpt_provider.cli.next_commands import NextCommands

#: The formats of units, by the short names that the verbs use.
ago, moment, size = format_ago, format_time, format_size

#: Columns where nobody looks through a window: in a file, a mail, a log.
_WIDTH_OF_FILES = 120
#: What the layout needs; a narrower window breaks the lines.
_NARROWEST = 40
#: Columns that a text needs which may be broken.
_FOLDED = 8
_VERDICT_STYLES = {Verdict.SAFE: "bold green", Verdict.UNKNOWN: "bold yellow"}


def screen(out: TextIO, commands: NextCommands) -> Console:
    """Open a stream for people.

    :param out: the stream.
    :param commands: completes the commands in what is shown.
    """
    given = os.environ.get("COLUMNS", "")
    to_a_file = not out.isatty() and not (is_number(given) and int(given))
    # Of a terminal that says it has no columns, as some do in containers, rich would show nothing.
    width = _WIDTH_OF_FILES if to_a_file else max(_NARROWEST, shutil.get_terminal_size().columns)
    # What people have named or written is shown as it is, whatever rich would make of [/x] and :100:.
    return _Screen(commands, file=out, highlight=False, markup=False, emoji=False, width=width)


class _Table(Table):
    """Is wider than a narrow screen rather than cut an id or a number, of which a part would be taken for the whole."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        free = options.update(max_width=sys.maxsize)
        widths = ((each, self._measure_column(console, free, each).maximum) for each in self.columns)
        needed = sum(width if column.no_wrap else min(width, _FOLDED) for column, width in widths) + self._extra_width
        yield from super().__rich_console__(console, options.update(max_width=max(needed, options.max_width)))


class _Screen(Console):
    def __init__(self, commands: NextCommands, **settings: Any) -> None:
        super().__init__(**settings)
        self._commands = commands

    def print(self, *objects: Any, **settings: Any) -> None:
        """Print; what is wider than the screen is not cut."""
        super().print(*objects, **{"crop": False, **settings})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render, with commands completed: here every text comes by, also one in a table or a plan."""
        if isinstance(renderable, str) and PROGRAM in renderable:
            renderable = self.render_str(renderable)
        if isinstance(renderable, Text) and (edits := list(self._commands.edits(renderable.plain))):
            made, at = renderable.blank_copy(), 0
            for start, end, words in edits:
                made.append_text(renderable[at:start]).append(words)
                at = end
            renderable = made.append_text(renderable[at:])
        return super().render(renderable, options)

    def on_broken_pipe(self) -> None:
        """Continue without a reader; rich would end the process."""
        del self._buffer[:]
        without_reader(self.file)  # type: ignore[arg-type]

    def _write_buffer(self) -> None:
        try:
            super()._write_buffer()
        except BrokenPipeError:
            raise
        except OSError as e:
            del self._buffer[:]
            raise unwritten(e, self.file) from e  # type: ignore[arg-type]

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        return super()._render_buffer(
            each if each.control else Segment(printable(each.text), each.style) for each in buffer
        )


def planned(screen: Console, done: str = "changed") -> None:
    """Say that nothing was done, and how it is.

    :param done: what was not done, as a participle.
    """
    screen.print(Text.assemble(f"Nothing was {done}: this is a plan. Add ", ("--apply", "bold"), " to apply it."))


def next_command(screen: Console, doing: str, line: str) -> None:
    """Show what to type next: in one line whatever its length, so that it can be copied.

    :param doing: what it does.
    :param line: the command.
    """
    screen.print()
    screen.print(Text(f"{doing}: {line}", style="dim"), soft_wrap=True)


def facts(rows: Iterable[tuple[str, str | Text]]) -> Table:
    """Lay out names and values."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(f"  {name}", value)
    return grid


def table(*columns: str) -> Table:
    """Make a table with the given columns; a name that ends in ``>`` makes one of numbers, ``!`` one that never wraps."""
    made = _Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="dim")
    for column in columns:
        made.add_column(
            column.rstrip(">!"),
            justify="right" if column.endswith(">") else "left",
            no_wrap=column.endswith((">", "!")),
            overflow="fold",
        )
    return made


def title(text: str) -> Text:
    """Make the heading of a part."""
    return Text(text, style="bold")


def findings(messages: Iterable[str]) -> Table:
    """List what is wrong."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="bold red")
    grid.add_column(overflow="fold")
    for message in messages:
        grid.add_row("  ✗", Text(message))
    return grid


def verdict(value: Verdict) -> Text:
    """Show a verdict in its colour."""
    return Text(value.value, style=_VERDICT_STYLES.get(value, "bold red"))


def count(number: int, one: str, many: str | None = None) -> str:
    """Show a number with its noun."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def plan(markdown: str) -> Markdown:
    """Lay out a plan."""
    # rich's Markdown takes as long to load as all else: only for those who are shown a plan.
    from airflow_ckpt_provider.cli.plan_layout import Plan

    return Plan(markdown)


@contextmanager
def progress_bar(doing: str) -> Iterator[OnProgress | None]:
    """Show a bar on standard error while files are worked on; nothing where that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[files]}"),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=None, files="")

        def on_progress(done: CopyProgress) -> None:
            bar.update(
                task,
                total=done.bytes_total,
                completed=done.bytes_done,
                files=f"{done.files_done:,}/{done.files_total:,} files",
            )

        yield on_progress


@contextmanager
def counting_bar(doing: str, what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar on standard error while something is read; nothing where that is no terminal.

    :param what: the things, in the plural.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn(what))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, total=total, completed=done)
