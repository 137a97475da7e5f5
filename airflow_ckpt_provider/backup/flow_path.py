"""The path of a checkpoint of a flow of Spark Declarative Pipelines, which says which pipeline, which flow, and which version.

``<storage>/_checkpoints/<catalog>/<database>/<table or sink>/<flow>/<version>`` (``SystemMetadata.scala``, 4.1). Each full
refresh begins the next version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

CHECKPOINTS = "_checkpoints"
#: Catalog, database, table or sink, flow.
FLOW_DEPTH = 4

_PATH = re.compile(
    rf"(?P<storage>.*)/{CHECKPOINTS}/(?P<flow>[^/]+(?:/[^/]+){{{FLOW_DEPTH - 1}}})/(?P<version>[0-9]+)/?"
)


@dataclass(frozen=True, slots=True)
class FlowPath:
    """The path of one version of a flow, taken apart.

    :param storage: the pipeline's ``storage``.
    :param flow: ``<catalog>/<database>/<table or sink>/<flow>``.
    :param version: its number.
    """

    storage: str
    flow: str
    version: int

    @property
    def directory(self) -> str:
        """The directory that holds all versions of the flow."""
        return f"{self.storage}/{CHECKPOINTS}/{self.flow}"


def flow_path(path: str) -> FlowPath | None:
    """Take the path or the URI of a checkpoint apart; ``None``: it is none of a flow.

    :param path: such as ``s3://lake/pipeline/_checkpoints/main/sales/orders/orders/3``.
    """
    match = _PATH.fullmatch(path)
    return FlowPath(match["storage"], match["flow"], int(match["version"])) if match else None
