"""Which tests run in the same worker, since they share a Spark, an Airflow or a broker that takes long to start."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

#: What the tests share -> where they are. They are begun first, for they take longest.
SHARED = {
    "Spark": ("tests/integration/",),
    "Airflow": ("tests/system/",),
    "Kafka": (
        "tests/component/guards/",
        "tests/component/operators/test_kafka_guard.py",
        "tests/component/test_mirrored_positions.py",
    ),
}


def shared_by(nodeid: str) -> str | None:
    """What a test shares with those that run in the same worker."""
    return next((what for what, places in SHARED.items() if nodeid.startswith(places)), None)


class OneWorker(LoadFileScheduling):  # type: ignore[misc]  # xdist is not typed
    """Each file in one worker, and all files that share something."""

    def _split_scope(self, nodeid: str) -> str:
        return shared_by(nodeid) or str(super()._split_scope(nodeid))


class EachForItself(LoadFileScheduling):  # type: ignore[misc]  # xdist is not typed
    """Each file in one worker, whatever it shares with others, and each test of ``unit/`` for itself: it starts no Spark.

    For a part of the slow tests: these are nearly all of one kind, and few files hold most of them.
    """

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith("tests/unit/") else str(super()._split_scope(nodeid))
