"""Whether a seal may be lifted for a start: whether the change that it belongs to has begun to change files."""

from __future__ import annotations

from airflow_ckpt_provider.backup.beside import those_beside
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.sealing import STOPPING, UPGRADE, Begun, of_change
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.storage.location import Location


def begun_by_plans(checkpoint: Location, repository: Repository | None) -> Begun:
    """Tell by the plans that are kept: a change keeps its plan before its first change of a file.

    :param checkpoint: the checkpoint.
    :param repository: the one that the change was or is to be carried out with; ``None``: those beside the checkpoint.
    :return: for a seal: ``True``, its change has begun; ``False``, it has not; ``None``, that cannot be determined. Raises a
        ``RepositoryError`` where a repository is there and cannot be opened.
    """

    def begun(seal: Seal) -> bool | None:
        places = [repository] if repository is not None else list(those_beside(checkpoint))
        if any(place.kept_plan(seal.plan_id) is not None for place in places):
            return True
        if seal.reason.startswith(STOPPING):
            # Its change may use a repository that was named then; without any to ask there is nothing to tell by.
            return False if places else None
        if of_change(seal) or seal.reason.startswith(UPGRADE):
            return None
        return False  # somebody's own seal: `airflow-ckpt seal`, CheckpointSealOperator

    return begun
