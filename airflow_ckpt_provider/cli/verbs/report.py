"""``report``: the pages about all streams as files."""

from __future__ import annotations

from pathlib import Path

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.cli.calling import Answer, Call
from airflow_ckpt_provider.errors import StorageError


def report(call: Call) -> Answer:
    """Write the pages; the checkpoints are not read."""
    # Not above: templates are slow to load, and no other verb needs them.
    from airflow_ckpt_provider.page.shown import declared_in
    from airflow_ckpt_provider.page.site import write_site

    repository = Repository.open(call.places(call.args.repository, role="repository"))
    directory = Path(call.args.html).absolute()
    args = call.args
    streams = call.streams(args.streams).values() if args.streams or args.stream else ()
    declared = declared_in(repository.location.uri, streams)
    try:
        files = write_site(repository, directory, declared=declared)
    except OSError as e:
        raise StorageError(f"{directory} cannot be written: {e}", hint="give a directory that can be") from e
    if call.screen:
        call.screen.print(f"{directory / 'index.html'} and {len(files) - 1} more files")
    return Answer({"repository": repository.location.uri, "files": [str(file) for file in files]}, findings=False)
