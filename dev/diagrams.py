"""Draw the diagrams of docs/concepts: ``python -m dev.diagrams`` writes docs/images/concept-*.svg.

A test compares the files with what this module draws. The closure is that of a real checkpoint, as the code finds it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from html import escape
from pathlib import Path

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.one_checkpoint import unpack

IMAGES = Path(__file__).parents[1] / "docs/images"
WIDTH = 780
INK, GREY, LINE = "#1f2933", "#5f6b76", "#b8c1ca"
#: What the picture of the closure says in the place of a file's name.
_SHOWN = {"state/0/_metadata/metadata": "operator 0", "state/0/0/_metadata/schema": "its schema"}
WHITE, PALE, TEAL, AMBER, RED = "#ffffff", "#eef1f4", "#cfe8e6", "#fdeccd", "#f8d3d0"


class Drawing:
    """An SVG that grows by boxes, texts and arrows.

    :param title: what a screen reader says of it.
    :param height: in the unit in which it is :data:`WIDTH` wide.
    """

    def __init__(self, title: str, height: int) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            f'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="{INK}">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
            f'<path d="M0 0 L8 4 L0 8 z" fill="{GREY}"/></marker></defs>',
            f'<rect width="{WIDTH}" height="{height}" fill="{WHITE}"/>',
        ]

    def text(self, x: float, y: float, words: str, *, kind: str = "", at: str = "start") -> None:
        """Write words, several lines if there are several.

        :param x: where the words begin, or their middle.
        :param y: of the first base line.
        :param words: the words.
        :param kind: ``"bold"``, ``"small"``, ``"code"``, or several of them.
        :param at: ``"start"`` or ``"middle"``.
        """
        look: dict[str, str] = {}
        if "bold" in kind:
            look["font-weight"] = "bold"
        if "code" in kind:
            look |= {"font-family": "Menlo, Consolas, monospace", "font-size": "12"}
        if "small" in kind:
            look |= {"font-size": "11.5", "fill": GREY}
        style = "".join(f' {name}="{value}"' for name, value in look.items())
        for number, line in enumerate(words.split("\n")):
            self._parts.append(
                f'<text x="{x:g}" y="{y + 17 * number:g}" text-anchor="{at}"{style}>{escape(line)}</text>'
            )

    def box(
        self, x: float, y: float, width: float, height: float, words: str = "", fill: str = PALE, *, kind: str = ""
    ) -> None:
        """Draw a box with words in its middle; ``kind`` is that of the words, and ``"dashed"`` of the line."""
        dashes = ' stroke-dasharray="5 4"' if "dashed" in kind else ""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="{fill}" stroke="{LINE}"{dashes}/>'
        )
        lines = words.count("\n")
        if words:
            self.text(x + width / 2, y + height / 2 + 5 - 8.5 * lines, words, kind=kind, at="middle")

    def arrow(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """Draw an arrow."""
        self._parts.append(
            f'<line x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}" stroke="{GREY}" stroke-width="1.5" marker-end="url(#tip)"/>'
        )

    def line(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """Draw a line."""
        self._parts.append(f'<line x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}" stroke="{GREY}"/>')

    def svg(self) -> str:
        """The document."""
        return "\n".join([*self._parts, "</svg>", ""])


def checkpoint() -> str:
    """The parts of a checkpoint, and when a batch writes each of them."""
    d = Drawing("The directories of a checkpoint, in the order in which batch 6 writes them", 330)
    d.text(20, 28, "checkpointLocation", kind="bold")
    d.text(250, 28, "what Spark keeps in it", kind="bold")
    d.text(600, 28, "written by batch 6", kind="bold")
    rows = [
        ("metadata", "the id of the query: sinks recognise it by this id", "once, before batch 0", PALE),
        ("sources/0/", "what a source has listed: names of input files", "1  before the plan", PALE),
        ("offsets/6", "the plan: up to where each source is read", "2  batch 6 is logged", TEAL),
        ("state/0/0/7.changelog", "the state after batch 6, by partition", "3  while the batch runs", TEAL),
        ("(the sink)", "the rows; a table also remembers the batch", "4  not in the checkpoint", WHITE),
        ("commits/6", "batch 6 has ended", "5  batch 6 is committed", TEAL),
    ]  # fmt: skip
    for number, (name, words, when, fill) in enumerate(rows):
        y = 44 + 46 * number
        d.box(20, y, 210, 36, name, fill, kind="code dashed" if fill == WHITE else "code")
        d.text(250, y + 23, words, kind="")
        d.text(622, y + 23, when, kind="small")
    for number in range(1, 5):
        d.arrow(606, 66 + 46 * number, 606, 102 + 46 * number)
    return d.svg()


def resume_point() -> str:
    """What Spark runs next, by what is logged and committed."""
    d = Drawing("What Spark runs at its next start: three cases of logged and committed batches", 372)
    cases = [
        ("gap 0", [3, 4, 5], [3, 4, 5], "batch 6 on new data", "SAFE", TEAL),
        (
            "gap 1: killed in a batch",
            [3, 4, 5, 6],
            [3, 4, 5],
            "batch 6 again,\nover exactly the same data",
            "a table skips what it has of it;\nforeach and Kafka get it twice",
            AMBER,
        ),
        (
            "commits deleted",
            [3, 4, 5, 6],
            [3],
            "batch 6 again;\nbatches 4 and 5 never",
            "WILL_SKIP: rows are lost,\nand Spark only logs a warning",
            RED,
        ),
    ]
    d.text(122, 28, "offsets/  and  commits/", kind="bold")
    d.text(420, 28, "the next start runs", kind="bold")
    for number, (name, logged, committed, runs, verdict, fill) in enumerate(cases):
        y = 64 + 108 * number
        d.text(20, y - 10, name, kind="bold small")
        for row, (label, there) in enumerate((("offsets/", logged), ("commits/", committed))):
            d.text(20, y + 24 + 38 * row, label, kind="code")
            for batch in (3, 4, 5, 6):
                is_there = batch in there
                d.box(
                    122 + 62 * (batch - 3),
                    y + 38 * row,
                    52,
                    32,
                    str(batch) if is_there else "",
                    (fill if batch == 6 or (batch not in committed and is_there) else PALE) if is_there else WHITE,
                    kind="" if is_there else "dashed",
                )
        d.arrow(380, y + 36, 412, y + 36)
        d.box(420, y - 6, 340, 82, "", fill)
        d.text(434, y + 15, runs)
        d.text(434, y + 15 + 17 * (runs.count("\n") + 1), verdict, kind="small")
    return d.svg()


def closure() -> str:
    """The files of the sample checkpoint that Spark needs after batch 5, as the code finds them."""
    with tempfile.TemporaryDirectory() as directory:
        root = unpack(Path(directory) / "orders")
        there = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
        needed = set(Checkpoint.at(open_location(str(root))).closure(5).by_path)
    d = Drawing(f"{len(needed)} of the {len(there)} files of a checkpoint are the closure of batch 5", 372)
    d.text(20, 28, f"The closure of batch 5: {len(needed)} of {len(there)} files", kind="bold")
    rows = [
        ("offsets/", [f"offsets/{n}" for n in range(6)], "5, and the one before it"),
        ("commits/", [f"commits/{n}" for n in range(6)], "5"),
        ("sources/0/", [f"sources/0/{n}" for n in range(6)], "all: which files were read"),
        ("state/0/0/", [f"state/0/0/{n}.changelog" for n in range(1, 7)], "changes 1 to 6: no snapshot yet"),
        ("state/0/1/", [f"state/0/1/{n}.changelog" for n in range(1, 7)], "the same of partition 1"),
        ("and", ["metadata", "state/0/_metadata/metadata", "state/0/0/_metadata/schema"], "query id; of the state"),
    ]  # fmt: skip
    if {name for _, names, _ in rows for name in names} != there:
        raise ValueError("the sample checkpoint has other files than are drawn here")
    for number, (label, names, words) in enumerate(rows):
        y = 46 + 46 * number
        d.text(20, y + 23, label, kind="code")
        wide = 62 if len(names) == 6 else 125
        for place, name in enumerate(names):
            last = name.rpartition("/")[2].removesuffix(".changelog")
            shown = _SHOWN.get(name, last)
            fill, kind = (TEAL, "code") if name in needed else (WHITE, "code dashed small")
            d.box(120 + wide * place, y, wide - 10, 36, shown, fill, kind=kind)
        d.text(530, y + 23, words, kind="small")
    d.box(120, 334, 24, 20, "", TEAL)
    d.text(152, 349, "in the closure", kind="small")
    d.box(270, 334, 24, 20, "", WHITE, kind="dashed")
    d.text(302, 349, "not needed to continue with batch 6", kind="small")
    return d.svg()


def seal() -> str:
    """What a seal does to a stream that runs and to one that starts."""
    d = Drawing("A seal takes the number of the next batch in offsets/", 300)
    d.text(20, 28, "offsets/", kind="code bold")
    for place, name in enumerate(("4", "5")):
        d.box(110 + 62 * place, 10, 52, 32, name)
    d.box(234, 10, 250, 32, "6: airflow-ckpt: sealed by plan …", RED, kind="code")
    d.text(500, 31, "created only if there is no offsets/6", kind="small")
    d.box(20, 84, 350, 128, "", PALE)
    d.text(36, 108, "A stream that runs", kind="bold")
    d.text(
        36,
        130,
        "1  finishes and commits batch 5\n2  tries to create offsets/6: it exists\n"
        "3  stops: CONCURRENT_STREAM_LOG_UPDATE\nNothing of batch 6 was read or written.",
    )
    d.box(410, 84, 350, 128, "", PALE)
    d.text(426, 108, "A stream that starts", kind="bold")
    d.text(
        426,
        130,
        "1  reads the newest entry, offsets/6\n2  cannot parse it: MALFORMED_LOG_FILE\n"
        "3  stops; its error shows the sentence\nof the seal: by whom, when and why",
    )
    d.arrow(300, 46, 200, 80)
    d.arrow(400, 46, 580, 80)
    d.box(20, 240, 740, 44, "unseal deletes offsets/6: the next start runs batch 6 as if nothing had happened", TEAL)
    d.arrow(200, 214, 200, 237)
    d.arrow(580, 214, 580, 237)
    return d.svg()


def sinks() -> str:
    """What a checkpoint that was put back to batch 3 does at sinks that hold batch 5."""
    d = Drawing("The checkpoint was put back to batch 3, the sink holds batch 5: what the replay of 4 and 5 does", 392)
    d.text(20, 28, "A checkpoint was put back to batch 3. The sink holds batches up to 5.", kind="bold")
    d.text(20, 66, "checkpoint", kind="code")
    d.text(20, 112, "sink", kind="code")
    for batch in range(1, 6):
        x = 130 + 62 * (batch - 1)
        d.box(x, 46, 52, 32, str(batch), PALE if batch < 4 else WHITE, kind="" if batch < 4 else "dashed small")
        d.box(x, 92, 52, 32, str(batch), PALE if batch < 4 else AMBER)
    d.text(450, 66, "Spark runs 4 and 5 again", kind="small")
    d.text(450, 112, "The sink decides what that does:", kind="small")
    rows = [
        (
            "Delta, Iceberg, file sink",
            "It remembers the batches of the query,\nand skips 4 and 5 silently.",
            "WILL_SKIP: corrected rows\nnever arrive",
            RED,
        ),
        ("foreach, Kafka, foreachBatch", "It remembers nothing.\n4 and 5 are written again.", "WILL_DUPLICATE", RED),
        (
            "foreachBatch with MERGE by key",
            "The same rows are written over.",
            "exact, if the code and the\ninput are the same",
            AMBER,
        ),
        (
            "--sink-policy rollback",
            "Rows and memory are put back to 3\nin one commit, under the seal.",
            "exact",
            TEAL,
        ),
    ]
    for number, (sink, words, verdict, fill) in enumerate(rows):
        y = 142 + 60 * number
        d.box(20, y, 240, 50, sink, PALE, kind="code" if sink.startswith("--") else "")
        d.text(276, y + (21 if "\n" in words else 30), words)
        d.box(540, y, 220, 50, verdict, fill)
    return d.svg()


def window() -> str:
    """From where a stream can be recovered without loss."""
    d = Drawing(
        "The recoverable window: from the oldest backup or batch whose rows the sources still have, until now", 330
    )
    d.box(300, 40, 420, 214, "", TEAL)
    d.text(510, 62, "recoverable without loss", kind="bold", at="middle")
    d.text(20, 110, "source", kind="bold")
    d.box(120, 88, 150, 36, "deleted by retention", WHITE, kind="dashed small")
    d.box(270, 88, 450, 36, "rows that Kafka or the table still has")
    d.text(20, 166, "backups", kind="bold")
    for x, fill in ((174, RED), (314, PALE), (440, PALE), (580, PALE)):
        d.box(x - 14, 144, 28, 36, "", fill)
    d.text(174, 198, "too old: what it would\nread next is deleted", kind="small", at="middle")
    d.text(308, 198, "the oldest one that can be replayed", kind="small")
    d.text(580, 198, "the newest", kind="small", at="middle")
    d.text(20, 241, "checkpoint", kind="bold")
    d.box(600, 222, 120, 28, "its batches", PALE)
    d.arrow(120, 284, 735, 284)
    d.text(742, 289, "time", kind="small")
    d.line(580, 278, 580, 290)
    d.line(720, 278, 720, 290)
    d.text(650, 306, "age of the last backup (RPO)", kind="small", at="middle")
    d.text(720, 272, "now", kind="small", at="middle")
    d.line(270, 278, 270, 290)
    d.text(270, 306, "retention", kind="small", at="middle")
    return d.svg()


DIAGRAMS: dict[str, Callable[[], str]] = {
    "concept-checkpoint.svg": checkpoint,
    "concept-resume-point.svg": resume_point,
    "concept-closure.svg": closure,
    "concept-seal.svg": seal,
    "concept-sinks.svg": sinks,
    "concept-window.svg": window,
}

if __name__ == "__main__":
    for name, draw in DIAGRAMS.items():
        (IMAGES / name).write_text(draw())
        sys.stdout.write(f"docs/images/{name}\n")
