"""in_thread: below Airflow 3.2.2 what asks for a connection runs in the one thread that may."""

from __future__ import annotations

import asyncio
import threading

import pytest

from airflow_ckpt_provider.triggers import in_thread as module
from airflow_ckpt_provider.triggers.in_thread import in_thread


@pytest.mark.parametrize(("anyone", "threads"), [(True, 2), (False, 1)])
def test_which_threads(anyone: bool, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FROM_ANY_THREAD", anyone)
    both = threading.Barrier(2)

    def work(add: int, *, to: int) -> tuple[int, str]:
        if anyone:
            both.wait(60)  # two at once
        return add + to, threading.current_thread().name

    async def twice() -> list[tuple[int, str]]:
        return list(await asyncio.gather(in_thread(work, 1, to=2), in_thread(work, 3, to=4)))

    found = asyncio.run(twice())
    assert [result for result, _ in found] == [3, 7]
    names = {name for _, name in found}
    assert len(names) == threads
    assert threading.current_thread().name not in names
