"""What the demo prints on the terminal: one line a step, with the time since the start; plain text where it is piped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.markdown import Markdown
from rich.padding import Padding
from rich.text import Text

_INDENT = 13
_WIDTH = 110


class Timeline:
    """A list of steps as they happen.

    :param console: where to.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        if not self.console.is_terminal:
            # Rich takes 80 columns if there is no terminal.
            self.console.width = _WIDTH
        self._began = time.monotonic()
        self.steps: list[dict[str, object]] = []

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def headline(self, title: str, *lines: str) -> None:
        """Print what this is.

        :param title: in bold.
        :param lines: below it.
        """
        self._print("")
        self._print(Text(title, style="bold"))
        for line in lines:
            self._print(Text(line, style="dim"))

    def step(self, title: str) -> None:
        """Begin a step.

        :param title: what happens now.
        """
        number = len(self.steps) + 1
        self.steps.append({"step": number, "title": title, "at": round(self.elapsed, 1)})
        self._print("")
        self._print(Text.assemble((f"{self.elapsed:6.1f} s  ", "cyan"), (f"{number:2} ", "bold"), (title, "bold")))

    def say(self, text: str, *, style: str = "") -> None:
        """Print a line of a step.

        :param text: the line.
        :param style: of rich.
        """
        self._print(Padding(Text(text, style=style), (0, 0, 0, _INDENT)))

    def spark_says(self, error: str) -> None:
        """Print Spark's own words.

        :param error: one or two lines of it.
        """
        self.say(f"Spark: {error}", style="red")

    def document(self, markdown: str) -> None:
        """Print a document.

        :param markdown: its text.
        """
        self._print(Padding(Markdown(markdown), (0, 0, 0, _INDENT)))

    def verdict(self, good: bool, *lines: str) -> None:
        """Print the end.

        :param good: in green, else in red.
        :param lines: what came out.
        """
        self._print("")
        for line in lines:
            self._print(Text(line, style="bold green" if good else "bold red"))

    def hint(self, line: str) -> None:
        """Print a line that may be copied: it is not wrapped.

        :param line: the line.
        """
        self.console.print(Text(line, style="dim"), soft_wrap=True)

    def _print(self, what: RenderableType) -> None:
        if self.console.is_terminal:
            self.console.print(what)
            return
        # Rich fills lines up with spaces, which nobody wants in a file.
        with self.console.capture() as printed:
            self.console.print(what)
        lines = [line.rstrip() for line in printed.get().removesuffix("\n").split("\n")]
        self.console.file.write("\n".join(lines) + "\n")
        self.console.file.flush()

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show on a terminal what is waited for.

        :param text: what.
        """
        if self.console.is_terminal:
            with self.console.status(Text(text)):
                yield
        else:
            yield
