"""The registry of changes. ``docs/compatibility.md`` is made from it.

What the page's tables of changes show was run on Spark 4.0.0, and so were checkpoints of 4.3.0. Topics, tables, upgrades and
Databricks were not: there it is what their documentation and code say.
"""

from __future__ import annotations

from airflow_ckpt_provider.upgrade.compatibility.change import ChangeKind, Effect

_NOT_MATCH = "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA"
_NEW_CHECKPOINT = (
    "give the new code a new checkpoint at the kept position (`airflow-ckpt reset`), or leave the change out"
)
_REHEARSE = "compare the rows of old and new in a rehearsal (`--old-build`) before it is deployed to production"

OPERATORS_ADDED = ChangeKind(
    "OPERATORS-ADDED",
    Effect.FORBIDDEN,
    "The new code has stateful operators that the checkpoint has no state for.",
    f"{_NOT_MATCH}; Spark 3.5 and older do not look and begin them with no state, or with another operator's",
    _NEW_CHECKPOINT,
)
OPERATORS_BEGUN = ChangeKind(
    "OPERATORS-BEGUN",
    Effect.FORBIDDEN,
    "The checkpoint is that of a query without state, and the new code has stateful operators.",
    "CANNOT_LOAD_STATE_STORE: the first batch reads a version of state that nobody has written; since 4.2 "
    "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY",
    _NEW_CHECKPOINT,
)
OPERATORS_REMOVED = ChangeKind(
    "OPERATORS-REMOVED",
    Effect.FORBIDDEN,
    "The checkpoint has state of operators that the new code does not have.",
    f"{_NOT_MATCH}; Spark 3.5 and older do not look",
    _NEW_CHECKPOINT,
)
OPERATORS_ALL_REMOVED = ChangeKind(
    "OPERATORS-ALL-REMOVED",
    Effect.FORBIDDEN,
    "The checkpoint has state and the new code is without any.",
    f"{_NOT_MATCH}; Spark 3.5 and older do not look and leave the state where it is",
    _NEW_CHECKPOINT,
)
OPERATORS_CHANGED = ChangeKind(
    "OPERATORS-CHANGED",
    Effect.FORBIDDEN,
    "A stateful operator is of another type, or is at another place of the plan: state goes by the operator's number.",
    f"{_NOT_MATCH}; Spark 3.5 and older do not look and take one operator's state for another's",
    _NEW_CHECKPOINT,
)
OPERATOR_SETTINGS = ChangeKind(
    "OPERATOR-SETTINGS",
    Effect.FORBIDDEN,
    "Time mode or output mode of transformWithState has changed.",
    "STATE_STORE_INVALID_CONFIG_AFTER_RESTART",
    "put the former mode back, or " + _NEW_CHECKPOINT,
)
STATE_KEYS = ChangeKind(
    "STATE-KEYS",
    Effect.FORBIDDEN,
    "Keys of the state have another number of columns or other types: grouping keys, columns of deduplication or of a join.",
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
    _NEW_CHECKPOINT,
)
STATE_VALUES = ChangeKind(
    "STATE-VALUES",
    Effect.FORBIDDEN,
    "Values of the state have another number of columns or other types: aggregates, columns of a join, a user's state.",
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
    _NEW_CHECKPOINT,
)
STATE_VALUES_UNCHECKED = ChangeKind(
    "STATE-VALUES-UNCHECKED",
    Effect.IGNORED,
    "Values of an operator that keeps none (deduplication) have other types.",
    "does not check them: only keys are kept",
    "nothing",
)
STATE_VALUES_EVOLVED = ChangeKind(
    "STATE-VALUES-EVOLVED",
    Effect.UNKNOWN,
    "A state variable's value has another schema, and the state is encoded as Avro, which may evolve.",
    "adds, removes, reorders and widens columns; STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION for anything else",
    "rehearse it",
)
STATE_NAMES = ChangeKind(
    "STATE-NAMES",
    Effect.UNNOTICED,
    "Columns of the state have other names and the same types.",
    "compares types by position and not names: it continues, and takes what the old columns held for the new ones",
    "fine if the columns were only renamed. If they are others: " + _NEW_CHECKPOINT,
)
STATE_STORES = ChangeKind(
    "STATE-STORES",
    Effect.UNKNOWN,
    "An operator has other stores than the checkpoint.",
    "depends on the operator",
    "rehearse it",
)
VARIABLE_ADDED = ChangeKind(
    "VARIABLE-ADDED",
    Effect.ALLOWED,
    "A state variable of transformWithState is new.",
    "begins it empty",
    "see that the code takes an empty variable of a known key for what it is",
)
VARIABLE_REMOVED = ChangeKind(
    "VARIABLE-REMOVED",
    Effect.ALLOWED,
    "A state variable of transformWithState is gone.",
    "drops its state: a return to the old code later begins it empty",
    "keep a backup from before",
)
VARIABLE_TYPE = ChangeKind(
    "VARIABLE-TYPE",
    Effect.FORBIDDEN,
    "A state variable of transformWithState is of another type (value, list, map).",
    "STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE",
    "give the variable a new name, or " + _NEW_CHECKPOINT,
)
SCHEMA_UNKNOWN = ChangeKind(
    "SCHEMA-UNKNOWN",
    Effect.UNKNOWN,
    "The schema of an operator's state cannot be compared.",
    "checks it at the start",
    "rehearse it",
)
SOURCES_COUNT = ChangeKind(
    "SOURCES-COUNT",
    Effect.FORBIDDEN,
    "The new code has another number of sources.",
    "AssertionError: There are [n] sources in the checkpoint offsets and now there are [m] sources requested by the query",
    _NEW_CHECKPOINT,
)
SOURCES_ORDER = ChangeKind(
    "SOURCES-ORDER",
    Effect.UNNOTICED,
    "The same sources are in another order: positions go by the place in the plan.",
    "gives each source the position of another: file sources fail (Wrong basePath), others skip or repeat rows",
    "put the sources back into the order of the checkpoint",
)
SOURCES_NAMES = ChangeKind(
    "SOURCES-NAMES",
    Effect.UNKNOWN,
    "Sources have other names, or only one of the two codes names them: a position belongs to a name (Spark 4.2).",
    "depends on the release",
    "give the sources the names that the checkpoint has, or rehearse it",
)
SOURCE_KIND = ChangeKind(
    "SOURCE-KIND",
    Effect.FORBIDDEN,
    "A source is of another kind.",
    "fails when the source reads a position that is not its own; which error depends on the source",
    _NEW_CHECKPOINT,
)
SOURCE_TOPICS = ChangeKind(
    "SOURCE-TOPICS",
    Effect.UNNOTICED,
    "A Kafka source reads other topics.",
    "reads new topics from their beginning; of topics that are gone it says partitions are gone (failOnDataLoss), or nothing",
    "meant so? then see what the new topics bring. Else put the topics back, or " + _NEW_CHECKPOINT,
)
SOURCE_TABLE = ChangeKind(
    "SOURCE-TABLE",
    Effect.FORBIDDEN,
    "A Delta source reads another table.",
    "DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE",
    _NEW_CHECKPOINT,
)
SOURCE_PATH = ChangeKind(
    "SOURCE-PATH",
    Effect.FORBIDDEN,
    "A file source reads another directory.",
    "IllegalArgumentException: Wrong basePath … for the root path, when it reads the last batch again",
    "put the directory back, or " + _NEW_CHECKPOINT,
)
SOURCE_UNKNOWN = ChangeKind(
    "SOURCE-UNKNOWN",
    Effect.UNKNOWN,
    "Whether a source reads the same cannot be determined from the offset log.",
    "depends on the source",
    "rehearse it",
)
PARTITIONS_IGNORED = ChangeKind(
    "PARTITIONS-IGNORED",
    Effect.IGNORED,
    "spark.sql.shuffle.partitions differs: the number of state partitions is that of the checkpoint.",
    "uses the checkpoint's number (a warning in the log)",
    "nothing; for another number repartition the state offline (Spark 4.2), or take a new checkpoint",
)
PROVIDER_IGNORED = ChangeKind(
    "PROVIDER-IGNORED",
    Effect.IGNORED,
    "The state store provider differs: state stays in the checkpoint's.",
    "uses the checkpoint's provider (a warning in the log)",
    "nothing; for another provider take a new checkpoint",
)
SETTING_IGNORED = ChangeKind(
    "SETTING-IGNORED",
    Effect.IGNORED,
    "A setting that is pinned in the offset log differs.",
    "uses the checkpoint's value (a warning in the log)",
    "nothing",
)
SETTING_DEFAULT = ChangeKind(
    "SETTING-DEFAULT",
    Effect.IGNORED,
    "A setting that the new code's Spark pins is not in the checkpoint, which an older Spark has written.",
    "uses a fixed default, whatever the session says",
    "nothing",
)
STATE_FORMAT = ChangeKind(
    "STATE-FORMAT",
    Effect.FORBIDDEN,
    "stateStore.checkpointFormatVersion differs from that of the checkpoint's newest commit.",
    "INVALID_LOG_VERSION.EXACT_MATCH_VERSION at commits/N: Spark 4.0 reads the commit log by the session's value; 4.3 goes by "
    "the commit and ignores the session",
    "set stateStore.checkpointFormatVersion to that of the checkpoint",
)
NEEDS_NEWER_SPARK = ChangeKind(
    "NEEDS-NEWER-SPARK",
    Effect.FORBIDDEN,
    "A file of the checkpoint is in a form that the new code's Spark does not know: Spark would be downgraded.",
    "INVALID_LOG_VERSION or MALFORMED_LOG_FILE for logs, INVALID_CHANGE_LOG_READER_VERSION or a failing load for state",
    "run the new code on the Spark that wrote the checkpoint or a newer one, or restore a backup from before the upgrade",
)
WRITTEN_BY_NEWER_SPARK = ChangeKind(
    "WRITTEN-BY-NEWER-SPARK",
    Effect.UNKNOWN,
    "A newer Spark than that of the new code has written the checkpoint; its files are of forms that both know.",
    "does not know the settings that the newer one has pinned, and continues without them; Spark promises nothing for "
    "a downgrade",
    "rehearse it",
)
SPARK_NEWER = ChangeKind(
    "SPARK-NEWER",
    Effect.ALLOWED,
    "The new code runs on a newer Spark than the checkpoint was written by.",
    "reads older checkpoints; what it writes from then on the old Spark may not read",
    "take a backup before, for the way back",
)
DATABRICKS = ChangeKind(
    "DATABRICKS-RUNTIME",
    Effect.UNKNOWN,
    "The new code runs on a Databricks Runtime, which has features of its own and of later Sparks.",
    "what a Databricks Runtime writes does not follow from the version of Spark it names",
    "rehearse on the very runtime that it will run on",
)
OUTPUT_MODE = ChangeKind(
    "OUTPUT-MODE",
    Effect.UNNOTICED,
    "The output mode is another than that of the old code.",
    "does not look: rows that were given out in one way continue in the other",
    _REHEARSE,
)
PLAN_CHANGED = ChangeKind(
    "PLAN-CHANGED",
    Effect.UNNOTICED,
    "A stateful part of the plan differs from that of the old code, or is at another place: type of a join, condition, "
    "watermark, time-out, aggregate.",
    "does not keep it in the checkpoint and does not look: old state is used by new rules",
    _REHEARSE,
)

PLAN_UNKNOWN = ChangeKind(
    "PLAN-UNKNOWN",
    Effect.UNKNOWN,
    "The stateful parts of the plan cannot be compared: a checkpoint does not hold windows, conditions, watermarks, output "
    "mode, and the old code was not described, or the description is of another query.",
    "does not look: old state is used by new rules where they differ",
    "give the description of the old code too (`--old`, `old_description`), or rehearse it with the old code",
)

KINDS = tuple(kind for kind in list(globals().values()) if isinstance(kind, ChangeKind))
