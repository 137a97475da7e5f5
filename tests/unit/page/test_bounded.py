"""Reads that a page waits for no longer than some seconds."""

from __future__ import annotations

import threading

from airflow_ckpt_provider.page import bounded
from airflow_ckpt_provider.page.bounded import BoundedReads, NoAnswerError


def test_a_store_that_does_not_answer_holds_few_threads() -> None:
    """Also while nobody knows yet that it does not: each of the pages that are opened meanwhile asks it."""
    answers, reads = threading.Event(), BoundedReads[str](300.0)
    found: list[object] = []
    begun = threading.Semaphore(0)

    def read() -> str:
        begun.release()
        answers.wait()
        return "found"

    pages = [threading.Thread(target=lambda: found.append(reads.results({"slow": read})["slow"])) for _ in range(8)]
    assert len(pages) == bounded._AT_ONCE
    try:
        for page in pages:
            page.start()
        for _ in pages:
            assert begun.acquire(timeout=60)
        answer = reads.results({"slow": read, "other": lambda: "here"})
        assert isinstance(answer["slow"], NoAnswerError)
        assert answer["other"] == "here"
    finally:
        answers.set()
        for page in pages:
            page.join()
    assert found == ["found"] * len(pages)
    assert reads.results({"slow": read}) == {"slow": "found"}


def test_what_a_read_raises_is_its_answer() -> None:
    def fail() -> str:
        raise ValueError("wrong")

    (error,) = BoundedReads[str](60.0).results({"a": fail}).values()
    assert isinstance(error, ValueError)
