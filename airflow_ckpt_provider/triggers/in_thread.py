"""Work of a trigger that blocks, and may ask Airflow for a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from airflow import __version__
from packaging.version import Version

P = ParamSpec("P")
Result = TypeVar("Result")

#: Below this version the triggerer's channel to its supervisor takes requests of one other thread only, the one of asgiref:
#: those of any other spoil it for all triggers (apache/airflow#66412).
_FROM_ANY_THREAD = Version(__version__) >= Version("3.2.2")


async def in_thread(work: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
    """Run something that blocks in a thread; below Airflow 3.2.2 one after the other.

    :param work: what is run.
    """
    if _FROM_ANY_THREAD:
        return await asyncio.to_thread(work, *args, **kwargs)
    from asgiref.sync import sync_to_async

    return await sync_to_async(work, thread_sensitive=True)(*args, **kwargs)
