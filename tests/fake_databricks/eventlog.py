"""The event log: what is noted, the filter grammar, and pages."""

from __future__ import annotations

import base64
import binascii
import json
import re
import uuid
from collections.abc import Callable, Mapping
from datetime import timedelta
from operator import eq, ge, gt, le, lt
from typing import Any

from tests.fake_databricks.clock import Clock, parse, text
from tests.fake_databricks.errors import FlowFailed, invalid

#: No page is longer, whatever is asked for.
PAGE = 250
_DEFAULT = 25

_TERM = re.compile(
    r"\s*(?:(?P<level>level)\s*(?:=\s*'(?P<is>\w+)'|in\s*\((?P<among>[^)]*)\))"
    r"|id\s*=\s*'(?P<id>[^']*)'"
    r"|timestamp\s*(?P<operator>>=|<=|>|<|=)\s*'(?P<time>[^']*)')\s*",
    re.IGNORECASE,
)
Event = dict[str, Any]


class EventLog:
    """Events of one pipeline, oldest first."""

    def __init__(self, clock: Clock, pipeline_id: str, pipeline_name: str) -> None:
        self._clock = clock
        self._origin = {"pipeline_id": pipeline_id, "pipeline_name": pipeline_name}
        #: What the interface returns.
        self.events: list[Event] = []
        #: What only the table has.
        self.metrics: list[Event] = []
        #: Whether the interface returns METRICS events: "stored only in the Delta table" says the schema's page.
        self.metrics_over_rest = False
        #: Whether pages have fewer events than asked for, or none, though more follow.
        self.short_pages = False
        #: How long events are kept; no page of the vendor says it. ``None``: for ever.
        self.kept_for: timedelta | None = None

    def note(
        self,
        event_type: str,
        message: str,
        *,
        level: str = "INFO",
        error: FlowFailed | None = None,
        fatal: bool = True,
        of: Mapping[str, str] | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Write an event.

        :param of: ``update_id``, ``flow_name``, ``dataset_name``.
        :param details: what the interface sends besides, and the vendor's dataclass drops.
        """
        event: Event = {
            "id": str(uuid.uuid4()),
            "sequence": {"control_plane_seq_no": len(self.events) + len(self.metrics) + 1},
            "origin": {**self._origin, **(of or {})},
            "timestamp": text(self._clock.now()),
            "message": message,
            "level": level,
            "event_type": event_type,
            "maturity_level": "STABLE",
        }
        if error is not None:
            stack = [
                {"declaring_class": "org.apache.spark.sql.execution.streaming.MicroBatchExecution", "line_number": 1}
            ]
            exception = {"class_name": error.class_name, "message": str(error), "stack": stack}
            event["error"] = {"exceptions": [exception]} | ({"fatal": True} if fatal else {})
        if details:
            event["details"] = dict(details)
        (self.metrics if level == "METRICS" and not self.metrics_over_rest else self.events).append(event)

    @property
    def table(self) -> list[Event]:
        """The event log as its table has it."""
        return sorted(self._kept([*self.events, *self.metrics]), key=_number)

    def _kept(self, events: list[Event]) -> list[Event]:
        if self.kept_for is None:
            return events
        since = self._clock.now() - self.kept_for
        return [event for event in events if parse(event["timestamp"]) >= since]

    def page(self, filter: str, order_by: str, max_results: int, token: str) -> dict[str, Any]:
        """One page of the answer to ``GET …/events``.

        :raises ApiError: 400 for a filter, an order or a token that the API does not know.
        """
        asked: dict[str, Any] = _untoken(token) if token else {"filter": filter, "order": order_by, "from": 0}
        events = [event for event in self._kept(self.events) if _matches(asked["filter"])(event)]
        if not _ascending(asked["order"]):
            # New events come in front: a page token counts from the end.
            events = [event for event in events if not asked["from"] or _number(event) < asked["from"]][::-1]
        else:
            events = [event for event in events if _number(event) > asked["from"]]
        size = min(max_results or _DEFAULT, PAGE)
        if self.short_pages:
            size = min(size, 3) if token else 0
        if not size and events:
            newest = _number(events[0]) + (-1 if _ascending(asked["order"]) else 1)
            return {"events": [], "next_page_token": _token({**asked, "from": newest})}
        answer: dict[str, Any] = {"events": events[:size]}
        if not answer["events"]:
            return {}
        if len(events) > size:
            answer["next_page_token"] = _token({**asked, "from": _number(events[size - 1])})
        if token:
            answer["prev_page_token"] = _token({**asked, "from": 0})
        return answer


def _number(event: Event) -> int:
    return int(event["sequence"]["control_plane_seq_no"])


def _ascending(order: str) -> bool:
    if order.strip().lower() not in ("", "timestamp asc", "timestamp desc", "timestamp"):
        raise invalid(f"Invalid order_by: {order}")
    return order.strip().lower() == "timestamp asc"


def _matches(filter: str) -> Callable[[Event], bool]:
    terms = [_term(part) for part in re.split(r"\bAND\b", filter, flags=re.IGNORECASE)] if filter.strip() else []
    return lambda event: all(term(event) for term in terms)


def _term(part: str) -> Callable[[Event], bool]:
    match = _TERM.fullmatch(part)
    if match is None:
        raise invalid(f"Invalid filter expression: {part.strip()}")
    if match["level"]:
        levels = {match["is"]} if match["is"] else {level.strip(" '") for level in match["among"].split(",")}
        if unknown := levels - {"INFO", "WARN", "ERROR", "METRICS"}:
            raise invalid(f"Invalid level in filter: {', '.join(sorted(unknown))}")
        return lambda event: event["level"] in levels
    if match["id"] is not None:
        return lambda event: event["id"] == match["id"]
    try:
        time = parse(match["time"])
    except ValueError as e:
        raise invalid(f"Invalid timestamp in filter: {match['time']}") from e
    compare = {">": gt, ">=": ge, "<": lt, "<=": le, "=": eq}[match["operator"]]
    return lambda event: compare(parse(event["timestamp"]), time)


def _token(asked: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(asked).encode()).decode()


def _untoken(token: str) -> dict[str, Any]:
    try:
        asked: dict[str, Any] = json.loads(base64.urlsafe_b64decode(token))
    except (binascii.Error, ValueError) as e:
        raise invalid(f"Invalid page token: {token}") from e
    return asked
