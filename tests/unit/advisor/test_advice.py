"""What is recognised in real errors: recorded from Spark 3.5, 4.0 and 4.3, and as others have posted them."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_ckpt_provider.advisor.advice import recovery_advice
from airflow_ckpt_provider.advisor.condition import Remedy
from airflow_ckpt_provider.advisor.registry import CONDITIONS, WRAPPERS
from tests.samples.failing import CASES, RECORDED_OF, cases_of, recorded

RECORDED = [
    pytest.param(version, name, id=f"{version}-{name}")
    for version in RECORDED_OF
    for name in cases_of(version)
    if CASES[name].code(version)
]


@pytest.mark.parametrize("form", ["message", "trace"])
@pytest.mark.parametrize(("version", "name"), RECORDED)
def test_a_recorded_error_of_spark(version: str, name: str, form: str):
    said = recorded(version)[name][form]
    if not said:
        pytest.skip("this Spark gives no trace to Python")
    advice = recovery_advice(said)
    assert advice.condition, said
    assert advice.condition.code == CASES[name].code(version)


@pytest.mark.parametrize(("version", "name"), RECORDED)
def test_it_is_found_in_the_middle_of_a_log(version: str, name: str):
    said = recorded(version)[name]
    log = "\n".join(
        [
            "26/11/21 08:30:00 INFO SparkContext: Running Spark version " + version,
            "26/11/21 08:30:01 ERROR MicroBatchExecution: Query orders [id = 11111111-2222-3333-4444-555555555555, runId = "
            "66666666-7777-8888-9999-000000000000] terminated with error",
            "org.apache.spark.SparkException: [KAFKA_DATA_LOSS.START_OFFSET_RESET] Some data may have been lost",
            "26/11/21 08:31:00 INFO Retry: again",
            f"26/11/21 08:31:07 ERROR MicroBatchExecution: {said['message']}",
            said["trace"],
            "26/11/21 08:31:08 INFO ShutdownHookManager: Shutdown hook called",
        ]
    )
    advice = recovery_advice(log)
    assert advice.condition
    # Of errors that name their query, the last failure counts; without that all of the log is one.
    if "runId" in said["message"]:
        assert advice.condition.code == CASES[name].code(version)
    else:
        assert CASES[name].code(version) in {advice.condition.code, *(other.code for other in advice.also)}


def test_what_a_missing_delta_tells():
    advice = recovery_advice(recorded("4.0.0")["no_delta"]["message"])
    assert advice.name == "CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_NOT_EXISTS"
    assert advice.wrapped_in == ("STREAM_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR")
    assert advice.facts.checkpoint == "/srv/streams/no_delta/ck"
    assert advice.facts.path.endswith("/2.delta")
    assert len(advice.facts.query_id) == len(advice.facts.run_id) == 36
    assert advice.condition.remedy is Remedy.RESTORE
    commands = [step.command for step in advice.steps if step.command]
    assert ("doctor", "/srv/streams/no_delta/ck") in commands
    assert (
        "restore",
        "REPOSITORY",
        "latest",
        "/srv/streams/no_delta/ck",
        "--name",
        "ck",
        "--replace",
        "--sink",
        "SINK",
    ) in commands
    assert advice.evidence.startswith(": org.apache.spark.SparkException: [CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA")


def test_a_seal_is_named_before_the_malformed_log_it_is_for_spark():
    advice = recovery_advice(recorded("4.0.0")["sealed"]["message"])
    assert advice.condition.remedy is Remedy.UNSEAL
    assert advice.facts.plan == "7f3a91c2"
    assert ("unseal", "/srv/streams/sealed/ck", "--plan", "7f3a91c2") in [step.command for step in advice.steps]
    assert "LOG-MALFORMED" in [other.code for other in advice.also]


def test_the_users_own_error_is_not_blamed_on_the_checkpoint():
    advice = recovery_advice(recorded("4.0.0")["user_function"]["message"])
    assert advice.condition.code == "USER-FUNCTION"
    assert advice.do_not.startswith("Do not touch the checkpoint")


#: Wording of errors that need a broker, a table or a workspace; from Spark 3.5, Delta and public reports.
POSTED = [
    (
        "KAFKA-OFFSETS-GONE",
        "java.lang.IllegalStateException: Cannot fetch offset 13 (GroupId: spark-kafka-source-1, TopicPartition: orders-0). \n"
        "Some data may have been lost because they are not available in Kafka any more; either the\n data was aged out by Kafka "
        "or the topic may have been deleted before all the data in the\n topic was processed. If you don't want your streaming "
        'query to fail on such cases, set the\n source option "failOnDataLoss" to "false".',
    ),
    (
        "KAFKA-TOPIC-REMADE",
        "java.lang.IllegalStateException: Partition orders-0's offset was changed from 4711 to 12, some data may have been "
        "missed. \nSome data may have been lost because they are not available in Kafka any more; either the\n data was aged "
        "out",
    ),
    (
        # As Spark 4.0.0 says it to Python: without the name of the condition.
        "KAFKA-TOPIC-REMADE",
        "[STREAM_FAILED] Query [id = 0, runId = 1] terminated with exception: Some data may have been lost because they are not "
        "available in Kafka any more;\neither the data was aged out by Kafka or the topic may have been deleted before all the "
        "data in the\ntopic was processed.\nIf you don't want your streaming query to fail on such cases, set the source option "
        "failOnDataLoss to false.\nReason: Partition orders-a4697af873-0 offset was changed from 10 to 3. SQLSTATE: XXKST",
    ),
    (
        "DELTA-VERSIONS-GONE",
        "org.apache.spark.sql.delta.DeltaIllegalStateException: [DELTA_MISSING_FILES_UNEXPECTED_VERSION] Delta stream cannot "
        "resume from version 1; transaction log starts at 5. Log files may have been deleted by log retention.",
    ),
    (
        "SOURCE-FILE-GONE",
        "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file file:/t/part-00000.snappy.parquet. File does not "
        "exist. It is possible the underlying files have been updated. SQLSTATE: KD001\ncaused by: "
        "java.io.FileNotFoundException: File file:/t/part-00000.snappy.parquet does not exist",
    ),
    (
        "KAFKA-TOPIC-REMADE",
        "org.apache.spark.SparkException: [KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED] Some data may have been lost because they "
        "are not available in Kafka any more;\neither the data was aged out by Kafka or the topic may have been deleted before "
        "all the data in the\ntopic was processed.\nPartition orders-0 offset was changed from 4711 to 12.",
    ),
    (
        "KAFKA-OFFSETS-GONE",
        "[STREAM_FAILED] Query [id = 0, runId = 1] terminated with exception: [KAFKA_DATA_LOSS.START_OFFSET_RESET] Starting "
        "offset for orders-2 was 100 but consumer reset to 5000. SQLSTATE: 22000",
    ),
    (
        "KAFKA-UNREACHABLE",
        "Caused by: org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment. Call: "
        "describeTopics",
    ),
    (
        "TWO-WRITERS",
        "java.io.IOException: Multiple streaming queries are concurrently using hdfs://nn/ck/orders/offsets/3952\n"
        "Caused by: org.apache.hadoop.fs.FileAlreadyExistsException: Rename destination exists",
    ),
    (
        "DELTA-OTHER-TABLE",
        "[DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE] The streaming query was reading from an unexpected Delta table (id = "
        "'b'). It used to read from another Delta table (id = 'a') according to checkpoint.",
    ),
    (
        "DELTA-VERSIONS-GONE",
        "io.delta.exceptions.DeltaIllegalStateException: [DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE] If you never deleted "
        "it, it's likely your query is lagging behind. Please delete its checkpoint to restart from scratch.",
    ),
    (
        "DELTA-ROWS-CHANGED",
        "java.lang.UnsupportedOperationException: Detected a data update (for example part-0.snappy.parquet) in the source "
        "table at version 7. This is currently not supported.",
    ),
    (
        "DELTA-SCHEMA-EVOLVED",
        "[DELTA_STREAMING_METADATA_EVOLUTION] The schema, table configuration or protocol changed",
    ),
    (
        "STATE-FILE-MISSING",
        "java.lang.IllegalStateException: Error reading delta file hdfs://nn/ck/orders/state/0/3/14.delta of "
        "HDFSStateStoreProvider[id = (op=0,part=3),dir = hdfs://nn/ck/orders/state/0/3]: "
        "hdfs://nn/ck/orders/state/0/3/14.delta does not exist",
    ),
    (
        "STATE-SCHEMA-CHANGED",
        "org.apache.spark.sql.execution.streaming.state.StateSchemaNotCompatible: Provided schema doesn't match to the schema "
        "for existing state! Please note that Spark allow difference of field name",
    ),
    ("LOG-NOT-WRITTEN", "java.nio.file.AccessDeniedException: s3a://lake/ck/orders/offsets/12: PUT 0-byte object: 403"),
    (
        "LOG-NOT-WRITTEN",
        "java.io.IOException: No space left on device\n\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)\n\tat "
        "org.apache.spark.sql.execution.streaming.CheckpointFileManager$RenameBasedFSDataOutputStream.close",
    ),
    (
        "LOG-NOT-WRITTEN",
        "com.amazonaws.services.s3.model.AmazonS3Exception: Access Denied (Service: Amazon S3; Status Code: 403; Error Code: "
        "AccessDenied)\n\tat org.apache.spark.sql.execution.streaming.HDFSMetadataLog.write(HDFSMetadataLog.scala:1)",
    ),
    (
        "STATE-RESOURCES",
        "[CANNOT_LOAD_STATE_STORE.UNRELEASED_THREAD_ERROR] StateStoreId: RocksDB instance could not be acquired by [ThreadId: "
        "Some(69)] for operationType=load_store",
    ),
    ("STATE-NOT-LOADED", "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred during loading state."),
    (
        "PATH-ESCAPED",
        "Error: we detected a possible problem with the location of your checkpoint and you likely need to move",
    ),
    (
        "PIPELINE-BUSY",
        '{"error_code": "CONFLICT", "message": "An active update u-1 already exists for pipeline \'p-1\'."}',
    ),
    ("RESOURCES", "java.lang.OutOfMemoryError: Java heap space"),
    (
        "LOG-NOT-WRITTEN",
        "com.google.cloud.hadoop.repackaged.gcs.com.google.api.client.googleapis.json.GoogleJsonResponseException: 403 "
        "Forbidden\nPOST https://storage.googleapis.com/upload/storage/v1/b/lake/o?name=ck/orders/offsets/12\n\tat "
        "org.apache.spark.sql.execution.streaming.CheckpointFileManager$.create(CheckpointFileManager.scala:100)",
    ),
    (
        "LOG-NOT-WRITTEN",
        'Operation failed: "Server failed to authenticate the request.", 403, HEAD, '
        "https://lake.dfs.core.windows.net/ck/orders?upn=false\n\tat "
        "org.apache.spark.sql.execution.streaming.CheckpointFileManager.create(CheckpointFileManager.scala:100)",
    ),
    (
        "LOG-NOT-WRITTEN",
        "com.amazonaws.services.s3.model.AmazonS3Exception: Please reduce your request rate. (Service: Amazon S3; Status "
        "Code: 503; Error Code: SlowDown)\n\tat org.apache.spark.sql.execution.streaming.CheckpointFileManager.list",
    ),
    ("LOG-NOT-WRITTEN", "java.io.FileNotFoundException: /srv/ck/orders/offsets/.12.tmp (Permission denied)"),
    (
        "STATE-NOT-WRITTEN",
        "org.apache.spark.SparkException: Job aborted due to stage failure: org.rocksdb.RocksDBException: While appending to "
        "file: /tmp/spark-1/StateStoreId(opId=0,partId=0,name=default)-1/workingDir/000012.sst: No space left on device",
    ),
    (
        "STORAGE-REFUSED",
        "software.amazon.awssdk.services.s3.model.S3Exception: The provided token has expired. (Service: S3, Status Code: 400)",
    ),
    (
        "STORAGE-REFUSED",
        "com.amazonaws.services.s3.model.AmazonS3Exception: Please reduce your request rate. (Service: Amazon S3; Status "
        "Code: 503; Error Code: SlowDown)",
    ),
    (
        "STORAGE-REFUSED",
        "software.amazon.awssdk.services.s3.model.S3Exception: Access Denied (Service: S3, Status Code: 403, Request ID: 1)",
    ),
    (
        "STORAGE-REFUSED",
        "org.apache.hadoop.security.AccessControlException: Permission denied: user=spark, access=WRITE",
    ),
    (
        "STORAGE-REFUSED",
        'Operation failed: "Server failed to authenticate the request.", 403, HEAD, https://lake.dfs.core.windows.net/ck',
    ),
    ("STORAGE-REFUSED", "Caused by: java.io.IOException: No space left on device"),
    (
        "ICEBERG-HISTORY-GONE",
        "java.lang.IllegalStateException: Cannot load current offset at snapshot 6207395041398421000, the snapshot was expired "
        "or removed",
    ),
    (
        "ICEBERG-ROLLED-BACK",
        'java.lang.NullPointerException: Cannot invoke "java.lang.Long.longValue()" because the return value of '
        '"org.apache.iceberg.Snapshot.parentId()" is null',
    ),
    (
        "ICEBERG-ROLLED-BACK",
        "java.lang.IllegalStateException: Cannot find snapshot after 77: not an ancestor of table's current snapshot",
    ),
    (
        "ICEBERG-ROWS-CHANGED",
        "java.lang.IllegalStateException: Cannot process overwrite snapshot: 5, to ignore overwrites, set "
        "streaming-skip-overwrite-snapshots=true",
    ),
]


@pytest.mark.parametrize(("code", "text"), POSTED, ids=[f"{code}-{n}" for n, (code, _) in enumerate(POSTED)])
def test_a_posted_error(code: str, text: str):
    advice = recovery_advice(text)
    assert advice.condition, text
    assert advice.condition.code == code


@pytest.mark.parametrize(
    ("text", "checkpoint", "path"),
    [
        ("Failed to read log file file:/data/ck/orders/offsets/5.", "/data/ck/orders", "offsets/5"),
        ("Failed to read log file s3a://lake/ck/orders/offsets/5. ", "s3a://lake/ck/orders", "offsets/5"),
        (
            "Error reading delta file abfss://c@acc.dfs.core.windows.net/ck/state/0/11/2.delta of X: does not exist",
            "abfss://c@acc.dfs.core.windows.net/ck",
            "state/0/11/2.delta",
        ),
        ("dbfs:/ck/orders/commits/7", "dbfs:/ck/orders", "commits/7"),
        ("hdfs://nn:8020/ck/sources/0/12.compact", "hdfs://nn:8020/ck", "sources/0/12"),
        # Half of a path would be another place.
        ("Failed to read log file file:/data/my ck/orders/offsets/5.", "", ""),
        ("checkpointLocation=/data/my ck/orders, x]", "/data/my ck/orders", ""),
        ("nothing of the kind", "", ""),
    ],
)
def test_where_the_checkpoint_is(text: str, checkpoint: str, path: str):
    facts = recovery_advice(text).facts
    assert (facts.checkpoint, facts.path) == (checkpoint, path)


def test_the_topic_is_in_the_command():
    advice = recovery_advice(
        "[KAFKA_DATA_LOSS.START_OFFSET_RESET] Starting offset for orders-2 was 100 but consumer reset to 9"
    )
    assert advice.facts.topic == "orders"
    assert any("--entity-name orders " in step.call for step in advice.steps)


def test_a_store_that_refuses_is_fixed_and_the_query_started_again():
    advice = recovery_advice("Caused by: java.io.IOException: No space left on device")
    assert advice.condition.remedy is Remedy.FIX_STORAGE
    assert [step.text for step in advice.steps] == [
        "Find the place that the error names, and fix its rights, credentials, space or quota.",
        "Then start the query again: a batch that was not committed is run again.",
    ]


def test_a_user_function_that_a_store_refuses_is_not_the_only_thing_named():
    advice = recovery_advice(
        "[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in foreach batch sink.\n"
        "Caused by: java.nio.file.AccessDeniedException: s3a://lake/tables/orders: getFileStatus"
    )
    assert {advice.condition.code, *(other.code for other in advice.also)} == {"USER-FUNCTION", "STORAGE-REFUSED"}


def test_a_batch_that_is_too_large_is_planned_again():
    advice = recovery_advice(
        "java.lang.OutOfMemoryError: Java heap space\nat x: file:/lake/checkpoints/orders/offsets/3"
    )
    command = ("rewind", "/lake/checkpoints/orders", "--to-latest", "--sink", "SINK")
    (step,) = [step for step in advice.steps if step.command == command]
    assert "Spark runs the batch that it has logged again up to its logged end" in step.text


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("[DELTA_VERSION_NOT_FOUND] x", "delta.table.0=TABLE"),
        ("Cannot find next snapshot: as Snapshot 7 expired", "iceberg.table.0=TABLE"),
    ],
)
def test_a_guard_is_told_the_table(text: str, option: str):
    commands = [step.command for step in recovery_advice(text).steps if step.command[:1] == ("guard",)]
    assert commands == [("guard", "CHECKPOINT", "--option", option)]


@pytest.mark.parametrize(
    "text",
    [
        "all is well",
        "PermissionError: [Errno 13] Permission denied: '/home/me/.cache/model'",
        "requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://api.example.com/rates",
        'Operation failed: "the order was cancelled", 17 rows',
        "the batch has 403 rows, and the one before had 503",
        'java.security.AccessControlException: access denied ("java.lang.RuntimePermission" "exitVM")',
        "org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012",
        "the function state/0 of batch 4 is fine and offsets/5 exists",
        "{}",
        "[]",
        '{"events": []}',
        "{broken json",
        "0" * 100_000,
    ],
)
def test_what_is_not_known_is_said_to_be_unknown(text: str):
    advice = recovery_advice(text)
    assert not advice.recognised
    assert advice.cause.startswith("UNKNOWN: ")
    assert advice.to_json()["code"] == "UNKNOWN"
    # Even then nobody is to delete anything.
    assert "Do not delete the checkpoint" in advice.do_not


def test_an_unknown_name_is_repeated():
    advice = recovery_advice("org.apache.spark.SparkException: [BRAND_NEW_CONDITION] Something else happened.")
    assert advice.name == "BRAND_NEW_CONDITION"
    assert "BRAND_NEW_CONDITION" in advice.cause


def test_an_exception_with_its_causes():
    try:
        try:
            raise ValueError("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log.")
        except ValueError as e:
            raise RuntimeError("the stream failed") from e
    except RuntimeError as e:
        advice = recovery_advice(e)
    assert advice.condition.code == "TWO-WRITERS"


class Throwable:
    """What py4j hands out for an exception of Java."""

    def __init__(self, text: str, cause: Throwable | None = None) -> None:
        self.text, self.cause = text, cause

    def toString(self) -> str:  # noqa: N802
        return self.text

    def getCause(self) -> Throwable | None:  # noqa: N802
        return self.cause


def test_an_exception_whose_causes_are_javas():
    error = RuntimeError("[STREAM_FAILED] Query terminated")
    error._origin = Throwable(
        "StreamingQueryException", Throwable("[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key")
    )
    advice = recovery_advice(error)
    assert advice.condition.code == "STATE-SCHEMA-CHANGED"


def test_a_chain_that_bites_its_tail_ends():
    error = RuntimeError("[MALFORMED_LOG_FILE] x")
    throwable = Throwable("loop")
    throwable.cause = throwable
    error._origin = throwable
    error.__cause__ = error
    assert recovery_advice(error).condition.code == "LOG-MALFORMED"


def test_a_java_that_is_gone_leaves_the_message():
    class Gone:
        def toString(self) -> str:  # noqa: N802
            raise ConnectionRefusedError("py4j")

    error = RuntimeError("[MALFORMED_LOG_FILE] x")
    error._origin = Gone()
    assert recovery_advice(error).condition.code == "LOG-MALFORMED"


EVENT = {
    "id": "e-1",
    "event_type": "flow_progress",
    "level": "ERROR",
    "message": "Flow 'orders_flow' has FAILED.",
    "timestamp": "2026-08-21T12:00:03.000Z",
    "origin": {
        "pipeline_id": "p-1",
        "update_id": "u-1",
        "flow_name": "main.s.orders_flow",
        "dataset_name": "main.s.orders",
    },
    "error": {
        "fatal": True,
        "exceptions": [
            {
                "class_name": "org.apache.spark.sql.streaming.StreamingQueryException",
                "message": "[STREAM_FAILED] Query [id = x] terminated with exception",
                "stack": [],
            },
            {
                "class_name": "org.apache.spark.sql.execution.streaming.state.StateSchemaNotCompatible",
                "message": "[STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA] Streaming stateful operator name does not",
                "stack": [],
            },
        ],
    },
}
OTHER = {
    **EVENT,
    "timestamp": "2026-08-21T11:00:00.000Z",
    "error": {"exceptions": [{"class_name": "x", "message": "boom"}]},
}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(EVENT),
        json.dumps(
            {"events": [EVENT, {"message": "Update is FAILED", "timestamp": "2026-08-21T12:00:04.000Z"}, OTHER]}
        ),
        json.dumps([OTHER, EVENT]),
        f"{json.dumps(OTHER)}\n{json.dumps(EVENT)}\n",
    ],
    ids=["one", "page", "list", "lines"],
)
def test_an_event_of_a_pipeline(text: str):
    advice = recovery_advice(text)
    assert advice.condition.code == "OPERATORS-CHANGED"
    assert (advice.facts.pipeline_id, advice.facts.flow) == ("p-1", "main.s.orders_flow")
    # A checkpoint inside a pipeline cannot be restored from outside: the flow is reset by a call.
    assert all(not step.command for step in advice.steps)
    (call,) = [step.call for step in advice.steps if "reset_checkpoint_selection" in step.call]
    assert '"reset_checkpoint_selection": ["main.s.orders_flow"]' in call


def test_an_event_of_a_pipeline_that_is_not_known():
    advice = recovery_advice(json.dumps(OTHER))
    assert not advice.recognised
    assert any("p-1" in step.call for step in advice.steps)


def test_the_text_holds_all_of_it():
    text = recovery_advice(recorded("4.0.0")["no_delta"]["message"]).to_text()
    assert text.startswith("STATE-FILE-MISSING (CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_NOT_EXISTS): ")
    assert "Do not: Do not delete state/" in text
    assert "$ airflow-ckpt doctor /srv/streams/no_delta/ck" in text
    assert "CheckpointRestoreOperator" in text


WORDS = st.sampled_from(
    [
        *(name for condition in CONDITIONS for name in condition.names),
        *WRAPPERS,
        "{",
        "}",
        '{"events": [',
        "/data/ck/state/0/1/2.delta",
        "Caused by: java.io.EOFException",
        "\tat org.apache.spark.sql.execution.streaming.state.X.y(X.scala:1)",
        "batch 4 doesn't exist",
        "\n",
        "runId = 00000000-0000-0000-0000-000000000000",
        "terminated with exception",
    ]
)


@settings(deadline=None, database=None, max_examples=200)
@given(st.one_of(st.text(max_size=400), st.lists(st.one_of(WORDS, st.text(max_size=20)), max_size=30).map(" ".join)))
def test_any_text_gets_an_answer(text: str):
    advice = recovery_advice(text)
    document = json.loads(json.dumps(advice.to_json()))
    assert document["recognised"] is advice.recognised
    assert advice.to_text().startswith(document["code"])
    assert all(step["text"] for step in document["steps"])


def test_a_large_log_is_read_in_a_breath():
    noise = "".join(
        f"26/11/21 08:30:00 INFO BlockManagerInfo: Added broadcast_{i}_piece0 on host (size: 5.0 KiB) file:/data/x/{i}.delta\n"
        f"java.io.EOFException: {i}\n\tat org.apache.spark.x.Y.z(Y.scala:{i})\n"
        for i in range(20_000)
    )
    began = time.process_time()
    advice = recovery_advice(noise + recorded("4.0.0")["no_delta"]["message"] + noise)
    assert advice.condition
    assert advice.condition.code == "STATE-FILE-MISSING"
    assert time.process_time() - began < 20, "about two seconds for 7 MB"
