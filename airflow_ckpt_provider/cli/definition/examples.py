"""What ``--help`` of each verb shows: commands for the usual cases, those that change something last."""

from __future__ import annotations

from collections.abc import Mapping

_REPOSITORY = "s3://backups/streams"
_CHECKPOINT = "s3://lake/checkpoints/orders"
_TABLE = "s3://lake/tables/orders"

#: Verb -> what is typed behind it.
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "inspect": ("--stream orders", _CHECKPOINT, f"{_CHECKPOINT} --json"),
    "doctor": (
        "--stream orders",
        "--stream orders --repair",
        f"{_CHECKPOINT} --repair --repository {_REPOSITORY} --stop-running --apply",
    ),
    "explain": ("driver.log", "< driver.log"),
    "compatible": (
        "--stream orders orders-v2.json",
        f"{_CHECKPOINT} orders-v2.json --old orders-v1.json",
    ),
    "guard": (
        "--stream orders --kafka-config kafka.properties",
        f"{_CHECKPOINT} --kafka-config kafka.properties --max-downtime 24h",
        f"--repository {_REPOSITORY} --name orders --kafka-config kafka.properties",
    ),
    "positions": (
        "--stream orders",
        f"{_CHECKPOINT} --by-duration 2h --partitions orders=12",
        "--stream orders --backup-id latest",
    ),
    "init": ("--stream orders", _REPOSITORY, f"{_REPOSITORY} --key-file repository.key"),
    "backup": ("--stream orders", f'{_CHECKPOINT} {_REPOSITORY} --reason "before deployment 42"'),
    "backups": ("--stream orders", _REPOSITORY),
    "verify": (
        "--stream orders latest",
        f"{_REPOSITORY} latest --name orders --read-data",
        f"{_REPOSITORY} all --read-data=1/30",
    ),
    "restore": (
        "--stream orders latest",
        f"{_REPOSITORY} latest {_CHECKPOINT}-2 --name orders --apply",
        "--stream orders latest --replace --stop-running --apply",
    ),
    "expire": (
        "--stream orders",
        f"{_REPOSITORY} --keep-hourly 48 --keep-daily 30",
        f"{_REPOSITORY} --keep-hourly 48 --keep-daily 30 --prune --apply",
    ),
    "prune": (_REPOSITORY, f"{_REPOSITORY} --max-unused 5% --apply"),
    "migrate": (_REPOSITORY, f"{_REPOSITORY} --apply"),
    "hold": (
        '--stream orders latest --reason "incident 4711"',
        f'{_REPOSITORY} 20261121T083000Z-b000223 --name orders --reason "incident 4711"',
    ),
    "release": ('--stream orders 20261121T083000Z-b000223 --reason "incident 4711 is closed"',),
    "check": ("--stream orders", _REPOSITORY),
    "repair": (f"{_REPOSITORY} {_CHECKPOINT} --name orders", f"{_REPOSITORY} {_CHECKPOINT} --name orders --apply"),
    "copy": (
        "--stream orders latest s3://backups-eu/streams",
        f"{_REPOSITORY} all s3://backups-eu/streams",
    ),
    "key": (
        f"list {_REPOSITORY} --key-file repository.key",
        f'add {_REPOSITORY} --key-file repository.key --new-key-file second.key --note "team payments"',
    ),
    "new-signing-key": ("signing.key",),
    "sign": (f"{_REPOSITORY} --signing-key-file signing.key",),
    "streams": (
        f"init s3://lake/checkpoints --repository {_REPOSITORY} > streams.yaml",
        "check",
        "list --streams dags/streams.yaml",
    ),
    "discover": ("s3://lake/checkpoints", "s3://lake/checkpoints /mnt/team/checkpoints --json"),
    "fleet": (
        f"{_REPOSITORY} --streams streams.yaml",
        f"{_REPOSITORY} s3://lake/checkpoints --max-age 26h --max-gap 10",
        f"{_REPOSITORY} --streams streams.yaml --prometheus /var/lib/node_exporter/ckpt.prom",
    ),
    "report": (f"{_REPOSITORY} --streams streams.yaml --html /var/www/checkpoints",),
    "rewind": (
        "--stream orders --list",
        "--stream orders --to-datetime 2026-11-21T14:05:00Z",
        "--stream orders --to-batch 222 --sink-policy rollback --stop-running --apply",
    ),
    "undo": ("--stream orders --query-is-stopped", f"{_CHECKPOINT} --sink {_TABLE} --query-is-stopped"),
    "chain": (
        "backup --application shop",
        "restore --application shop --replace --stop-running --apply",
        "rewind --stream bronze=/ck/bronze,sink=/lake/bronze --to-datetime 2026-11-21T14:05:00Z",
    ),
    "status": ("--stream orders", _CHECKPOINT),
    "upgrade": ("--stream orders", '--stream orders --end --reason "its run was deleted"'),
    "reset": (
        "--stream orders --keep-position",
        f"{_CHECKPOINT} --new-query-id --sink {_TABLE}",
        f"{_CHECKPOINT} --keep-position --sink {_TABLE} --stop-running --apply",
    ),
    "flows": (
        "s3://lake/pipelines/sales",
        f"s3://lake/pipelines/sales --restore-into-next ingest --repository {_REPOSITORY}",
    ),
    "seal": ('--stream orders --reason "broker moves"', f'{_CHECKPOINT} --reason "broker moves"'),
    "unseal": ("--stream orders --plan ff1f79ca", "--stream orders --for-start"),
    "pipelines": (
        "list",
        "positions customers --warehouse 0123abcd --margin 15min --json",
        "reset customers --positions positions.json --apply",
    ),
}


def examples_of(verb: str, command: str) -> str:
    """The paragraph of the help.

    :param verb: the verb.
    :param command: what is typed before it: ``airflow-ckpt`` or ``airflow ckpt``.
    """
    return "\n".join(["examples:", *(f"  {command} {verb} {words}" for words in EXAMPLES[verb])])
