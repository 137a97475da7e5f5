"""The how-tos show code that a test has run: what stands between the markers of an example, byte for byte.

After a change of an example, ``python tests/unit/operators/test_howto.py`` writes it into the how-tos.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HOWTOS = sorted((ROOT / "docs" / "howto").glob("*.md"))
_INCLUDED = re.compile(r"(<!-- include: (\S+) (\S+) -->\n```python\n)(.*?)(```)", re.DOTALL)


def example(file: str, marker: str) -> str:
    """What stands between ``[START marker]`` and ``[END marker]`` of a file."""
    text = (ROOT / file).read_text()
    between = text.split(f"# [START {marker}]\n")[1].split(f"# [END {marker}]")[0]
    return textwrap.dedent(between.rpartition("\n")[0] + "\n")


def with_examples(howto: str) -> str:
    """Return a how-to with the examples as they are now."""
    return _INCLUDED.sub(lambda m: f"{m[1]}{example(m[2], m[3])}{m[5]}", howto)


@pytest.mark.parametrize("howto", HOWTOS, ids=lambda path: path.name)
def test_examples_are_those_that_ran(howto: Path) -> None:
    assert with_examples(howto.read_text()) == howto.read_text()


def test_every_example_is_shown_and_every_operator_has_a_howto() -> None:
    shown = {m[3] for howto in HOWTOS for m in _INCLUDED.finditer(howto.read_text())}
    marked = {
        marker for dag in (ROOT / "dags").glob("*.py") for marker in re.findall(r"\[START (\w+)\]", dag.read_text())
    }
    assert marked <= shown
    code = "".join(file.read_text() for file in (ROOT / "airflow_ckpt_provider").rglob("*.py"))
    referred = set(re.findall(r":doc:`/howto/([\w-]+)`", code))
    # A job has no operator of its own: its how-to is known by its example. Others continue a how-to.
    by_example = {howto.stem for howto in HOWTOS if _INCLUDED.search(howto.read_text())}
    continued = {
        link
        for howto in HOWTOS
        if howto.stem in referred | by_example
        for link in re.findall(r"\]\(([\w-]+)\.md", howto.read_text())
    }
    assert referred <= {howto.stem for howto in HOWTOS} <= referred | by_example | continued


def test_every_howto_is_short() -> None:
    assert [howto.name for howto in HOWTOS if len(howto.read_text().splitlines()) >= 120] == []


if __name__ == "__main__":
    for path in HOWTOS:
        path.write_text(with_examples(path.read_text()))
