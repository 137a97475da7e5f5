"""Writes the pages of docs/ that are made from registries in the code: ``python dev/reference_pages.py``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import wrap

from airflow_ckpt_provider.advisor.condition import Step
from airflow_ckpt_provider.advisor.registry import PARTS, WRAPPERS
from airflow_ckpt_provider.checkpoint.advice_kinds import ADVICE
from airflow_ckpt_provider.checkpoint.doctor import KINDS as DAMAGE
from airflow_ckpt_provider.streams.declared import descriptions_of, kinds_of, required_of
from airflow_ckpt_provider.streams.loading import MERGED
from airflow_ckpt_provider.streams.schema import SCHEMA_FILE, records, schema_text, shown_default
from airflow_ckpt_provider.streams.settings import SETTINGS, STREAMS, STREAMS_WORDS, variable
from airflow_ckpt_provider.upgrade.compatibility.kinds import KINDS as CHANGES

DOCS = Path(__file__).parents[1] / "docs"
_MADE = "<!-- made by dev/reference_pages.py from the registry in the code; a test compares the two -->"


def errors() -> Iterator[str]:
    """``docs/errors.md``: what ``airflow-ckpt explain`` knows."""
    yield "# Errors that are recognised"
    yield ""
    yield _MADE
    yield ""
    yield "What `airflow-ckpt explain`, `recovery_advice()` and the failure callback know ([how to](howto/explain.md))."
    yield "Words in capitals stand for what an error may tell: the checkpoint, the topic, the flow. Errors are found also"
    wrappers = ", ".join(f"`{name}`" for name in sorted(WRAPPERS))
    yield from wrap(f"inside {wrappers} and Java's chains of causes.", 120, break_on_hyphens=False)
    for part, conditions in PARTS.items():
        yield ""
        yield f"## {part}"
        yield ""
        yield "| code | error conditions | cause | what not to do | way out |"
        yield "|---|---|---|---|---|"
        for condition in conditions:
            names = "<br>".join([*(f"`{name}`" for name in condition.names), *map(_pattern, condition.patterns)])
            steps = "<br>".join(f"{number}. {_step(step)}" for number, step in enumerate(condition.steps, 1))
            yield (
                f"| `{condition.code}` | {names} | {condition.cause} | {condition.do_not} "
                f"| **{condition.remedy.value}**<br>{steps} |"
            )


class _Capitals(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return key.upper()


def _filled(template: str) -> str:
    return template.format_map(_Capitals())


def _step(step: Step) -> str:
    words = [_filled(step.text)]
    if step.command:
        words.append(f"`{shlex.join(('airflow-ckpt', *map(_filled, step.command)))}`")
    if step.operator:
        words.append(f"(`{step.operator}`)")
    if step.call:
        words.append(f"`{_filled(step.call)}`")
    return " ".join(words)


def _pattern(pattern: str) -> str:
    """A regular expression within a table, where a bar would end the cell."""
    return f"`/{pattern}/`".replace("|", "\\|")


def advice() -> Iterator[str]:
    """``docs/advice.md``: what works today and will hurt later."""
    yield "# Advice"
    yield ""
    yield _MADE
    yield ""
    yield "Findings of the second kind: the checkpoint works, and something about it will hurt later. Each message holds the"
    yield "figures behind it. What the files cannot tell is not guessed at: the target and the trigger have to be given."
    yield ""
    yield "| code | meaning | what Spark does | remedy |"
    yield "|---|---|---|---|"
    for kind in ADVICE:
        yield f"| `{kind.code}` | {kind.meaning} | {kind.reaction} | {kind.remedy} |"


def diagnosis() -> Iterator[str]:
    """``docs/diagnosis.md``: what the doctor knows."""
    yield "# Diagnosis"
    yield ""
    yield _MADE
    yield ""
    yield "What `airflow-ckpt doctor` and `CheckpointDoctorOperator` find ([how to](howto/doctor.md)), and what Spark does,"
    yield "seen on Spark 4.0.0, on checkpoints that it had made and that were then damaged; what only newer ones have, on 4.3.0."
    yield "Severity: *silent* means that rows are lost, doubled or wrong and nothing says so; *error* that the query does not"
    yield "start, or fails; *warning* that it works. A single finding can be less bad than its kind, and says so."
    yield ""
    yield "| code | severity | meaning | what Spark does | remedy |"
    yield "|---|---|---|---|---|"
    for kind in DAMAGE:
        yield f"| `{kind.code}` | {kind.severity.value} | {kind.meaning} | {kind.reaction} | {kind.remedy} |"


def compatibility() -> Iterator[str]:
    """``docs/compatibility.md``: changes of a query, and what catches them."""
    from tests.support.upgrades.changes import CHANGES as WRITTEN
    from tests.support.upgrades.changes import NOT_WRITTEN

    yield "# Changes of a query, and what Spark makes of them"
    yield ""
    yield "<!-- made by dev/reference_pages.py from tests/support/upgrades/changes.py, which a test runs on Spark 4.0.0 -->"
    yield ""
    yield "Every change of Spark's guide that can be written as code: described, compared with the checkpoint, and"
    yield "rehearsed on real Spark 4.0.0 ([how to](howto/rehearse.md)). *Comparison*: what `airflow-ckpt compatible` finds"
    yield "with the checkpoint alone; of code with state its verdict is `UNKNOWN` then (`PLAN-UNKNOWN`). *Descriptions*: whether"
    yield "it finds more with that of the old code. *Rehearsal*: how Spark fails, or whether rows differ from those of the old"
    yield "code over the same offsets."
    for part, changes in WRITTEN.items():
        yield ""
        yield f"## {part}"
        yield ""
        yield "| change | comparison | descriptions | rehearsal | |"
        yield "|---|---|---|---|---|"
        for change in changes:
            static = ", ".join(f"`{code}`" for code in change.static) or "-"
            rows = {True: "rows differ", False: "the same rows", None: "starts"}[change.differs]
            rehearsed = f"fails: `{change.fails}`" if change.fails else rows
            by_plan = "yes" if change.by_plan else "-"
            yield f"| {change.words} | {static} | {by_plan} | {rehearsed} | {change.note} |"
    yield ""
    yield "## Not written as a query"
    yield ""
    yield "| change | |"
    yield "|---|---|"
    for words, note in NOT_WRITTEN:
        yield f"| {words} | {note} |"
    yield ""
    yield "## Codes"
    yield ""
    yield "| code | effect | change | Spark | next step |"
    yield "|---|---|---|---|---|"
    for kind in CHANGES:
        yield f"| `{kind.code}` | {kind.effect.value} | {kind.meaning} | {kind.spark} | {kind.remedy} |"


def streams_yaml() -> Iterator[str]:
    """``docs/streams-yaml.md``: every field of the declaration."""
    yield "# streams.yaml"
    yield ""
    yield "<!-- made by dev/reference_pages.py from the model in airflow_ckpt_provider/streams; a test compares the two -->"
    yield ""
    yield "All fields of the file that [declares streams](howto/declare-streams.md). `Stream(…)` in Python has the same"
    yield "fields and checks."
    yield ""
    yield "| at the top | |"
    yield "|---|---|"
    yield "| `version` | `1`; may be left out |"
    merged = ", ".join(f"`{name}`" for name in MERGED)
    rest = "`{stream}` is the name of the stream"
    yield f"| `defaults` | fields of all streams. A stream replaces them; {merged} field by field. {rest} |"
    yield "| `streams` | name of each stream -> its fields; none where the defaults have all |"
    yield ""
    yield "A list with one entry may be written without brackets. A duration is `24h`, `1d 12h`, `90min`, ISO 8601 such as"
    yield "`PT2H`, or a number of seconds; `m` and `min` are minutes. A text stays what is written: `no` is no flag and"
    yield "`12:30` no number. Unknown fields, two fields of one name, and secrets are refused."
    yield ""
    yield "An empty field (`retention:`, or `null`) means that nothing is given. In a stream it removes the value of"
    yield "`defaults`, in `defaults` that of [the settings](#settings). Then the default of the tables below counts. This holds"
    yield "for every field, also inside another one: `backup: {schedule: null}`. An entry of a list or of `sources` cannot be"
    yield "empty."
    yield ""
    yield "An address is absolute: `file://data/x` is refused, as `data` would be a host in it; write `file:///data/x`."
    yield ""
    yield "Each checkpoint, repository, sink and scratch place has a directory of its own. A file is refused where"
    yield ""
    yield "* two streams have one checkpoint, also in another spelling: `s3://` and `s3a://`, a `/` at the end, `//`, a host in"
    yield "  capital letters, `hdfs://nn` and `hdfs://nn:8020`, `wasbs://` and `abfss://`;"
    yield "* one of them is inside the checkpoint or the repository of any stream, or a log is inside a checkpoint;"
    yield "* a repository or a scratch place is inside a sink or a table of `sources`: VACUUM of the table would delete it;"
    yield "* a checkpoint is inside one of these, but not in a directory whose name begins with `_` or `.`: a checkpoint in"
    yield "  `<table>/_checkpoints` is accepted."
    yield ""
    yield "Repositories may be shared."
    for record in records():
        described, required = descriptions_of(record), required_of(record)
        yield ""
        yield f"## {record.title}"
        yield ""
        yield (record.__doc__ or "").partition("\n")[0]
        yield ""
        yield "| field | value | default | |"
        yield "|---|---|---|---|"
        for name, kind in kinds_of(record).items():
            default = shown_default(record, name)
            shown = (
                "**required**"
                if name in required
                else ""
                if default is None
                else f"`{json.dumps(default).strip(chr(34))}`"
            )
            yield f"| `{name}` | {kind.words} | {shown} | {described[name]} |".replace("  ", " ")
    yield ""
    yield "## Settings"
    yield ""
    yield "Where the file is, and defaults below those of the file. Airflow has them in the section `[ckpt]` of its"
    yield "configuration, `airflow-ckpt` in its environment."
    yield ""
    yield "| `[ckpt]` | environment of `airflow-ckpt` | |"
    yield "|---|---|---|"
    for name, words in {STREAMS: STREAMS_WORDS, **SETTINGS}.items():
        yield f"| `{name}` | `{variable(name)}` | {words} |"


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "errors.md": errors,
    "advice.md": advice,
    "diagnosis.md": diagnosis,
    "compatibility.md": compatibility,
    "streams-yaml.md": streams_yaml,
}


def text(page: str) -> str:
    """Content of a page."""
    return "\n".join(PAGES[page]()) + "\n"


if __name__ == "__main__":
    for name in PAGES:
        (DOCS / name).write_text(text(name))
        print(f"wrote docs/{name}")
    SCHEMA_FILE.write_text(schema_text())
    print(f"wrote {SCHEMA_FILE.name}")
