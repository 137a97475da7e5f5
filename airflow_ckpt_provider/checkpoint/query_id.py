"""``metadata``: the query id, one line of JSON without a newline (``StreamMetadata``)."""

from __future__ import annotations

from airflow_ckpt_provider.checkpoint.logs import FETCH_IT
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.errors import UnreadableLogError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.storage.location import Location

METADATA_FILE = "metadata"


def is_checkpoint(location: Location) -> bool:
    """Whether a directory is the checkpoint of a query that has begun.

    :raises UnreadableLogError: it has a file of that name which holds no query id.
    """
    try:
        parse_query_id(location.read_document(METADATA_FILE))
    except FileNotFoundError:
        return False
    return bool(location.list(OFFSETS).files)


def parse_query_id(data: bytes) -> str:
    """Return the query id (``StreamingQuery.id``) that the file holds.

    Exactly-once sinks know a query by this id: Delta's ``txn`` carries it.

    :raises UnreadableLogError: the file is empty, cut off or holds no id.
    """
    try:
        query_id = load_json(data)["id"]
        if not (isinstance(query_id, str) and query_id):
            raise ValueError("no id")
    except (ValueError, KeyError, TypeError) as e:
        raise UnreadableLogError(
            f'{METADATA_FILE}: expected {{"id":"<uuid>"}}, found {data[:80]!r}',
            path=METADATA_FILE,
            hint=f"{FETCH_IT}; with another id, exactly-once sinks take the query for a new one",
        ) from e
    return query_id
