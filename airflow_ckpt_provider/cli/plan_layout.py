"""A plan's Markdown on a terminal."""

from __future__ import annotations

from typing import ClassVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Markdown, MarkdownElement, TableElement
from rich.table import Table
from rich.text import Text


class _Facts(TableElement):
    """A table whose header is empty is one of names and values, and needs no room for the header."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        header = self.header.row.cells if self.header and self.header.row else []
        if self.body is None or any(str(cell.content).strip() for cell in header):
            yield from super().__rich_console__(console, options)
            return
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for row in self.body.rows:
            grid.add_row(Text("  ") + row.cells[0].content, row.cells[1].content)
        yield grid


class Plan(Markdown):
    """Lays out a plan.

    :param markup: as ``plan.to_markdown()`` has it.
    """

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "table_open": _Facts}
