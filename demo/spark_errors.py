"""Finds in hundreds of lines of Java the one that says what is wrong."""

from __future__ import annotations

import re

_CAUSE = re.compile(r"^Caused by: ")
_CONDITION = re.compile(r"\[[A-Z][A-Z_.]+\] ")
#: Says only that a stream failed, and repeats what the cause says.
_GENERAL = ("[STREAM_FAILED]", "[FAILED_EXECUTE_UDF]", "[FOREACH_BATCH_USER_FUNCTION_ERROR]", "[FAILED_JVM_PYTHON")


#: Longest line to show; Spark's advice comes last.
_LONGEST = 260


def reason(text: str) -> str:
    """Return Spark's own line for why a stream failed: the innermost one that has an error condition.

    Where that one only says that something could not be loaded, the innermost cause is added.

    :param text: a log or an exception's text.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    plain = [_CAUSE.sub("", line) for line in lines]
    telling = [line for line in plain if _CONDITION.search(line) and not any(word in line for word in _GENERAL)]
    causes = [_CAUSE.sub("", line) for line in lines if _CAUSE.match(line)]
    if not telling:
        errors = causes or [line for line in plain if "Exception: " in line or "Error: " in line] or plain
        return _shortened(errors[-1]) if errors else "(no message)"
    found = _CONDITION.search(telling[-1])
    said = telling[-1][found.start() if found else 0 :]
    if ".UNCATEGORIZED]" in said and causes and said not in causes[-1]:
        said = f"{said.split('] ')[0]}] {causes[-1]}"
    return _shortened(said)


def _shortened(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST].rsplit(' ', 1)[0]} …"
