"""Fingerprints of plans and requests: short, and the same in every process and version for the same content."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def fingerprint_of(content: Any) -> str:
    """Return 16 hexadecimal digits that change with the content. Stored documents hold them: the way they are made is fixed.

    :param content: what an approval is given for, as JSON: a text stands for itself, read-only mappings for dictionaries.
    """
    text = content if isinstance(content, str) else json.dumps(content, sort_keys=True, default=dict)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
