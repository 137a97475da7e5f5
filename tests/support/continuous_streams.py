"""Checkpoints of continuous processing."""

from __future__ import annotations

from tests.support.checkpoints import Files, commit_log, metadata, offsets_log


def continuous(logged: list[int], committed: list[int]) -> Files:
    files: Files = {"metadata": metadata()}
    files |= {f"offsets/{b}": offsets_log(f'{{"0":{{"value":{b},"runTimeMs":2}}}}') for b in logged}
    return files | {f"commits/{b}": commit_log() for b in committed}
