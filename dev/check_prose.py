"""Check the language of what people read: ``python dev/check_prose.py``.

The phrases are the table *Terms* of ``CONTRIBUTING.md``. Read are the Markdown files, the strings and comments of the
Python files (docstrings, messages, command line help), the page's templates and the Makefile. Lines of prose in Markdown
are at most 120 characters wide; tables, code blocks and single words such as links may be wider.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
WIDTH = 120
_READ = (
    "*.md",
    "*.html",
    "*.ipynb",
    "Makefile",
    *(f"{d}/*.py" for d in ("airflow_ckpt_provider", "benchmarks", "dags", "demo", "dev")),
)
_COMMENT = re.compile(r"(?:^|(?<=\s))#[ :].*", re.MULTILINE)
_FENCE = re.compile(r"\s*(?:[*-] )?(```|~~~)")


def terms(contributing: str) -> dict[str, str]:
    """Each phrase that is not to be written, and what to write instead: the table below the heading *Terms*."""
    section = re.split(r"^#+ ", contributing.partition("## Terms\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    return {phrase: instead for instead, phrases in rows for phrase in phrases.split(", ")}


def pattern(phrases: Iterable[str]) -> re.Pattern[str]:
    """Any of the phrases, also across lines; ``…`` in one stands for a word."""
    words = (r"\s+".join(r"[\w`-]+" if w == "…" else re.escape(w) for w in p.split()) for p in phrases)
    return re.compile(rf"(?<![\w-])(?:{'|'.join(sorted(words, key=len, reverse=True))})(?![\w-])", re.IGNORECASE)


def prose(path: str, text: str) -> Iterator[tuple[int, str]]:
    """The parts of a file that people read, each with the number of its first line."""
    if path.endswith(".py"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.lineno, node.value
        # Comments of several lines are one text, in which a phrase may run on.
        comments = [(text.count("\n", 0, m.start()) + 1, m[0].lstrip("#: ")) for m in _COMMENT.finditer(text)]
        for number, (line, comment) in enumerate(comments):
            following = comments[number + 1][1] if comments[number + 1 : number + 2] else ""
            adjoining = comments[number + 1 : number + 2] and comments[number + 1][0] == line + 1
            yield line, f"{comment}\n{following.partition(' ')[0]}" if adjoining else comment
    elif path.endswith(".ipynb"):
        # Each line of a cell is a string of its own: a phrase may run on in the next one.
        at = 0
        for cell in json.loads(text)["cells"]:
            first = next((json.dumps(line, ensure_ascii=False) for line in cell["source"]), "")
            at = max(text.find(first, at), at)
            yield text.count("\n", 0, at) + 1, "".join(cell["source"])
    elif path == "CONTRIBUTING.md":
        before, _, after = text.partition("## Terms\n")
        _, heading, rest = after.partition("\n## ")
        yield 1, before
        yield text.count("\n", 0, len(text) - len(heading + rest)) + 1, heading + rest
    else:
        yield 1, text


def wide(text: str) -> Iterator[int]:
    """Numbers of the lines of Markdown prose that are too wide."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if _FENCE.match(line):
            fenced = not fenced
        one_word = " " not in line.strip().removeprefix("* ").removeprefix("- ")
        if len(line) > WIDTH and not fenced and not line.lstrip().startswith("|") and not one_word:
            yield number


def findings(path: str, text: str, instead: dict[str, str], banned: re.Pattern[str]) -> Iterator[str]:
    """What is wrong with a file, a line each."""
    for line, part in prose(path, text):
        for match in banned.finditer(part):
            at = line + part.count("\n", 0, match.start())
            yield f"{path}:{at}: write {_instead(match[0], instead)!r}, not {' '.join(match[0].split())!r}"
    if path.endswith(".md"):
        for line in wide(text):
            yield f"{path}:{line}: wider than {WIDTH} characters"


def _instead(found: str, instead: dict[str, str]) -> str:
    return next(words for phrase, words in instead.items() if pattern([phrase]).fullmatch(found))


def main() -> int:
    """Print what is wrong with the files that git knows."""
    instead = terms((ROOT / "CONTRIBUTING.md").read_text())
    banned = pattern(instead)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *_READ], cwd=ROOT, check=True, capture_output=True, text=True
    )
    paths = [path for path in listed.stdout.split("\0") if path and (ROOT / path).is_file()]
    found = [line for path in paths for line in findings(path, (ROOT / path).read_text(), instead, banned)]
    print(*found, sep="\n", end="\n" if found else "")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
