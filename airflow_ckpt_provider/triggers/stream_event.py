"""Events for Airflow's asset watchers: a stream is stuck, fell behind, went silent, or had its history rewritten."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_ckpt_provider.errors import CkptError
from airflow_ckpt_provider.redaction import redacted, redacted_text
from airflow_ckpt_provider.triggers.in_thread import in_thread

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.incidents import Glance, Watched
    from airflow_ckpt_provider.storage.location import Location


log = logging.getLogger(__name__)


def incidents_of(events: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the payloads of :class:`StreamEventTrigger` in the events of its asset.

    An event without one, such as one that was created by hand, is logged and left out.

    :param events: ``context["triggering_asset_events"][asset]``.
    """
    found = []
    for event in events:
        payload = (event.extra or {}).get("payload")
        if isinstance(payload, dict) and all(
            isinstance(payload.get(key), str) for key in ("incident", "checkpoint", "message", "hint")
        ):
            found.append(payload)
        else:
            log.warning("The event of asset %s at %s reports no incident: left out", event.asset.name, event.timestamp)
    return found


class StreamEventTrigger(BaseEventTrigger):
    """Watch a checkpoint for as long as its asset is watched; fire once for each incident, not at every poll.

    What was announced is kept a poll later, so a triggerer that stops in between leaves it to the next one to announce again.

    An incident is over when a poll no longer shows it; the next one of its kind is announced again. A sealed
    checkpoint has no incidents: somebody is working on it. A poll that fails is logged, and the next one is made.

    The event's payload is ``{"incident", "checkpoint", "message", "hint", "progress", "noticed_at"}``, with ``incident`` one of

    * ``stuck``: a batch was begun, and nothing was written to ``offsets/``, ``commits/`` or ``state/`` for ``stuck_after``;
    * ``fell_behind``: the newest batch runs for longer than ``behind_after``, or more than ``max_gap`` batches are uncommitted;
    * ``silent``: no batch was begun or committed for ``silent_after`` (an idle stream looks like one that was stopped, so
      ask for it only where there is always something to read);
    * ``history_rewritten``: smaller batch ids, commits written again, or another query id.

    .. code-block:: python

        from airflow.sdk import Asset, AssetWatcher

        trigger = StreamEventTrigger(checkpoint="s3://lake/checkpoints/orders", stuck_after=1800.0)
        incidents = Asset("orders_incidents", watchers=[AssetWatcher(name="orders_incidents", trigger=trigger)])

    .. seealso:: :doc:`/howto/stream-events`

    :param checkpoint: URI of the checkpoint.
    :param checkpoint_conn_id: Airflow connection to reach it; ``None``: the environment's own credentials.
    :param stuck_after: seconds; ``None``: not announced.
    :param behind_after: seconds; ``None``: not announced.
    :param max_gap: logged batches that may be uncommitted; ``None``: not announced.
    :param silent_after: seconds; ``None``: not announced.
    :param poll_interval: seconds between two polls.
    """

    def __init__(
        self,
        *,
        checkpoint: str,
        checkpoint_conn_id: str | None = None,
        stuck_after: float | None = 1800.0,
        behind_after: float | None = None,
        max_gap: int | None = None,
        silent_after: float | None = None,
        poll_interval: float = 60.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.checkpoint = checkpoint
        self.checkpoint_conn_id = checkpoint_conn_id
        self.stuck_after = stuck_after
        self.behind_after = behind_after
        self.max_gap = max_gap
        self.silent_after = silent_after
        self.poll_interval = poll_interval
        self._location: Location | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments, all plain JSON; the same for the same watch, by which Airflow knows it again."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "checkpoint": self.checkpoint,
                "checkpoint_conn_id": self.checkpoint_conn_id,
                "stuck_after": self.stuck_after,
                "behind_after": self.behind_after,
                "max_gap": self.max_gap,
                "silent_after": self.silent_after,
                "poll_interval": self.poll_interval,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look for ever; fire when something begins."""
        from airflow_ckpt_provider.checkpoint.incidents import Glance

        watched = await self._recall()
        kept = watched.going_on
        while True:
            try:
                seen = await in_thread(self._look, watched)
            except Exception as e:  # whatever it is: nobody would start the watch again
                said = e.message if isinstance(e, CkptError) else f"{type(e).__name__}: {redacted_text(str(e))}"
                seen = Glance((), watched, said)
            if seen.failure:
                self.log.warning(
                    "%s: %s; looking again in %g s", redacted(self.checkpoint), seen.failure, self.poll_interval
                )
            watched = seen.watched
            for incident in seen.begun:
                self.log.info("%s", incident.message)
                yield TriggerEvent(incident.to_json())
            await asyncio.sleep(self.poll_interval)
            # Only now: the triggerer holds an event in memory for a while, and if it dies, the next one must announce it.
            # Until it succeeds: an incident that is over, and still kept, would not be announced when it begins again.
            if watched.going_on != kept and await self._keep(watched):
                kept = watched.going_on

    def _look(self, watched: Watched) -> Glance:
        from airflow_ckpt_provider.checkpoint.incidents import Limits, glance
        from airflow_ckpt_provider.places import open_place

        if self._location is None:
            self._location = open_place(self.checkpoint, self.checkpoint_conn_id)
        limits = Limits(self.stuck_after, self.behind_after, self.max_gap, self.silent_after)
        return glance(self._location, limits, watched)

    @property
    def _key(self) -> str:
        return f"ckpt_stream_event:{hashlib.sha256(repr(self.serialize()).encode()).hexdigest()[:16]}"

    async def _recall(self) -> Watched:
        """What was announced before the triggerer was started again (Airflow 3.3 and later)."""
        from airflow_ckpt_provider.checkpoint.incidents import Watched

        store: Any = getattr(self, "asset_state_store", None)
        if store is None:
            return Watched()
        try:
            # Airflow 3.3.0 and 3.3.1 have no aget yet.
            if hasattr(store, "aget"):
                return Watched.from_json(await store.aget(self._key))
            return Watched.from_json(await in_thread(store.get, self._key))
        except ValueError:  # several assets share this watch: there is no one place to keep it
            return Watched()
        except Exception as e:
            self.log.warning("what was announced before cannot be read: %s", redacted_text(str(e)))
            return Watched()

    async def _keep(self, watched: Watched) -> bool:
        """Keep what was announced; whether that need not be tried again."""
        store: Any = getattr(self, "asset_state_store", None)
        if store is None:
            return True
        try:
            if hasattr(store, "aset"):
                await store.aset(self._key, watched.to_json())
            else:
                await in_thread(store.set, self._key, watched.to_json())
        except ValueError:  # as in _recall
            return True
        except Exception as e:
            self.log.warning("what was announced cannot be kept: %s", redacted_text(str(e)))
            return False
        return True
