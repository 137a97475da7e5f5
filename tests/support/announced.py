"""``airflow-ckpt`` in a process that says when it begins, so that a test can pause it at a random moment of its work.

::

    python -m tests.support.announced [--without-fence] [--stop-at-delete N --below PATH] -- restore …

``--without-fence`` takes out what a change is protected by: the comparison with the lease, and that of identities. It shows what
happens without.
"""

from __future__ import annotations

import argparse
import sys

from airflow_ckpt_provider.change.fence import Fence
from airflow_ckpt_provider.cli.main import main
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.store import StoredFile
from tests.support.killing import one_after_the_other
from tests.support.stop_itself import stop_at


def without_fence() -> None:
    """Let an attempt write whatever its lease says, and whatever is there."""

    def delete(store: LocalStore, file: StoredFile) -> None:
        store.delete(file.path)

    def replace(store: LocalStore, file: StoredFile, data: bytes) -> None:
        store.replace(file.path, data)

    Fence.check = lambda self: None  # type: ignore[method-assign]
    LocalStore.delete_listed = delete  # type: ignore[method-assign]
    LocalStore.replace_listed = replace  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    split = sys.argv.index("--")
    options = argparse.ArgumentParser()
    options.add_argument("--without-fence", action="store_true")
    options.add_argument("--stop-at-delete", type=int)
    options.add_argument("--below", default="")
    given = options.parse_args(sys.argv[1:split])
    if given.without_fence:
        without_fence()
    if given.stop_at_delete:
        one_after_the_other()
        stop_at("delete", given.stop_at_delete, "after", given.below)
    print("begins", flush=True)
    sys.exit(main(sys.argv[split + 1 :]))
