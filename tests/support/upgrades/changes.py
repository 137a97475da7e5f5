"""Every change of Spark's guide ("Recovery Semantics after Changes in a Streaming Query") that can be written as code.

``docs/compatibility.md`` is made from this table, and ``tests/integration/test_upgrade_changes.py`` runs it on real Spark: it
holds what was seen, not what was hoped for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_STATE = "spark.sql.streaming.stateStore."
_PROVIDERS = "org.apache.spark.sql.execution.streaming.state."


@dataclass(frozen=True)
class Written:
    """One change.

    :param words: the change.
    :param old: the old query, a function of :mod:`.queries`.
    :param new: the new one.
    :param static: codes that the comparison with the checkpoint finds.
    :param fails: code of the rehearsal's failure; empty: it starts.
    :param differs: whether the rehearsal with the old code finds other rows; ``None``: not asked.
    :param by_plan: whether the comparison of two descriptions finds it.
    :param mode: output mode.
    :param new_mode: that of the new query where it is another.
    :param rocksdb: state in RocksDB.
    :param conf: settings of the new code.
    :param batches: how many are rehearsed.
    :param note: why it is not caught, or what is to be known.
    """

    words: str
    old: str
    new: str
    static: tuple[str, ...] = ()
    fails: str = ""
    differs: bool | None = None
    by_plan: bool = False
    mode: str = "append"
    new_mode: str = ""
    rocksdb: bool = False
    conf: dict[str, str] = field(default_factory=dict)
    batches: int = 1
    note: str = ""


_ROCKSDB_PROVIDER = {f"{_STATE}providerClass": f"{_PROVIDERS}RocksDBStateStoreProvider"}
_NOT_IN_CHECKPOINT = "a checkpoint does not hold it; the descriptions of old and new code do"

_WRONG_PLACE = "files: `Wrong basePath … for the root path`"

CHANGES: dict[str, tuple[Written, ...]] = {
    "Sources": (
        Written("a source added", "plain", "both", ("SOURCES-COUNT",), "SOURCES-CHANGED"),
        Written("a source removed", "both", "plain", ("SOURCES-COUNT",), "SOURCES-CHANGED"),
        Written("another type of source", "plain", "plain_of_rate", ("SOURCE-KIND",), "UNKNOWN"),
        Written(
            "sources in another order",
            "both",
            "both_turned",
            ("SOURCES-ORDER",),
            "SOURCE-PLACE-CHANGED",
            note=_WRONG_PLACE,
        ),
        Written(
            "another input directory",
            "plain",
            "plain_elsewhere",
            ("SOURCE-PATH",),
            "SOURCE-PLACE-CHANGED",
            note=_WRONG_PLACE,
        ),
        Written("another rate limit (maxFilesPerTrigger)", "plain", "plain_faster", note="allowed"),
    ),
    "Projections, filters, sinks": (
        Written(
            "a filter added", "plain", "plain_filtered", differs=True, note="allowed; other rows are what is meant"
        ),
        Written(
            "another output schema",
            "plain",
            "plain_wider",
            differs=True,
            note="allowed where the sink takes it, and the rehearsal does not ask the sink",
        ),
        Written(
            "a refactored query",
            "totals",
            "totals_refactored",
            differs=False,
            mode="update",
            note="allowed: nothing changes",
        ),
        Written(
            "an output column renamed",
            "totals",
            "totals_renamed",
            differs=True,
            mode="update",
            note="allowed: the state does not hold it",
        ),
    ),
    "Aggregation": (
        Written(
            "an aggregate added", "totals", "totals_more", ("STATE-VALUES",), "STATE-SCHEMA-CHANGED", mode="update"
        ),
        Written(
            "an aggregate removed", "totals", "totals_fewer", ("STATE-VALUES",), "STATE-SCHEMA-CHANGED", mode="update"
        ),
        Written(
            "another type of an aggregate",
            "totals",
            "totals_of_doubles",
            ("STATE-VALUES",),
            "STATE-SCHEMA-CHANGED",
            mode="update",
        ),
        Written(
            "a grouping key added", "totals", "totals_by_two", ("STATE-KEYS",), "STATE-SCHEMA-CHANGED", mode="update"
        ),
        Written(
            "another type of a grouping key",
            "totals",
            "totals_by_number",
            ("STATE-KEYS",),
            "STATE-SCHEMA-CHANGED",
            mode="update",
        ),
        Written(
            "another grouping key of the same type",
            "totals",
            "totals_by_id",
            ("STATE-NAMES",),
            differs=True,
            mode="update",
        ),
        Written(
            "another aggregate of the same type",
            "totals",
            "totals_maximum",
            ("STATE-NAMES",),
            differs=True,
            mode="update",
        ),
        Written(
            "the same aggregate of another expression",
            "totals",
            "totals_doubled",
            differs=True,
            by_plan=True,
            mode="update",
            note=_NOT_IN_CHECKPOINT,
        ),
        Written(
            "windows of another length",
            "windows_only",
            "windows_longer",
            differs=True,
            by_plan=True,
            batches=3,
            note=_NOT_IN_CHECKPOINT,
        ),
        Written(
            "another watermark",
            "windows_only",
            "windows_later",
            differs=False,
            by_plan=True,
            batches=3,
            note="batches that are run again have the watermark of the old code's plan; descriptions show",
        ),
        Written(
            "another output mode",
            "totals",
            "totals",
            differs=True,
            by_plan=True,
            mode="update",
            new_mode="complete",
            note=_NOT_IN_CHECKPOINT,
        ),
    ),
    "Stateful operators": (
        Written(
            "a query without state gets some",
            "plain",
            "totals",
            ("OPERATORS-BEGUN",),
            "STATE-FILE-MISSING",
            new_mode="update",
        ),
        Written(
            "all state removed",
            "totals",
            "plain",
            ("OPERATORS-ALL-REMOVED",),
            "OPERATORS-CHANGED",
            mode="update",
            new_mode="append",
        ),
        Written("an operator added", "windows_only", "windows", ("OPERATORS-ADDED",), "OPERATORS-CHANGED"),
        Written("an operator removed", "windows", "windows_only", ("OPERATORS-REMOVED",), "OPERATORS-CHANGED"),
        Written(
            "an operator of another type", "distinct", "distinct_within", ("OPERATORS-CHANGED",), "OPERATORS-CHANGED"
        ),
        Written("windows become sessions", "windows_only", "sessions", ("OPERATORS-CHANGED",), "OPERATORS-CHANGED"),
    ),
    "Deduplication": (
        Written("a column added", "distinct", "distinct_by_three", ("STATE-KEYS",), "STATE-SCHEMA-CHANGED"),
        Written("another column of the same type", "distinct", "distinct_by_other", ("STATE-NAMES",), differs=True),
    ),
    "Stream-stream join": (
        Written(
            "a joining column added", "joined", "joined_by_two", ("STATE-KEYS", "STATE-VALUES"), "STATE-SCHEMA-CHANGED"
        ),
        Written(
            "another joining column of the same type",
            "joined",
            "joined_by_other",
            ("STATE-NAMES", "STATE-VALUES"),
            "STATE-SCHEMA-CHANGED",
            by_plan=True,
        ),
        Written(
            "another type of join",
            "joined",
            "joined_outer",
            ("STATE-VALUES",),
            "STATE-SCHEMA-CHANGED",
            by_plan=True,
            note="here other columns may be null; where the schema stays, only the descriptions show",
        ),
        Written(
            "another time condition",
            "joined",
            "joined_nearer",
            differs=False,
            by_plan=True,
            note="the rows at hand are the same under both; the descriptions show",
        ),
        Written("a column more of one side", "joined", "joined_wider", ("STATE-VALUES",), "STATE-SCHEMA-CHANGED"),
    ),
    "Arbitrary state": (
        Written(
            "applyInPandasWithState: state schema",
            "counted",
            "counted_more",
            ("STATE-VALUES",),
            "STATE-SCHEMA-CHANGED",
            mode="update",
        ),
        Written(
            "applyInPandasWithState: type of time-out",
            "counted",
            "counted_timed",
            ("STATE-VALUES",),
            "STATE-SCHEMA-CHANGED",
            mode="update",
        ),
        Written(
            "transformWithState: a variable added",
            "remembered",
            "remembered_more",
            ("VARIABLE-ADDED",),
            mode="update",
            rocksdb=True,
        ),
        Written(
            "transformWithState: a variable removed",
            "remembered",
            "remembered_fewer",
            ("VARIABLE-REMOVED",),
            mode="update",
            rocksdb=True,
        ),
        Written(
            "transformWithState: another type of variable",
            "remembered",
            "remembered_list",
            ("VARIABLE-TYPE",),
            "STATE-SCHEMA-CHANGED",
            mode="update",
            rocksdb=True,
        ),
        Written(
            "transformWithState: a column more in a value",
            "remembered",
            "remembered_wider",
            ("STATE-VALUES",),
            "STATE-SCHEMA-CHANGED",
            mode="update",
            rocksdb=True,
        ),
        Written(
            "transformWithState: another time mode",
            "remembered",
            "remembered_timed",
            ("OPERATOR-SETTINGS",),
            "STATE-SCHEMA-CHANGED",
            mode="update",
            rocksdb=True,
        ),
    ),
    "Settings": (
        Written(
            "another number of shuffle partitions",
            "totals",
            "totals",
            ("PARTITIONS-IGNORED",),
            mode="update",
            conf={"spark.sql.shuffle.partitions": "5"},
        ),
        Written(
            "another state store provider",
            "totals",
            "totals",
            ("PROVIDER-IGNORED",),
            mode="update",
            conf=_ROCKSDB_PROVIDER,
        ),
        Written(
            "another format of state checkpoints",
            "totals",
            "totals",
            ("STATE-FORMAT",),
            "LOG-VERSION-NOT-THE-ONE",
            mode="update",
            rocksdb=True,
            conf={f"{_STATE}checkpointFormatVersion": "2"},
            note="`INVALID_LOG_VERSION.EXACT_MATCH_VERSION`, which also says that the other Spark was newer",
        ),
    ),
}
#: Changes of the guide that are not in the table because they cannot be written as such a query, and what is said of them.
NOT_WRITTEN = (
    (
        "another type or place of the sink",
        "not caught: the rehearsal puts a sink of its own in its place; what a sink holds and remembers is asked by "
        "`airflow-ckpt rewind` and `reset`",
    ),
    (
        "other code in foreach or foreachBatch",
        "not caught: it belongs to the sink; an application (`--application`) runs with it",
    ),
    (
        "other logic in a user's state function",
        "not caught by comparison; other rows show in a rehearsal with the old code",
    ),
    (
        "other Kafka topics (subscribe)",
        "caught by comparison: `SOURCE-TOPICS`; by rehearsal where Spark says that partitions are gone",
    ),
    ("another Delta source table", "caught by comparison: `SOURCE-TABLE`; by rehearsal: `DELTA-OTHER-TABLE`"),
    (
        "an older Spark (4.3.0 to 4.0.0 was run)",
        "offset log v2, commit log v3, row checksums, join format 4: refused, and caught by comparison as `NEEDS-NEWER-SPARK`; "
        "four kinds with none of these continued row-exact, comparison says `WRITTEN-BY-NEWER-SPARK`",
    ),
)
