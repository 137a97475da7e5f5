"""Recorded traffic of a workspace: JSON lines, one a request, without whatever names a person, a host or a login.

The first line is ``{"format": "airflow-ckpt-contract", "version": 1, "findings": {…}}``, each other one
``{"method", "path", "query", "body", "status", "answer"}``. Headers are never written. Ids, e-mail addresses and the host are
replaced, the same by the same, so a recording can be shown to others, and played back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from airflow_ckpt_provider.cli.databricks_client import DatabricksClient
from airflow_ckpt_provider.errors import CkptError
from airflow_ckpt_provider.lakeflow.answers import error_of

FORMAT, VERSION = "airflow-ckpt-contract", 1
_ID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b[0-9a-f]{32}\b|\b\d{14,}\b")
_MAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")


class Masks:
    """Replaces what names somebody, the same by the same.

    :param words: what else is replaced: host, warehouse -> what is in their place.
    """

    def __init__(self, words: Mapping[str, str]) -> None:
        self._words = {word: mask for word, mask in words.items() if word}
        self._ids: dict[str, str] = {}
        self._mails: dict[str, str] = {}

    def of(self, value: Any) -> Any:
        """The same value without names."""
        text = json.dumps(value)
        for word, mask in self._words.items():
            text = text.replace(json.dumps(word)[1:-1], mask)
        text = _ID.sub(lambda m: self._ids.setdefault(m[0], f"id-{len(self._ids) + 1}"), text)
        return json.loads(_MAIL.sub(lambda m: self._mails.setdefault(m[0], f"user-{len(self._mails) + 1}"), text))


@dataclass
class Recording:
    """Requests and answers, in order, with what was found out by them."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    findings: dict[str, Any] = field(default_factory=dict)

    def save(self, path: Path, masks: Masks) -> None:
        """Write it, without names."""
        head = {"format": FORMAT, "version": VERSION, "findings": masks.of(self.findings)}
        path.write_text("".join(json.dumps(line) + "\n" for line in [head, *map(masks.of, self.lines)]))

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read one.

        :raises ValueError: it is none, or of a later version.
        """
        head, *lines = map(json.loads, path.read_text().splitlines())
        if head.get("format") != FORMAT or head.get("version") != VERSION:
            raise ValueError(f"{path} is no recording of version {VERSION}: {head}")
        return cls(lines, head.get("findings") or {})


class RecordingClient(DatabricksClient):
    """A client that notes every request and its answer."""

    recording: Recording

    def _send(
        self, method: str, path: str, query: Mapping[str, Any], body: dict[str, Any] | None, subject: str
    ) -> dict[str, Any]:
        import requests

        answer = requests.request(
            method,
            f"{self.host}/api/{path}",
            params=dict(query),
            json=body,
            headers={**self._login(), "User-Agent": "airflow-ckpt-contract"},
            timeout=120,
        )
        bare, _, asked = path.partition("?")
        try:
            loaded = answer.json() if answer.content else {}
        except ValueError:
            loaded = {"not_json": answer.text[:300]}
        self.recording.lines.append(
            {
                "method": method,
                "path": f"/api/{bare}",
                "query": {**dict(parse_qsl(asked)), **{key: str(value) for key, value in query.items()}},
                "body": body or {},
                "status": answer.status_code,
                "answer": loaded,
            }
        )
        if not answer.ok:
            raise error_of(subject, answer.status_code, answer.text)
        return dict(loaded)

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send what our own client has no method for."""
        return self._send(method, path, {}, None if body is None else dict(body), path)


class ReplayedClient(DatabricksClient):
    """A client that is answered by a recording: each request gets the first answer of its like that is left, or the last."""

    def __init__(self, recording: Recording) -> None:
        super().__init__("http://recorded", dict)
        self._left = list(recording.lines)

    def _send(
        self, method: str, path: str, query: Mapping[str, Any], body: dict[str, Any] | None, subject: str
    ) -> dict[str, Any]:
        if method != "GET":
            raise AssertionError(f"a recording answers reads only, not {method} {path}")
        bare, _, asked = path.partition("?")
        wanted = {**dict(parse_qsl(asked)), **{key: str(value) for key, value in query.items()}}
        alike = [
            line
            for line in self._left
            if (line["method"], line["path"], line["query"]) == (method, f"/api/{bare}", wanted)
        ]
        if not alike:
            raise AssertionError(f"the recording has no {method} /api/{bare} {wanted}")
        if len(alike) > 1:
            self._left.remove(alike[0])
        line = alike[0]
        if line["status"] >= 400:
            error: CkptError = error_of(subject, line["status"], json.dumps(line["answer"]))
            raise error
        return dict(line["answer"])


def answers(recording: Recording, method: str, path: str) -> Iterator[dict[str, Any]]:
    """Answers to requests whose path fits a pattern, of those that went well."""
    for line in recording.lines:
        if line["method"] == method and re.fullmatch(path, line["path"]) and line["status"] < 300:
            yield line["answer"]
