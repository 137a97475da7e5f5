"""Words of the pipelines' core for people at a shell: options in place of the operators' arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_ckpt_provider.errors import CkptError

_ARGUMENT = re.compile(r"\b(on_active_update|wait_for|configuration_after|timezone|accept)='([^']*)'")
_PUT_BACK = re.compile(r"PipelineConfigurationPutBackOperator(?:\(changed_by=(.*?)\)(?=[,;]|$))?")
_WORDS = {
    "give the report of a guard (guard_report) to PipelineRefreshOperator": "give the report of a guard with --guard-report",
    "give the XCom of a guard's task": "give what guard --json printed",
    "name the tables in full_refresh_selection, or give full_refresh=True for all of them": (
        "name the tables with --empty, or give --everything"
    ),
    "give --wait-for RUNNING, or None": "give --wait-for RUNNING",
    "wait for that one with PipelineUpdateSensor(update_id=…)": "wait for that one in the workspace",
    "backup='deep_clone' keeps one": "the command line keeps none; a task of Airflow can, by a deep clone",
    "the next attempt of this task": "the same command, run again,",
    "the token of the connection": "the token",
    "the connection's user": "the user of this login",
    "the workspace of the connection": "the workspace of this login",
}


def in_shell(text: str, note: str = "") -> str:
    """Return a text with the options of the command in it.

    :param text: a plan, a message or a hint.
    :param note: path of the command's note; empty: it has none.
    """
    text = _ARGUMENT.sub(lambda found: f"--{found[1].replace('_', '-')} {found[2]}", text)
    text = _PUT_BACK.sub(
        lambda found: f"airflow-ckpt pipelines put-back PIPELINE --changed-by {found[1] or 'WHO'} --apply", text
    )
    for words, ours in _WORDS.items():
        text = text.replace(words, ours)
    way_out = f"give --forget, which removes {note or 'its note'},"
    return text.replace("clear this task only when none is", f"{way_out} only when none is")


@contextmanager
def words_of_the_shell(note: str = "") -> Iterator[None]:
    """Say errors in the command's own words.

    :param note: path of the command's note.
    """
    try:
        yield
    except CkptError as e:
        e.message = in_shell(e.message, note)
        e.hint = in_shell(e.hint, note) if e.hint else e.hint
        e.args = (f"{e.message}\nHINT: {e.hint}" if e.hint else e.message,)
        raise
