"""A stream's backups and its checkpoint as Airflow assets: a new backup, or a change of the checkpoint, can start other DAGs.

Their URIs have a scheme of their own, ``ckpt://``, which says what the asset is and then where it is::

    ckpt://backups/s3/bucket/backups/orders
    ckpt://checkpoints/s3/lake/checkpoints/orders

So a DAG can name them without running anything and without the store's provider, and the assets of the data itself stay those of
its owners. Places are often known only when a task runs; so the operators announce them through the aliases :data:`BACKUPS` and
:data:`CHANGES`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from airflow.sdk import Asset, AssetAlias

from airflow_ckpt_provider.configuration import configured_streams
from airflow_ckpt_provider.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow.sdk import Context

    from airflow_ckpt_provider.streams.streams import Streams

#: Every backup of every stream. ``DAG(schedule=[BACKUPS])`` runs after each of them.
BACKUPS = AssetAlias(name="ckpt_backups", group="ckpt")
#: Every restore, rewind, reset, repair and undo that was carried out. ``DAG(schedule=[CHANGES])`` runs after each of them.
CHANGES = AssetAlias(name="ckpt_changes", group="ckpt")
_SCHEME, _BACKUPS, _CHECKPOINTS = "ckpt", "backups", "checkpoints"
#: Of a path, what a URI can have as it is.
_SAFE = "/:@=+,~"


def backup_asset(
    repository: str | None = None,
    name: str | None = None,
    *,
    stream: str | None = None,
    streams_file: str | Streams | None = None,
) -> Asset:
    """Return the asset that stands for the backups of one stream, at the top of a DAG file: it reads at most the declaration.

    ``DAG(schedule=[backup_asset("s3://bucket/backups", "orders")])`` runs after each new backup of ``orders``; the
    event's ``extra`` says which one (``backup_id``, ``batch_id`` and so on).

    :param repository: URI or absolute path of the repository.
    :param name: name of the stream in it.
    :param stream: instead of both, the name of a declared stream.
    :param streams_file: the file that declares it, or what Python declares; ``None``: that of the configuration.
    """
    if stream is not None:
        declared = (
            streams_file if not isinstance(streams_file, str | None) else configured_streams(streams_file)
        ).named(stream)
        repository, name = declared.repository, declared.repository_name
    if repository is None or name is None:
        raise RefusedError(
            f"the repository of {stream or name or 'the stream'} is not known",
            hint="give repository and name, or stream of one that declares its repository",
        )
    return Asset(f"{_uri(_BACKUPS, repository)}/{quote(name)}")


def checkpoint_asset(checkpoint: str) -> Asset:
    """Return the asset that stands for a checkpoint, announced when one of our tasks has changed it.

    ``DAG(schedule=[checkpoint_asset("s3://lake/checkpoints/orders")])`` runs after each restore, rewind, reset, repair and undo
    that was carried out; the event's ``extra`` says which one (``kind``, ``plan_id``, ``batch_id``). A task that is
    cleared after its change sends the event again, with the same ``plan_id``.

    :param checkpoint: URI or absolute path of the checkpoint.
    """
    return Asset(_uri(_CHECKPOINTS, checkpoint))


def announce(outlets: Iterable[Any], context: Context, asset: Asset, extra: Mapping[str, Any]) -> None:
    """Send the event of an asset through the aliases of a task, and to the assets that its author gave instead.

    :param outlets: of the task.
    :param context: of its run; outside of Airflow nothing is sent.
    :param asset: the asset.
    :param extra: what the event says.
    """
    for outlet in outlets if "outlet_events" in context else ():
        if isinstance(outlet, AssetAlias):
            context["outlet_events"][outlet].add(asset, extra=dict(extra))
        elif isinstance(outlet, Asset):
            context["outlet_events"][outlet].extra = dict(extra)


def create_asset(*, repository: str, name: str, extra: dict[str, Any] | None = None) -> Asset:
    """Make the asset of a stream's backups, for Airflow's lineage of hooks.

    :param repository: URI of the repository.
    :param name: name of the stream in it.
    :param extra: of the asset.
    """
    return Asset(backup_asset(repository, name).uri, extra=extra)


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Give a URI of ours the one spelling that it has, when Airflow makes its asset.

    :param uri: the URI.
    :raises ValueError: it names nothing of ours.
    """
    kind, place, name = _parts(uri)
    made = urlsplit(_uri(kind, place))
    return made._replace(path=f"{made.path}/{quote(name)}" if name else made.path)


def convert_asset_to_openlineage(asset: Asset, lineage_context: Any) -> Any:
    """Return the dataset that an asset stands for, as :doc:`/howto/lineage` names it.

    :param asset: the asset.
    :param lineage_context: who asks; not read.
    """
    from openlineage.client.event_v2 import Dataset

    from airflow_ckpt_provider.lineage.names import dataset_of

    _, place, name = _parts(urlsplit(asset.uri))
    found = dataset_of(f"{place}/backups/{name}" if name else place)
    return Dataset(found.namespace, found.name) if found else None


def _uri(kind: str, place: str) -> str:
    from airflow_ckpt_provider.places import address
    from airflow_ckpt_provider.storage.opening import open_location

    scheme, rest = address(place)
    if scheme == "file":
        rest = open_location(place).root
    else:
        authority, slash, path = rest.partition("/")
        # Airflow's s3://<conn_id>@bucket/…: the place is the same without.
        rest = f"{authority.rpartition('@')[2]}{slash}{path}"
    return f"{_SCHEME}://{kind}/{scheme}/{quote(rest.strip('/'), safe=_SAFE)}"


def _parts(uri: SplitResult) -> tuple[str, str, str]:
    """Kind, place and name of the stream, which is empty of a checkpoint."""
    from airflow_ckpt_provider.backup.names import is_name

    scheme, _, rest = uri.path.strip("/").partition("/")
    place, name = rest, ""
    if uri.netloc == _BACKUPS:
        place, _, name = rest.rpartition("/")
    named = is_name(unquote(name)) if uri.netloc == _BACKUPS else uri.netloc == _CHECKPOINTS
    if not (scheme and place and named) or uri.query or uri.fragment:
        raise ValueError(
            f"{uri.geturl()} is neither ckpt://backups/<scheme>/<repository>/<stream> nor ckpt://checkpoints/<scheme>/<place>; "
            "use airflow_ckpt_provider.assets.backup_asset or checkpoint_asset"
        )
    place = unquote(place)
    return uri.netloc, f"/{place}" if scheme == "file" else f"{scheme}://{place}", unquote(name)
