"""``init``: make a repository, on purpose."""

from __future__ import annotations

from airflow_ckpt_provider.backup.repository import Repository, raise_format
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call
from airflow_ckpt_provider.errors import RepositoryError


def init(call: Call) -> Answer:
    """Make a repository in an empty place; one that is there already stays as it is, unless it is to have a later format."""
    place, wanted = call.places(call.args.repository, role="repository"), call.args.format
    try:
        repository, created = Repository.open(place), False
    except RepositoryError:
        repository, created = Repository.open_or_create(place, format=wanted), True
    done = "Made the repository" if created else "There is a repository already:"
    if wanted and wanted != repository.format:
        repository, done = raise_format(place, repository, wanted), "Changed the format, which cannot be undone:"
    if call.screen:
        call.screen.print(terminal.title(f"{done} {repository.location}"))
        call.screen.print(terminal.facts([("id", repository.repository_id), ("format", str(repository.format))]))
    return Answer(
        {
            "repository": repository.location.uri,
            "id": repository.repository_id,
            "format": repository.format,
            "created": created,
        }
    )
