"""What OpenLineage asks an operator: what it read and wrote, by OpenLineage's names and with facets of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider import __version__
from airflow_ckpt_provider.operators.rendering import TextOperator

if TYPE_CHECKING:
    from airflow_ckpt_provider.lineage.names import Dataset
    from airflow_ckpt_provider.lineage.runs import Lineage, Opened
    from airflow_ckpt_provider.storage.location import Location

#: Who made our facets.
_PRODUCER = f"urn:airflow-ckpt-provider:{__version__}"


class LineageOperator(TextOperator):
    """Base of the operators that tell OpenLineage what they read and wrote.

    They note it while they run. OpenLineage's provider (extra ``openlineage``) asks for it afterwards, and only then it is worked
    out: a task cannot fail by it.

    .. seealso:: :doc:`/howto/lineage`
    """

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the datasets and facets of the run; OpenLineage's provider calls this."""
        from airflow_ckpt_provider.lineage.runs import Lineage

        noted: Lineage = self.__dict__.get("_lineage", Lineage)()
        return to_openlineage(noted, {**noted.run_facets, **self.facets_of_every_run()})

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """Return what was known when the task failed, such as the plan that was refused or the verdict of a guard."""
        return self.get_openlineage_facets_on_complete(task_instance)

    def facets_of_every_run(self) -> Mapping[str, Mapping[str, Any]]:
        """Facets that do not depend on what the task did."""
        return {}

    def note(self, make: Callable[..., Lineage], *args: Any, **kwargs: Any) -> None:
        """Keep what the task read and wrote, for OpenLineage.

        :param make: works it out; see :mod:`~airflow_ckpt_provider.lineage.runs`.
        :param args: what it is given.
        :param kwargs: likewise.
        """
        self.__dict__["_lineage"] = partial(make, *args, **kwargs)

    def opened(self, place: Location) -> Location:
        """Keep the full name of a place that was opened, and return the place."""
        from airflow_ckpt_provider.lineage.names import full_uri

        self.places.uris[place.uri] = full_uri(place)
        return place

    @property
    def places(self) -> Opened:
        """The places that were opened."""
        from airflow_ckpt_provider.lineage.runs import Opened

        found: Opened = self.__dict__.setdefault("_places", Opened())
        return found


def to_openlineage(lineage: Lineage, run_facets: Mapping[str, Mapping[str, Any]]) -> Any:
    """Make what OpenLineage's provider takes of a run.

    :param lineage: the run.
    :param run_facets: its facets.
    """
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.facet_v2 import (
        DatasetFacet,
        RunFacet,
        dataset_version_dataset,
        output_statistics_output_dataset,
    )

    def facets(of: Dataset) -> dict[str, Any]:
        found = {name: _facet(DatasetFacet, name, body) for name, body in of.facets.items()}
        if of.version:
            found["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=of.version)
        return found

    def statistics(of: Dataset) -> dict[str, Any]:
        if of.files is None and of.size is None:
            return {}
        made = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(size=of.size, fileCount=of.files)
        return {"outputStatistics": made}

    return OperatorLineage(
        inputs=[InputDataset(each.namespace, each.name, facets=facets(each)) for each in lineage.inputs],
        outputs=[
            OutputDataset(each.namespace, each.name, facets=facets(each), outputFacets=statistics(each))
            for each in lineage.outputs
        ],
        run_facets={name: _facet(RunFacet, name, body) for name, body in run_facets.items()},
    )


def _facet(base: Any, name: str, body: Mapping[str, Any]) -> Any:
    """A facet of ours: the client's own class with our properties, which names our schema."""
    from airflow_ckpt_provider.lineage.runs import FACETS, SCHEMA_ID

    made = base(producer=_PRODUCER).with_additional_properties(**body)
    made._schemaURL = f"{SCHEMA_ID}#/$defs/{FACETS[name]}"
    return made
