"""``init``: make a repository, on purpose."""

from __future__ import annotations

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call
from airflow_ckpt_provider.errors import RepositoryError


def init(call: Call) -> Answer:
    """Make a repository in an empty place; one that is there already stays as it is."""
    place = call.places(call.args.repository, role="repository")
    try:
        repository, created = Repository.open(place), False
    except RepositoryError:
        repository, created = Repository.open_or_create(place), True
    if call.screen:
        done = "Made the repository" if created else "There is a repository already:"
        call.screen.print(terminal.title(f"{done} {repository.location}"))
        call.screen.print(terminal.facts([("id", repository.repository_id)]))
    return Answer({"repository": repository.location.uri, "id": repository.repository_id, "created": created})
