"""What the kinds of other packages answer, checked where they are asked: a wrong answer is a defect that is named at once.

Each check raises ``TypeError`` or ``ValueError``, which :func:`~airflow_ckpt_provider.sinks.kinds.asked` turns into an error that
names the sink.
"""

from __future__ import annotations

import json
from typing import Any

from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.sinks.report import SinkReport, SinkRollback
from airflow_ckpt_provider.verdict import Verdict


def is_version(answer: Any) -> None:
    """A version for the audit record: a whole number or ``None``."""
    if answer is not None and type(answer) is not int:
        raise TypeError(f"it answers {answer!r}, which is neither a whole number nor None")


def is_told(answer: Any) -> None:
    """Whether something was changed: ``True``, ``False`` or ``None``."""
    if answer is not None and type(answer) is not bool:
        raise TypeError(f"it answers {answer!r}, which is neither True nor False nor None")


def is_needs(answer: Any) -> None:
    """What an undo needs and what forbids it: two lists of texts."""
    lists = isinstance(answer, tuple | list) and len(answer) == 2 and all(isinstance(each, list) for each in answer)
    if not lists or not all(isinstance(text, str) for each in answer for text in each):
        raise TypeError(f"undo_needs answers {answer!r}, which is not two lists of texts")


def is_report(answer: Any) -> None:
    """A report that is the same after it was stored with the plan."""
    if not isinstance(answer, SinkReport) or not isinstance(answer.verdict, Verdict):
        raise TypeError(f"verdict answers {answer!r}, which is no SinkReport with a Verdict")
    if not isinstance(answer.rollback, SinkRollback | None):
        raise TypeError(f"the report has the rollback {answer.rollback!r}, which is no SinkRollback")
    stored = load_json(json.dumps(answer.to_json()))
    facts = dict(answer.rollback.facts) if answer.rollback else {}
    if facts and stored["rollback"]["facts"] != facts:
        raise ValueError(f"the facts of its rollback are not plain JSON: {facts!r}")
