"""Random histories of Delta tables."""

from __future__ import annotations

from collections import Counter

from tests.support.delta_history import History
from tests.support.sink_model import rows_after
from tests.support.sink_recovery import recover


def happen(history: History, count: Counter[str]) -> None:
    """Let things happen, and recover in the end."""
    chance, told = history.chance, history.told
    told.append(f"ran to {history.run(chance.randint(2, 4))[-1]}")
    for _ in range(chance.randint(3, 8)):
        what = chance.choices(["others", "run", "faulty", "recover"], [6, 2, 1, 2])[0]
        if what == "others":
            told.append(history.others())
        elif what == "recover":
            recover(history, count)
        else:
            history.run(chance.randint(1, 2), faulty=what == "faulty")
            told.append(f"{what} to {history.newest}")
        count[told[-1].partition(" (")[0]] += 1
        assert history.held() == rows_after(history.line), f"after {told[-1]}: the model is wrong"
    recover(history, count)
