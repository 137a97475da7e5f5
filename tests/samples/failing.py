"""Checkpoints that no Spark continues from: samples, each damaged in one way, and the Spark that says so."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.samples.archives import HOME, kinds_of, sample, write_files
from tests.samples.kinds import KINDS, write_input
from tests.samples.service import SampleService

Files = dict[str, bytes]
#: Real texts, recorded: ``<version>.json.xz`` with what each case said.
RECORDED = Path(__file__).with_name("errors")
#: The Sparks whose texts are kept: the oldest, the locked one and the newest.
RECORDED_OF = ("3.5.9", "4.0.0", "4.3.0")
_CHECKOUT = str(Path(__file__).parents[2])


def _without(*patterns: str) -> Callable[[Files], Files]:
    """Leave out files; each pattern has to fit at least one."""

    def damage(files: Files) -> Files:
        for pattern in patterns:
            assert any(re.fullmatch(pattern, path) for path in files), f"{pattern} is not in the sample"
        return {path: data for path, data in files.items() if not any(re.fullmatch(p, path) for p in patterns)}

    return damage


def _changed(pattern: str, change: Callable[[bytes], bytes]) -> Callable[[Files], Files]:
    """Change the content of the files that fit, at least one."""

    def damage(files: Files) -> Files:
        assert any(re.fullmatch(pattern, path) for path in files), f"{pattern} is not in the sample"
        return {path: change(data) if re.fullmatch(pattern, path) else data for path, data in files.items()}

    return damage


def _with(path: str, data: bytes) -> Callable[[Files], Files]:
    return lambda files: {**files, path: data}


def _as_it_is(files: Files) -> Files:
    return files


def _half(data: bytes) -> bytes:
    return data[: len(data) // 2]


SEAL = b"airflow-ckpt: sealed by plan 7f3a91c2 (move to eu-west-1, ada@ops, 2026-11-21T08:31:07Z); Spark must not start"


@dataclass(frozen=True)
class Case:
    """One way to fail.

    :param sample: kind of the sample.
    :param damage: what is done to its files.
    :param expected: codes of the error condition that ``explain`` may give, the same for every Spark but for those named
        in ``expected_of``.
    :param query: kind of the query that is started, if not that of the sample.
    :param do: what is done, see ``failures.py``.
    :param expected_of: Spark version up to its minor -> code; ``None`` where that Spark starts without an error.
    :param quick: whether it is among the few that every run of the tests does.
    """

    sample: str
    damage: Callable[[Files], Files]
    expected: str | None
    query: str | None = None
    do: str = "start"
    expected_of: dict[str, str | None] | None = None
    quick: bool = False

    def code(self, version: str) -> str | None:
        """What a Spark version makes of it; ``None`` where it starts."""
        return (self.expected_of or {}).get(version.rpartition(".")[0], self.expected)


CASES: dict[str, Case] = {
    # -- logs
    "empty_offsets": Case("file_to_foreachbatch", _changed("offsets/5", lambda _: b""), "LOG-INCOMPLETE", quick=True),
    "cut_offsets": Case("file_to_foreachbatch", _changed("offsets/5", _half), "LOG-INCOMPLETE"),
    "garbage_in_offsets": Case("file_to_foreachbatch", _changed("offsets/5", lambda _: b"oops"), "LOG-MALFORMED"),
    "sealed": Case("file_to_foreachbatch", _with("offsets/6", SEAL), "SEALED", quick=True),
    "newer_log": Case(
        "file_to_foreachbatch", _changed("offsets/5", lambda d: b"v9" + d[2:]), "LOG-OF-NEWER-SPARK", quick=True
    ),
    "hole_in_offsets": Case("file_to_foreachbatch", _without("offsets/4"), "BATCH-MISSING", quick=True),
    "commits_beyond_offsets": Case("file_to_foreachbatch", _without("offsets/5"), "TWO-WRITERS"),
    "no_metadata": Case(
        "file_to_foreachbatch",
        _without("metadata"),
        None,
        expected_of={"4.2": "METADATA-MISSING", "4.3": "METADATA-MISSING"},
    ),
    "no_source_log": Case("file_to_foreachbatch", _without("sources/0/.*"), "BATCH-MISSING"),
    "state_without_logs": Case(
        "hdfs_agg",
        _without("offsets/.*", "commits/.*"),
        "CHECKPOINT-NOT-EMPTY",
        expected_of={"3.5": None, "4.0": None},
    ),
    # -- state
    "no_delta": Case("hdfs_agg", _without("state/0/./2.delta"), "STATE-FILE-MISSING", quick=True),
    "cut_delta": Case("hdfs_agg", _changed("state/0/./2.delta", _half), "STATE-UNREADABLE"),
    "no_changelog": Case("rocks_changelog_agg", _without("state/0/./2.changelog"), "STATE-FILE-MISSING", quick=True),
    "no_tables": Case("rocks_agg", _without("state/0/./SSTs/.*"), "STATE-FILE-MISSING"),
    "cut_zip": Case("rocks_agg", _changed("state/0/./6.zip", _half), "STATE-UNREADABLE"),
    "no_changelog_format_2": Case("rocks_ckptv2_agg", _without("state/0/./2_.*.changelog"), "STATE-FILE-MISSING"),
    "cut_changelog_format_2": Case("rocks_ckptv2_agg", _changed("state/0/./2_.*.changelog", _half), "STATE-UNREADABLE"),
    "no_state": Case(
        "hdfs_agg",
        _without("state/.*"),
        "STATE-FILE-MISSING",
        expected_of={"4.2": "STATE-DIRECTORY-MISSING", "4.3": "STATE-DIRECTORY-MISSING"},
    ),
    "join_lacks_a_store": Case("hdfs_ssjoin", _without("state/0/1/right-keyToNumValues/.*"), "STATE-FILE-MISSING"),
    # -- the query changed
    "other_key": Case("hdfs_agg", _as_it_is, "STATE-SCHEMA-CHANGED", do="group_by_value"),
    "other_operator": Case(
        "hdfs_agg",
        _as_it_is,
        "OPERATORS-CHANGED",
        query="hdfs_dedup",
        expected_of={"3.5": "STATE-SCHEMA-CHANGED"},
    ),
    "fewer_sources": Case("two_sources_union", _as_it_is, "SOURCES-CHANGED", query="file_to_foreachbatch", quick=True),
    # -- not the checkpoint
    "user_function": Case("file_to_foreachbatch", _as_it_is, "USER-FUNCTION", do="fail_in_python", quick=True),
    "inside_foreachbatch": Case(
        "file_to_foreachbatch",
        _as_it_is,
        "STATE-READER",
        do="read_state_in_batch",
        expected_of={"3.5": "USER-FUNCTION"},
        quick=True,
    ),
    "started_twice": Case("file_to_noop", _as_it_is, "TWO-WRITERS", do="start_twice"),
}


def cases_of(version: str) -> list[str]:
    """The cases whose kinds a Spark version has."""
    known = kinds_of(version)
    return [name for name, case in CASES.items() if case.sample in known]


class FailingSpark(SampleService):
    """A JVM in which queries fail."""

    script = "failures.py"

    def said(self, name: str, place: Path, *, version: str) -> dict[str, str]:
        """Start a case's query on its damaged sample; return ``message`` and ``trace``, empty where nothing failed."""
        case = CASES[name]
        query = case.query or case.sample
        inputs = place / "input"
        files = case.damage(sample(version, case.sample).files)
        home, here = f"{HOME}/{case.sample}/".encode(), f"{inputs}/".encode()
        moved = {p: data.replace(home, here) if p.startswith("sources/") else data for p, data in files.items()}
        checkpoint = write_files(place / "ck", moved)
        kind = KINDS[query]
        total = tuple(f + further for f, further in zip(kind.files, kind.further_files, strict=True))
        write_input(inputs, query, first=(0, 0), count=(total[0], total[1]))
        request = {"kind": query, "checkpoint": str(checkpoint), "input": str(inputs), "do": case.do}
        if case.do == "read_state_in_batch":
            request["other"] = str(write_files(place / "other", sample(version, "hdfs_agg").files))
        answer: dict[str, str] = self.ask(request)
        return answer


