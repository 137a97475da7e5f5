"""The registry fits the parser, the operators, the error conditions of real Sparks, and its page in the documentation."""

from __future__ import annotations

import json
import re
import zipfile
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

from airflow_ckpt_provider import operators
from airflow_ckpt_provider.advisor.advice import recovery_advice
from airflow_ckpt_provider.advisor.condition import ErrorCondition, Remedy
from airflow_ckpt_provider.advisor.facts import Facts
from airflow_ckpt_provider.advisor.pipeline_conditions import RESET_FLOW
from airflow_ckpt_provider.advisor.registry import CONDITIONS, WRAPPERS, by_name
from airflow_ckpt_provider.checkpoint.advice_kinds import ADVICE
from airflow_ckpt_provider.cli.definition import VERBS
from dev import make_wordings
from dev.reference_pages import PAGES, text
from tests.support.command_lines import parsed

DOCS = Path(__file__).parents[3] / "docs"
each_condition = pytest.mark.parametrize("condition", CONDITIONS, ids=lambda c: c.code)
#: Brought by Spark 4.1 to 4.3.
LATER_THAN_4_0 = {
    "CANNOT_LOAD_CHECKPOINT_FILE_MANAGER",
    "CANNOT_LOAD_STATE_STORE.AUTO_SNAPSHOT_REPAIR_FAILED",
    "CANNOT_LOAD_STATE_STORE.FAILED_TO_GET_CHANGELOG_WRITER",
    "CANNOT_LOAD_STATE_STORE.INVALID_CHECKPOINT_LINEAGE",
    "CANNOT_LOAD_STATE_STORE.KEY_ROW_FORMAT_VALIDATION_FAILURE",
    "CANNOT_LOAD_STATE_STORE.VALUE_ROW_FORMAT_VALIDATION_FAILURE",
    "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED",
    "MALFORMED_STATE_IN_RATE_PER_MICRO_BATCH_SOURCE",
    "STATE_REPARTITION_INVALID_CHECKPOINT",
    "STATE_REWRITER_INVALID_CHECKPOINT",
    "STATE_STORE_BASE_CHECKPOINT_ID_MISMATCH",
    "STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY",
    "STATE_STORE_COMMIT_VALIDATION_FAILED",
    "STATE_STORE_INVALID_STAMP",
    "STATE_STORE_INVALID_STATE_MACHINE_TRANSITION",
    "STATE_STORE_ROW_CHECKSUM_VERIFICATION_FAILED",
    "STATE_STORE_UNEXPECTED_EMPTY_FILE_IN_ROCKSDB_ZIP",
    "STDS_MIXED_CHECKPOINT_FORMAT_VERSIONS_NOT_SUPPORTED",
    "STREAMING_ASYNC_OPERATION_FAILED",
    "STREAMING_CHECKPOINT_LOG_WRITE_FAILURE",
    "STREAMING_CHECKPOINT_MISSING_METADATA_FILE",
    "STREAMING_QUERY_EVOLUTION_ERROR",
    "STREAMING_REAL_TIME_MODE",
    "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY",
    "STREAMING_UNFINISHED_REPARTITION_DETECTED",
    "STREAM_STREAM_JOIN_INCOMPATIBLE_STATE_STORE_CONFIGS",
    "STREAM_STREAM_JOIN_INCONSISTENT_STATE",
    "TRANSFORM_WITH_STATE_USER_FUNCTION_ERROR",
}
#: Named in Spark 3.5 and otherwise since.
BEFORE_4_0 = {
    "INCORRECT_END_OFFSET",
    "_LEGACY_ERROR_TEMP_2259",
}
#: In no jar here: Databricks' own, those of other versions of Delta, and words that only look like names.
ELSEWHERE = {
    "DELTA_DEEP_CLONE_MV_ST_ERROR",
    "DELTA_FILE_NOT_FOUND_DETAILED",
    "INVALID_REFRESH_SELECTION",
    "INVALID_REWIND_SPECIFICATION",
    "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
    "STREAMING_CHECKPOINT_METADATA_ERROR.MISSING_METADATA_FILE",
    "TABLE_NOT_RESETTABLE",
    "UNKNOWN_FIELD_EXCEPTION",
    "UNSUPPORTED_REWIND",
    "UNSUPPORTED_REWIND_CONFIGURATION",
}


@each_condition
def test_every_command_parses(condition: ErrorCondition):
    for step in condition.steps:
        if step.command:
            parsed([Facts().fill(argument) for argument in step.command])


@each_condition
def test_only_verbs_that_exist_are_named(condition: ErrorCondition):
    verbs = {verb.name for verb in VERBS}
    assert {step.command[0] for step in condition.steps if step.command} <= verbs
    words = " ".join(step.text for step in condition.steps)
    assert set(re.findall(r"airflow-ckpt (\w+)", words)) <= verbs


