"""``hold`` and ``release``: keep a backup whatever the policy says."""

from __future__ import annotations

from airflow_ckpt_provider.backup import notes
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.cli.calling import Answer, Call


def hold(call: Call) -> Answer:
    """Hold a backup."""
    repository, manifest = _backup(call)
    word = notes.hold(repository, manifest, reason=call.args.reason, made_by=call.made_by)
    return _answer(call, manifest, word, "is held now" if word.is_new else f"was held already: {word.reason}")


def release(call: Call) -> Answer:
    """Release a backup."""
    repository, manifest = _backup(call)
    dead = call.args.expire_is_dead
    word = notes.release(repository, manifest, reason=call.args.reason, made_by=call.made_by, dead_expires=dead)
    return _answer(call, manifest, word, "is released" if word.is_new else "was not held: nothing was changed")


def _backup(call: Call) -> tuple[Repository, Manifest]:
    repository = Repository.open(call.places(call.args.repository, role="repository"))
    return repository, repository.manifest(call.args.backup, name=call.args.name)


def _answer(call: Call, manifest: Manifest, word: notes.Hold, says: str) -> Answer:
    if call.screen:
        call.screen.print(f"Backup {manifest.backup_id} of {manifest.name} {says}", soft_wrap=True)
    return Answer({"backup_id": manifest.backup_id, "name": manifest.name, **word.to_json()})