def recorded(version: str) -> dict[str, dict[str, str]]:
    """What each case said when it was recorded."""
    found: dict[str, dict[str, str]] = json.loads(lzma.decompress((RECORDED / f"{version}.json.xz").read_bytes()))
    return found


def record(versions: tuple[str, ...] = RECORDED_OF) -> None:
    """Run every case under every Spark and write down what was said."""
    import tempfile

    from tests.samples.spark_versions import python_with

    RECORDED.mkdir(exist_ok=True)
    for version in versions:
        said: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as place, FailingSpark(python_with(version), Path(place) / "log") as spark:
            for name in cases_of(version):
                answer = spark.said(name, Path(place) / name, version=version)
                said[name] = {k: _of_no_machine(_folded(text), place) for k, text in answer.items()}
                print(version, name, "->", answer["message"].splitlines()[:1], flush=True)
        (RECORDED / f"{version}.json.xz").write_bytes(lzma.compress(json.dumps(said, indent=1).encode(), preset=9))


def _of_no_machine(text: str, place: str) -> str:
    return text.replace(place, "/srv/streams").replace(_CHECKOUT, "/opt/streams")


def _folded(text: str) -> str:
    """A text with most of each run of stack frames folded, as Java itself does: ``... 12 more``.

    The first three stay, and the first one inside Spark's state stores, where the rest of a stack is the same for all.
    """

    def fold(frames: re.Match[str]) -> str:
        lines = frames.group().splitlines()
        state = [line for line in lines[3:] if "streaming.state." in line][:1]
        return "\n".join([*lines[:3], *state, f"\t... {len(lines) - 3 - len(state)} more\n"])

    return re.sub(r"(?:^[ \t]+at [^\n]*\n){5,}", fold, text, flags=re.MULTILINE)


if __name__ == "__main__":
    import sys

    record(tuple(sys.argv[1:]) or RECORDED_OF)