def test_every_operator_exists():
    names = [module.name for module in iter_modules(operators.__path__)]
    modules = [import_module(f"{operators.__name__}.{name}") for name in names]
    known = {name for module in modules for name in vars(module)}
    assert {step.operator for c in CONDITIONS for step in c.steps if step.operator} <= known


@each_condition
def test_every_entry_is_whole(condition: ErrorCondition):
    assert re.fullmatch(r"[A-Z0-9]+(-[A-Z0-9]+)*", condition.code)
    assert condition.names or condition.patterns
    assert condition.cause.endswith(".")
    # Every advice begins with what not to do.
    assert condition.do_not.startswith("Do not ")
    assert condition.steps
    assert isinstance(condition.remedy, Remedy)
    for step in condition.steps:
        assert step.text.endswith(".")
    for pattern in condition.patterns:
        assert re.compile(pattern).search("") is None, "it would find itself everywhere"


def test_codes_and_names_are_there_once():
    codes = [c.code for c in CONDITIONS] + [kind.code for kind in ADVICE]
    assert len(codes) == len(set(codes))
    names = [name for c in CONDITIONS for name in c.names]
    assert len(names) == len(set(names))


def test_a_sub_condition_falls_back_to_the_whole():
    assert by_name("INVALID_LOG_VERSION.MAX_SUPPORTED_VERSION").code == "LOG-OF-NEWER-SPARK"
    assert by_name("INVALID_LOG_VERSION.EXACT_MATCH_VERSION").code == "LOG-VERSION-NOT-THE-ONE"
    assert by_name("KAFKA_DATA_LOSS.SOMETHING_NEW").code == "KAFKA-DATA-LOSS"
    assert by_name("KAFKA_DATA_LOSS.PARTITIONS_DELETED").code == "KAFKA-TOPIC-REMADE"
    assert by_name("CANNOT_LOAD_STATE_STORE.SOMETHING_NEW").vague
    assert by_name("DIVIDE_BY_ZERO") is None


def known_to_spark() -> set[str]:
    """Names of the error conditions in the jars of the Spark that is installed, Kafka's and Delta's among them."""
    import pyspark

    jars = [*Path(pyspark.__file__).parent.glob("jars/spark-*.jar")]
    jars += [*Path(".cache/ivy/jars").glob("*delta-spark*.jar"), *Path(".cache/ivy/jars").glob("*spark-sql-kafka*.jar")]
    names: set[str] = set()
    for jar in jars:
        with zipfile.ZipFile(jar) as archive:
            for member in archive.namelist():
                if re.fullmatch(r"error/[\w-]*error-(?:conditions|classes)\.json", member):
                    for name, entry in json.loads(archive.read(member)).items():
                        subs = entry.get("subClass") or () if isinstance(entry, dict) else ()
                        names |= {name, *(f"{name}.{sub}" for sub in subs)}
    return names


def test_the_names_are_those_of_spark():
    ours = {name for c in CONDITIONS for name in c.names} | WRAPPERS
    known = known_to_spark()
    assert len(known) > 1000
    # A misspelt name would never be found, and nobody would notice.
    assert ours - known == LATER_THAN_4_0 | BEFORE_4_0 | ELSEWHERE


@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_up_to_date(page: str):
    assert (DOCS / page).read_text() == text(page), "run: .venv/bin/python dev/reference_pages.py"


def test_a_flow_is_reset_by_a_call_that_is_json():
    call = Facts(pipeline_id="p-1", flow="orders_flow", dataset="orders").fill(RESET_FLOW.call)
    _, _, body = call.partition("--json ")
    assert json.loads(body.strip("'")) == {
        "refresh_selection": ["orders"],
        "reset_checkpoint_selection": ["orders_flow"],
    }
    assert "/api/2.0/pipelines/p-1/updates" in call


def test_wordings_are_those_of_the_jars():
    """A newer Spark may add some; what is written down is what the jars here say."""
    every = make_wordings.messages()
    written = json.loads(make_wordings.WORDINGS.read_text())
    assert {name: every.get(name) for name in written} == written
    assert written == make_wordings.wordings(), "run python -m dev.make_wordings"


@pytest.mark.parametrize("name", sorted(json.loads(make_wordings.WORDINGS.read_text())))
def test_a_message_is_recognised_without_its_name(name: str):
    message = re.sub(r"<\w+>", "x-1", make_wordings.messages()[name])
    advice = recovery_advice(f"org.apache.spark.SparkException: {message}")
    assert advice.condition, message
    assert by_name(name) in (advice.condition, *advice.also)
    assert not advice.recognised or advice.condition is by_name(name) or by_name(name).vague, message


@each_condition
def test_every_condition_that_a_jar_has_is_known_by_words_too(condition: ErrorCondition):
    written = json.loads(make_wordings.WORDINGS.read_text())
    in_jars = [name for name in condition.names if name in make_wordings.messages() and make_wordings.messages()[name]]
    assert not in_jars or condition.patterns or any(by_name(name) is condition for name in written)
