"""What an error says besides its kind: which checkpoint, which batch, which query, so that a command can be ready to run."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, fields, replace
from typing import Any

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_QUERY = re.compile(rf"\bid = (?P<query>{_UUID}), runId = (?P<run>{_UUID})")
_LOCATION = re.compile(r"checkpointLocation=(?P<root>[^,\]\n]+)")
#: A path that leads into a checkpoint. What stands before it must not be part of a longer one: a path with a space in it
#: would be taken for its second half.
_INSIDE = re.compile(
    r"(?<![\w/.:%+-])(?P<root>(?:[a-z][a-z0-9+.-]*:)?/[^\s'\"\[\](),;=<>]*?)"
    r"/(?P<path>(?:offsets|commits)/\d+|sources/\w+/\d+|state/\d+/[\w./-]+)"
)
_BATCH = re.compile(r"\b(?:[Bb]atch (?:id )?|batchId ?= ?|(?:offsets|commits)/)(\d+)\b")
_SEAL = re.compile(r"airflow-ckpt: sealed by plan (?P<plan>\S+) \((?P<why>[^\n]*?)\); Spark must not start")
_TOPIC = re.compile(r"(?:topic ?partitions? |[Pp]artitions? (?:Set\()?|offset for )(?P<topic>[\w.-]+)-\d+\b")


@dataclass(frozen=True, slots=True)
class Facts:
    """What could be read from an error. Empty where it does not say.

    :param checkpoint: the checkpoint's place.
    :param path: the file in it that the error is about.
    :param batch_id: the batch.
    :param query_id: id of the query, as in ``metadata``.
    :param run_id: id of that run of it.
    :param plan: plan id of a seal.
    :param topic: topic of Kafka.
    :param pipeline_id: pipeline of Databricks.
    :param flow: its flow.
    :param dataset: the table that the flow writes to.
    """

    checkpoint: str = ""
    path: str = ""
    batch_id: int | None = None
    query_id: str = ""
    run_id: str = ""
    plan: str = ""
    topic: str = ""
    pipeline_id: str = ""
    flow: str = ""
    dataset: str = ""

    def to_json(self) -> dict[str, Any]:
        """What is known, as plain JSON."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) not in ("", None)}

    def fill(self, template: str) -> str:
        """Put facts into a text or an argument; what is not known stays a word in capitals."""
        return template.format_map(_Words(self.to_json() | {"name": self._name, "repository": "REPOSITORY"}))

    @property
    def _name(self) -> str:
        """Name of the stream in a repository, by default the last part of the checkpoint."""
        return self.checkpoint.rstrip("/").rpartition("/")[2] or "NAME"

    def beside(self, other: Facts) -> Facts:
        """These facts, and those of another where these have none."""
        known = {name: value for name, value in other.to_json().items() if not getattr(self, name)}
        return replace(self, **known)


@dataclass(slots=True)
class _Words(dict[str, Any]):
    known: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, key: str) -> str:
        return str(self.known.get(key, key.upper()))


def facts_of(text: str, *, near: str = "") -> Facts:
    """Read the facts of an error.

    :param text: all of it.
    :param near: the part where its kind was recognised; what that part shows comes first.
    """
    inside = list(_INSIDE.finditer(near)) or list(_INSIDE.finditer(text))
    batch = _BATCH.search(near) or _BATCH.search(text)
    query = list(_QUERY.finditer(text))
    seal = _SEAL.search(text)
    topic = _TOPIC.search(near) or _TOPIC.search(text)
    return Facts(
        checkpoint=_checkpoint(text, [_plain(m["root"]) for m in inside]),
        path=inside[0]["path"].rstrip(".") if inside else "",
        batch_id=int(batch[1]) if batch else None,
        query_id=query[-1]["query"] if query else "",
        run_id=query[-1]["run"] if query else "",
        plan=seal["plan"] if seal else "",
        topic=topic["topic"] if topic else "",
    )


def _checkpoint(text: str, roots: list[str]) -> str:
    """The checkpoint that the query names itself, or else the one that most of the paths lead into."""
    named = [_plain(m["root"].strip()) for m in _LOCATION.finditer(text)]
    return named[-1] if named else Counter(roots).most_common(1)[0][0] if roots else ""


def _plain(place: str) -> str:
    """A local path without the scheme that Hadoop puts before it."""
    return re.sub(r"^file:(?://)?(?=/)", "", place)
