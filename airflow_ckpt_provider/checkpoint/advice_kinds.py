"""The registry of advice: every kind of finding that :mod:`.advice` has, once, for code and documentation."""

from __future__ import annotations

from airflow_ckpt_provider.checkpoint.findings import FindingKind, Severity


def _kind(code: str, meaning: str, reaction: str, remedy: str) -> FindingKind:
    return FindingKind(code, Severity.ADVICE, meaning, reaction, remedy)


EPHEMERAL_STORAGE = _kind(
    "EPHEMERAL-STORAGE",
    "The checkpoint lies on storage that goes with its machine or workspace: a local disk, or the root of DBFS.",
    "A new machine begins with an empty directory: a new query id, every row of the source again, state lost.",
    "Put it on an object store, HDFS or a volume: stop the query, restore a backup there, start it with the new "
    "checkpointLocation.",
)
PATH_NOT_TIED = _kind(
    "PATH-NOT-TIED",
    "Nothing in the checkpoint's path names the target that the query writes to.",
    "None by itself. A second query gets the same directory one day, or somebody cleans up one that nobody can place.",
    "Name the directory after the target, or put it below it (<table>/_checkpoints/<query>), at the next move.",
)
SHARED_PREFIX = _kind(
    "SHARED-PREFIX",
    "Two checkpoints share one path: one lies inside the other.",
    "None by itself. Whoever copies, deletes or expires the outer one does the same to the inner one. A backup of the outer one "
    "holds the inner one too; a restore, rewind or reset that would remove or write over files of the inner one is refused.",
    "Give each query a directory of its own beside the others.",
)
LOGS_NOT_PURGED = _kind(
    "LOGS-NOT-PURGED",
    "offsets/ holds many more batches than Spark keeps by default.",
    "Every start and every batch lists them; nothing else.",
    "See spark.sql.streaming.minBatchesToRetain; if it is not set that high, see in the driver's log why entries are not "
    "purged (rights to delete, a copy that brought them).",
)
STATE_NOT_MAINTAINED = _kind(
    "STATE-NOT-MAINTAINED",
    "state/ reaches much further back than offsets/: old versions are not deleted.",
    "The checkpoint grows without its state growing; Spark's maintenance lists more and more files.",
    "See in the executors' logs why maintenance fails or never runs (rights to delete, executors that live shorter "
    "than stateStore.maintenanceInterval); stop the query and restore a backup, which holds only what is needed.",
)
STATE_HISTORY_LARGE = _kind(
    "STATE-HISTORY-LARGE",
    "Most of state/ is history: many times what the newest version needs.",
    "Storage and listing cost; nothing else.",
    "Lower spark.sql.streaming.minBatchesToRetain, as far as you ever want to rewind, and keep backups for what is older.",
)
SOURCE_LOG_LARGE = _kind(
    "SOURCE-LOG-LARGE",
    "The log of a file source holds every file it ever read and has become large.",
    "Spark reads it whole at each start and writes it whole at each compaction; batches become slower and the driver needs "
    "more memory.",
    "Set maxFileAge or cleanSource so that old files leave it, or start over with a new checkpoint behind the newest file.",
)
STATE_GROWS = _kind(
    "STATE-GROWS",
    "State grows while the watermark does not advance.",
    "Nothing leaves the state: batches become slower and executors run out of memory.",
    "See which source sends no events or events without time (the slowest of several sets the watermark), or give the query "
    "a watermark or a TTL.",
)
PARTITION_IMBALANCE = _kind(
    "PARTITION-IMBALANCE",
    "One partition holds much more of the state than the others.",
    "Each batch takes as long as its largest partition.",
    "See which key it is; a key that is null or a default is often filtered or salted. More partitions do not help one key.",
)
HDFS_STATE_LARGE = _kind(
    "HDFS-STATE-LARGE",
    "HDFS-backed state, which is on the heap of the executors, has a size that calls for RocksDB.",
    "Long garbage collections, then executors that run out of memory; each snapshot is written whole.",
    "Use RocksDBStateStoreProvider with changelog checkpointing. The provider is fixed in the checkpoint: the query has to "
    "start with a new one.",
)
SLOWER_THAN_TRIGGER = _kind(
    "SLOWER-THAN-TRIGGER",
    "Batches take longer than the trigger interval.",
    "Each next batch starts late and the query falls behind its sources.",
    "Limit the batches (maxOffsetsPerTrigger, maxFilesPerTrigger), give it more cores, or lengthen the trigger.",
)
#: All advice there is, in the order of the documentation.
ADVICE = (
    EPHEMERAL_STORAGE,
    PATH_NOT_TIED,
    SHARED_PREFIX,
    LOGS_NOT_PURGED,
    STATE_NOT_MAINTAINED,
    STATE_HISTORY_LARGE,
    SOURCE_LOG_LARGE,
    STATE_GROWS,
    PARTITION_IMBALANCE,
    HDFS_STATE_LARGE,
    SLOWER_THAN_TRIGGER,
)
