"""Requests slow down together when one is refused, and come back one by one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.storage.failures import is_passing, says_slow_down
from airflow_ckpt_provider.storage.pace import MOST, Pace, RetryPolicy
from tests.support.waiting import wait_until

QUICK = RetryPolicy(refused=0.2, refused_request=5.0, failures=3, first_pause=0.001, longest_pause=0.01)


class GenericError(Exception):
    """As obstore's, whose words are all it has."""


SLOW_DOWN = GenericError(
    "Generic S3 error: Error performing PUT http://s3/b/k in 1ms - Server returned non-2xx status code: 503 Service "
    "Unavailable: <Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>\n\nDebug source:\n…"
)
TOO_MANY = GenericError("Error performing HEAD in 1ms - Server returned non-2xx status code: 429 Too Many Requests: ")
IN_THE_BODY = GenericError("Server returned error response: <Error><Code>SlowDown</Code></Error>")
FAILED = GenericError("Error performing GET in 1ms - Server returned non-2xx status code: 500 Internal Server Error: ")
BROKEN = GenericError("Error performing GET in 1ms - HTTP error: error sending request\n\nDebug source:\n…")
REFUSED = GenericError("Server returned non-2xx status code: 403 Forbidden: <Error><Code>AccessDenied</Code></Error>")


@pytest.mark.parametrize(
    ("error", "slow_down", "passing"),
    [
        (SLOW_DOWN, True, False),
        (TOO_MANY, True, False),
        (IN_THE_BODY, True, False),
        (FAILED, False, True),
        (BROKEN, False, True),
        (REFUSED, False, False),
        (FileNotFoundError("HTTP error: 503"), False, False),
        (ValueError("not about the store at all"), False, False),
    ],
)
def test_what_an_error_says(error: Exception, slow_down: bool, passing: bool) -> None:
    assert (says_slow_down(error), is_passing(error)) == (slow_down, passing)


def failing(*errors: Exception) -> Callable[[], str]:
    left = list(errors)

    def request() -> str:
        if left:
            raise left.pop(0)
        return "answer"

    return request


def test_of_many_at_once_half_go_on() -> None:
    pace = Pace("s3://b", QUICK)
    there = threading.Barrier(8)
    seen: list[int] = []

    def one(number: int) -> None:
        tries = 0

        def request() -> None:
            nonlocal tries
            tries += 1
            if tries == 1:
                there.wait(10)  # all eight are under way
                if number == 0:
                    raise SLOW_DOWN
                # The others are answered only after the refusal has had its effect.
                deadline = time.monotonic() + 10
                while pace.refused == 0 and time.monotonic() < deadline:
                    time.sleep(0.001)
                seen.append(pace.limit)

        pace.ask("read it", request)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(8)))
    assert min(seen) == 4
    assert pace.lowest == 4


def test_everybody_waits_after_a_refusal() -> None:
    pace = Pace("s3://b", RetryPolicy(refused=10, first_pause=0.2, longest_pause=0.2))
    with ThreadPoolExecutor(2) as pool:
        began = time.monotonic()
        refused = pool.submit(pace.ask, "read it", failing(SLOW_DOWN))
        wait_until(lambda: pace.refused)
        assert pool.submit(pace.ask, "read another", failing()).result(10) == "answer"
        assert time.monotonic() - began >= 0.2
        assert refused.result(10) == "answer"


def test_a_store_that_only_refuses_is_given_up_by_all_at_once() -> None:
    pace = Pace("s3://b", replace(QUICK, refused_request=3600.0))

    def one(number: int) -> str:
        def request() -> None:
            raise SLOW_DOWN

        with pytest.raises(StorageError) as e:
            pace.ask(f"write s3://b/{number}", request)
        assert e.value.message.startswith(f"could not write s3://b/{number}: ")
        assert e.value.hint is not None
        return e.value.message

    with ThreadPoolExecutor(32) as pool:
        messages = list(pool.map(one, range(32)))
    assert any("Please reduce your request rate (SlowDown); asked again for " in m for m in messages)
    assert pace.ask("read it", failing()) == "answer", "given up once is not given up for ever"


def test_those_who_give_up_with_another_one_say_what_the_store_had_said() -> None:
    def refused() -> str:
        raise SLOW_DOWN

    pace = Pace("s3://b", RetryPolicy(refused=0.0, refused_request=5.0, failures=3, first_pause=0.0, longest_pause=0.0))
    before = time.monotonic()
    with pytest.raises(StorageError):
        pace.ask("write one", refused)
    words = r"could not write two: the store refuses everything: could not write one: .*reduce your request rate.*asked again for"
    with pytest.raises(StorageError, match=words):
        pace._enter("write two", before)


def test_one_request_is_given_up_while_others_are_answered() -> None:
    pace = Pace("s3://b", RetryPolicy(refused=10, refused_request=0.1, first_pause=0.001, longest_pause=0.001))

    def refuse() -> None:
        raise SLOW_DOWN

    with pytest.raises(StorageError, match=r"could not read it: .*asked again for 0 s"):
        pace.ask("read it", refuse)
    assert pace.ask("read another", failing()) == "answer"


def test_broken_connections_are_made_again_so_many_times() -> None:
    pace = Pace("s3://b", QUICK)
    assert pace.ask("read it", failing(BROKEN, FAILED, BROKEN)) == "answer"
    with pytest.raises(GenericError):
        pace.ask("read it", failing(*[BROKEN] * 4))
    assert pace.refused == 0
    assert pace.limit == MOST


def test_what_is_final_is_not_asked_again() -> None:
    pace = Pace("s3://b", QUICK)
    request = failing(REFUSED)
    with pytest.raises(GenericError, match="AccessDenied"):
        pace.ask("read it", request)
    assert pace.ask("read it", request) == "answer"
