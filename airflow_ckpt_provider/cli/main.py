"""Where ``airflow-ckpt`` begins. It loads next to nothing: Ctrl-C while the rest is loaded must find somebody who answers it."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # the module typing takes longer to load than this one
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``airflow-ckpt``.

    :param argv: the arguments; by default those of the process.
    :return: the exit code.
    """
    try:
        from airflow_ckpt_provider.cli.program import run

        return run(argv)
    except KeyboardInterrupt:
        if argv is None:  # the process ends: a second Ctrl-C need not be answered
            import signal

            signal.signal(signal.SIGINT, signal.SIG_IGN)
        from airflow_ckpt_provider.cli.calling import interrupted
        from airflow_ckpt_provider.cli.program import wants_json

        return interrupted(sys.stdout, as_json=wants_json(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
