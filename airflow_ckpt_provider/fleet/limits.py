"""How far a fleet is searched for, and how much at once, unless somebody says otherwise."""

from __future__ import annotations

#: How deep below a root is looked: a pipeline's storage in a folder of pipelines, and its flows, are seven levels.
DEPTH = 8
#: Directories and streams read at once.
WORKERS = 16
