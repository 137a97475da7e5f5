"""What the outcomes of all verbs have in common: how they are given as JSON."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class RecoveryOutcome:
    """Base of the outcomes of restore, rewind, reset, repair and undo. Each has a field ``seconds``."""

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain JSON: its fields in order, the seconds rounded to milliseconds; ``sinks`` only of several."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        sinks = [dict(sink) for sink in values.pop("sinks", ())]
        return {**values, "seconds": round(values["seconds"], 3), **({"sinks": sinks} if sinks else {})}
