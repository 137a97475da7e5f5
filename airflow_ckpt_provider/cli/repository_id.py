"""What verbs do with ``--repository-id ID``."""

from __future__ import annotations

import os
from argparse import Namespace
from dataclasses import replace

from airflow_ckpt_provider.storage.location import Location

#: In the environment, in the place of the option.
VARIABLE = "CKPT_REPOSITORY_ID"


def with_repository_id(place: Location, args: Namespace, *, role: str) -> Location:
    """Give the place of the repository the id that has to be there.

    :param role: what the place is for; only that of the repository changes. The target of a copy is another repository.
    """
    wanted = args.repository_id or os.environ.get(VARIABLE, "").strip()
    return replace(place, repository_id=wanted) if wanted and role == "repository" else place
