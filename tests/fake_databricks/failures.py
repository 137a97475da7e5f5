"""Three ways in which a flow loses its checkpoint, for each source, language and mode, and where it has to begin after a reset.

A flow has read twelve rows in three batches. Then it fails, with three more rows to read:

* ``source recreated``: a Delta table was recreated, with its twelve rows; a topic was recreated, without them; the
  files of a directory were uploaded again under their old names, while a batch was about to read some.
* ``new operator``: code with a stateful operator more was deployed.
* ``checkpoint lost``: a part of the checkpoint is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tests.fake_databricks.clock import text
from tests.fake_databricks.errors import FlowFailed
from tests.fake_databricks.flows import DROP_DUPLICATES, Dataset, Flow, Language
from tests.fake_databricks.pipelines import Pipeline
from tests.fake_databricks.sources import Kind, Source
from tests.fake_databricks.workspace import FakeWorkspace

RECREATED, OPERATOR, LOST = "source recreated", "new operator", "checkpoint lost"
FAILURES = (RECREATED, OPERATOR, LOST)
KINDS: tuple[Kind, ...] = ("delta", "files", "kafka")
LANGUAGES: tuple[Language, ...] = ("python", "sql")
MODES = ("triggered", "continuous")
NAMES: dict[Kind, str] = {"kafka": "orders-events", "delta": "lake.raw.orders", "files": "/landing/orders"}
OPTIONS: dict[Kind, str] = {"kafka": "startingOffsets", "delta": "startingVersion", "files": "modifiedAfter"}
FLOW, OTHER, TABLE = "main.sales.orders", "returns", "main.sales.orders"


@dataclass(frozen=True, slots=True)
class Broken:
    """A pipeline whose flow has failed.

    :param position: where the flow has to begin.
    :param expected: ids of all rows that its table has to have afterwards.
    """

    workspace: FakeWorkspace
    pipeline: Pipeline
    source: Source
    language: Language
    failure: str
    position: str
    expected: tuple[str, ...]

    @property
    def option(self) -> str:
        return OPTIONS[self.source.kind]

    @property
    def key(self) -> str:
        """What the flow's code reads its position from."""
        return f"orders.{self.option}"

    @property
    def carried_in(self) -> str:
        """Later updates may need the position too; of Kafka they do not."""
        return "parameters" if self.language == "sql" and self.source.kind == "kafka" else "configuration"

    @property
    def about(self) -> dict[str, Any]:
        """What a person says of the flow."""
        return {
            "orders": {
                "sources": {self.source.name: self.source.kind},
                "carried_by": {self.option: self.key},
                "carried_in": self.carried_in,
                "language": self.language,
                "keys": ["id"],
                "stateful": self.failure == OPERATOR,
            }
        }

    @property
    def starting_positions(self) -> dict[str, Any]:
        """What a person gives who knows the new source."""
        about = {"carried_by": {self.option: self.key}, "language": self.language, "all_sources": True}
        return {FLOW: {"options": {self.option: self.position}, **about}}

    def counted(self) -> tuple[int, list[str]]:
        """Rows too many, and the ids that are lost."""
        ids = [row["id"] for row in self.workspace.rows(TABLE)]
        return len(ids) - len(set(ids)), sorted(set(self.expected) - set(ids))


def land(workspace: FakeWorkspace, source: Source, *ids: str) -> None:
    """New rows, a second after another."""
    for each in ids:
        workspace.clock.advance(seconds=1)
        source.add(workspace.clock.now(), id=each)


def broken(
    workspace: FakeWorkspace,
    failure: str,
    kind: Kind,
    language: Language = "python",
    mode: str = "triggered",
    *,
    name: str = "sales",
    several: bool = False,
) -> Broken:
    """A pipeline whose flow fails.

    :param name: of the pipeline; the tables are in ``main.sales``.
    :param several: another flow, of a topic, fills the same table, and does not fail.
    """
    source = workspace.add_source(NAMES[kind], kind)
    flows = [Flow("orders", "orders", (source.name,), language=language)]
    if several:
        workspace.add_source("returns-events", "kafka")
        flows.append(Flow(OTHER, "orders", ("returns-events",), language=language))
    continuous = mode == "continuous"
    pipeline = workspace.add_pipeline(
        name, pipeline_id=name, datasets=[Dataset("orders")], flows=flows, continuous=continuous
    )

    def run() -> None:
        if pipeline.active is None:
            pipeline.start({}, cause="USER_ACTION")
            pipeline.advance()
        if continuous:
            pipeline.step()
        workspace.clock.advance(minutes=5)

    run()
    old = [f"o{number:02d}" for number in range(12)]
    for batch in range(0, 12, 4):
        land(workspace, source, *old[batch : batch + 4])
        if several:
            land(workspace, workspace.sources["returns-events"], f"r{batch}")
        run()
        workspace.clock.advance(hours=2)
    flow = pipeline.flows["orders"]
    if failure == RECREATED:
        source.recreate()
        land(workspace, source, *([] if kind == "kafka" else old))
        if kind == "files":
            message = f"Error while reading file dbfs:{source.name}/12.json. File does not exist. SQLSTATE: KD001"
            flow.error = FlowFailed("FAILED_READ_FILE.FILE_NOT_EXIST", message)
    elif failure == OPERATOR:
        flow.operators = (DROP_DUPLICATES,)
    else:
        flow.error = FlowFailed("", "batch 2 doesn't exist", "java.lang.IllegalStateException")
    workspace.clock.advance(hours=2)
    begin = source.end
    new = ["n0", "n1", "n2"]
    land(workspace, source, *new)
    workspace.clock.advance(minutes=10)
    run()
    assert pipeline.state == "FAILED"
    after = text(source.rows[-3].timestamp - timedelta(milliseconds=1))
    position = {"kafka": f'{{"{source.name}": {{"0": {begin}}}}}', "delta": str(begin), "files": after}[kind]
    returned = [f"r{batch}" for batch in range(0, 12, 4)] if several else []
    return Broken(workspace, pipeline, source, language, failure, position, (*old, *returned, *new))
