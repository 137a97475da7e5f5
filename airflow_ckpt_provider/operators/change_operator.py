"""What the operators that change a checkpoint have in common: plan or apply, accepted risks, proof that the query is stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, cast

from airflow_ckpt_provider.errors import ChangeRunningError, CkptError, QueryNotStoppedError, RefusedError
from airflow_ckpt_provider.links.page import CheckpointsPageLink, page_of
from airflow_ckpt_provider.operators.fields import flag, mapping, one_of, text, words
from airflow_ckpt_provider.operators.masking import MaskingOperator
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.renamed import deprecated
from airflow_ckpt_provider.operators.rendering import TextOperator
from airflow_ckpt_provider.operators.run_identity import (
    has_been_tried,
    made_by,
    run_of,
    since_said,
)
from airflow_ckpt_provider.units import parse_time

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.backup.repository import Repository
    from airflow_ckpt_provider.change.plan import Plan
    from airflow_ckpt_provider.change.rest import RestRule
    from airflow_ckpt_provider.storage.location import Location

PLAN, APPLY = "plan", "apply"
#: XCom of a task that was refused: whether nothing is changed, so that the query can be started again.
UNCHANGED = "unchanged"


class ShownPlan(Protocol):
    """What a task needs of a plan to show it: the plans of all verbs have it."""

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON."""

    def to_markdown(self) -> str:
        """The plan for people."""


class PlannedOperator(TextOperator):
    """Base of the operators that plan first. Plans only, unless ``mode="apply"``.

    The plan is shown in the log and is the task's result: ``plan`` (JSON), ``markdown`` (for an approval form), ``outcome``
    (``None`` when only planned), as a dictionary and key by key.

    :param mode: ``"plan"`` changes nothing, ``"apply"`` applies the plan. (templated)
    :param fingerprint: fingerprint of the plan that was shown and approved (``plan.output["plan"]["fingerprint"]``): apply is
        refused if the plan is another one now. ``None``: not compared. (templated)
    :param reason: why, for the audit record. (templated)
    """

    template_fields: Sequence[str] = ("mode", "fingerprint", "reason")
    template_fields_renderers: ClassVar[dict[str, str]] = {"reason": "md"}
    ui_color = "#ffe6cc"

    def __init__(
        self,
        *,
        mode: Literal["plan", "apply"] | str = PLAN,
        fingerprint: str | None = None,
        reason: str | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("multiple_outputs", True)
        super().__init__(**kwargs)
        self.mode = mode
        self.fingerprint = fingerprint
        self.reason = reason

    def _mode(self) -> str:
        return one_of(self.mode, "mode", (PLAN, APPLY))

    def _shown(self, plan: ShownPlan) -> dict[str, Any]:
        """Show a plan in the log; return what the task says of it."""
        markdown = plan.to_markdown()
        self.log.info("\n%s", markdown)
        mode = self._mode()
        if mode == PLAN:
            self.log.info("Nothing was changed: this is a plan. Run with mode=apply to apply it.")
        return {"mode": mode, "plan": plan.to_json(), "markdown": markdown, "outcome": None}


class StoppedQueryOperator(MaskingOperator):
    """Base of the operators that change a checkpoint: the proof that its query is stopped.

    One of these is needed: a probe that reports the end of the query, your statement, or silence that is longer than any
    pause of the query. If a probe reports that the query runs, the change is refused.

    A change that was carried out is an event of the asset :func:`~airflow_ckpt_provider.assets.checkpoint_asset`, through the
    alias :data:`~airflow_ckpt_provider.assets.CHANGES`; give ``outlets`` to have your own assets announced instead.

    :param query_is_stopped: you say that the query is stopped; the audit record names the run. (templated)
    :param stopped_since: when it was stopped, in ISO 8601 with a zone; :class:`~.stream_action.StreamActionOperator` leaves it as
        XCom ``ended``. If another run has changed the checkpoint since, or the query has logged or committed a batch since, the
        statement is void. ``None``: when the run was started. (templated)
    :param progress_log: URI of the JSON lines that :class:`~airflow_ckpt_provider.spark.progress_lines.ProgressLines` writes in
        the query's driver: a probe that reports the end of the query. (templated)
    :param progress_log_conn_id: Airflow connection to reach them; ``None``: the environment's own credentials. (templated)
    :param spark_api_url: address of the query's application in Spark's REST interface, such as
        ``http://history:18080/api/v1/applications/app-20261121140500-0001``: a probe that reports the end of the query.
        (templated)
    :param quiet_for: seconds without a change to the checkpoint that confirm the statement of a probe or a person.
    :param wait_at_most: seconds to wait for silence, or for a query that is being stopped.
    """

    template_fields: Sequence[str] = (
        "query_is_stopped",
        "stopped_since",
        "progress_log",
        "progress_log_conn_id",
        "spark_api_url",
    )
    operator_extra_links = (CheckpointsPageLink(),)

    def __init__(
        self,
        *,
        query_is_stopped: bool | str = False,
        stopped_since: str | None = None,
        progress_log: str | None = None,
        progress_log_conn_id: str | None = None,
        spark_api_url: str | None = None,
        quiet_for: float = 5.0,
        wait_at_most: float = 600.0,
        **kwargs: Any,
    ) -> None:
        from airflow_ckpt_provider.assets import CHANGES

        kwargs["outlets"] = kwargs.get("outlets") or [CHANGES]
        super().__init__(**kwargs)
        self.query_is_stopped = query_is_stopped
        self.stopped_since = stopped_since
        self.progress_log = progress_log
        self.progress_log_conn_id = progress_log_conn_id
        self.spark_api_url = spark_api_url
        self.quiet_for = quiet_for
        self.wait_at_most = wait_at_most

    @contextmanager
    def _refusals(
        self, context: Context, place: Callable[[], Location], repository: Callable[[], Repository | None]
    ) -> Iterator[None]:
        """As :func:`~.refusals.no_retry_when_refused`; whether the query can be started again is left as XCom.

        Not where the query may run: two queries would write to one checkpoint.

        :param place: opens the checkpoint that is changed.
        :param repository: opens the repository that keeps changes; ``None``: it lies beside the checkpoint.
        """
        with no_retry_when_refused():
            try:
                yield
            except (QueryNotStoppedError, ChangeRunningError):
                raise
            except RefusedError:
                if "ti" in context:
                    context["ti"].xcom_push(UNCHANGED, self._is_as_it_was_stopped(context, place, repository))
                raise

    def _is_as_it_was_stopped(
        self, context: Context, place: Callable[[], Location], repository: Callable[[], Repository | None]
    ) -> bool:
        """Whether no change is half-way, and no other run has changed the checkpoint since; ``False`` where that is not known."""
        from airflow_ckpt_provider.backup.beside import default_repository
        from airflow_ckpt_provider.backup.repository import Repository
        from airflow_ckpt_provider.change.attempts import was_changed_since
        from airflow_ckpt_provider.change.target import inspect_target

        with suppress(CkptError):
            there = inspect_target(place())
            kept = repository() or Repository.open_if_there(default_repository(there.location))
            since = since_said(context, text(self.stopped_since))
            changed = kept and was_changed_since(kept, there.location, since, but_in=run_of(context))
            return there.seal is None and not changed
        return False

    def _announce(self, checkpoint: str, extra: Mapping[str, Any], context: Context) -> None:
        """Send the event of the checkpoint that was changed, by this attempt or by one before.

        Airflow sends it when the task is a success, and nothing says whether an attempt before a clear was one.
        """
        from airflow_ckpt_provider.assets import announce, checkpoint_asset

        whole = {**extra, "checkpoint": checkpoint, "made_by": made_by(context)}
        announce(self.outlets, context, checkpoint_asset(checkpoint), whole)

    def _link(self, plan_ids: Sequence[str], context: Context) -> None:
        """Leave the URL of the page of a change; of the list of streams, if there are several changes."""
        if (repository := self.places.repository) and "ti" in context:
            url = page_of(repository, "change", id=plan_ids[0]) if len(plan_ids) == 1 else page_of(repository)
            if url:
                context["ti"].xcom_push(key=CheckpointsPageLink.XCOM_KEY, value=url)

    def _rest(self, checkpoint: Location, context: Context) -> RestRule:
        from airflow_ckpt_provider.change.rest import RestRule
        from airflow_ckpt_provider.change.rest_probes import probes_of
        from airflow_ckpt_provider.places import open_place

        lines = text(self.progress_log)
        return RestRule(
            query_is_stopped=flag(self.query_is_stopped, "query_is_stopped"),
            said_by=made_by(context),
            said=since_said(context, text(self.stopped_since)),
            said_in=run_of(context),
            probes=probes_of(
                checkpoint,
                progress_log=open_place(lines, text(self.progress_log_conn_id)) if lines else None,
                spark_rest=text(self.spark_api_url),
            ),
            quiet_for=self.quiet_for,
            wait_at_most=self.wait_at_most,
        )


class ChangeOperator(PlannedOperator, StoppedQueryOperator):
    """Base of the operators that plan a change of a checkpoint and apply it, with what somebody has to accept.

    While a change is under way the checkpoint is sealed, so that no Spark starts half-way. A retry resumes where the attempt
    before was stopped; one that had finished changes nothing. :class:`~.undo.CheckpointUndoOperator` takes a change back, as
    long as the query was not started since.

    Parameters of plan and proof: see :class:`~.change_operator.PlannedOperator` and
    :class:`~.change_operator.StoppedQueryOperator`.

    :param accept: words of the risks that you accept, as the plan prints them, such as ``["sink_duplicates"]``: a list, or text
        with commas between them. (templated)
    :param must_be_accepted: with ``mode="plan"``: fail where somebody has to accept a risk of the plan and ``accept`` does not
        have it, so that it is known before the query is stopped. (templated)
    :param approval: what was approved: ``approval`` of the result of the task that planned (``plan.output["approval"]``), also
        as JSON. Apply is refused if it would change another place, use another backup, batch or sink, or have another risk. Give
        it where the query runs until it is stopped after the approval: ``fingerprint`` changes with each batch. ``None``: not
        compared. (templated)
    """

    template_fields: Sequence[str] = (
        *PlannedOperator.template_fields,
        *StoppedQueryOperator.template_fields,
        "accept",
        "must_be_accepted",
        "approval",
        "old_accept",
    )
    #: Deprecated parameters that accept risks.
    old_flags: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        *,
        accept: Sequence[str] | str | None = None,
        must_be_accepted: bool | str = False,
        approval: Mapping[str, Any] | str | None = None,
        **kwargs: Any,
    ) -> None:
        from airflow_ckpt_provider.change.old_acceptance import OLD_FLAGS

        old_accept = {name: kwargs.pop(name) for name in self.old_flags if name in kwargs}
        for name in old_accept:
            deprecated(name, instead=f"accept={list(OLD_FLAGS[name])}")
        super().__init__(**kwargs)
        self.accept = accept
        self.must_be_accepted = must_be_accepted
        self.approval = approval
        self.old_accept = old_accept
        #: Of the attempt that carries a change out.
        self._applying: Context | None = None

    def _accepted(self) -> tuple[str, ...]:
        """Words of the risks that were accepted, whether by their names of now or of the release before."""
        from airflow_ckpt_provider.change.old_acceptance import OLD_FLAGS, OLD_VERDICTS, words_of
        from airflow_ckpt_provider.change.risks import RISKS

        found: list[str] = []
        for word in words(self.accept, "accept", (*RISKS, *OLD_VERDICTS)):
            if word in OLD_VERDICTS:
                found += words_of(word)
                deprecated(f"accept={word!r}", instead=f"accept={list(words_of(word))}")
            else:
                found.append(word)
        for name, given in self.old_accept.items():
            found += OLD_FLAGS[name] if flag(given, name) else ()
        return tuple(dict.fromkeys(found))

    def _shown(self, plan: ShownPlan, change: Plan | None = None) -> dict[str, Any]:
        """Show a plan in the log, see that it is the one that was approved, or that it can be; return what the task says of it.

        :param change: the plan of the change, where the one that is shown has more around it.
        """
        change, repository = change or cast("Plan", plan), self.places.repository or ""
        result = self._noted({**super()._shown(plan), "approval": change.approval(repository)})
        if result["mode"] == APPLY:
            change.check_approval(mapping(self.approval, "approval"), repository)
        elif flag(self.must_be_accepted, "must_be_accepted", empty=True) and not change.continued:
            change.check_accepted(self._accepted())
        return result

    def _noted(self, result: dict[str, Any]) -> dict[str, Any]:
        """Note what was planned, and carried out, for OpenLineage; return the task's result as it is."""
        from airflow_ckpt_provider.lineage.runs import changes_of, of_change

        self.note(of_change, result["plan"], result["outcome"], self.places, mode=result["mode"], **self._asked())
        if self._applying is not None and (changes := changes_of(result["plan"])):
            # Before it is carried out: the page says how a change that was stopped half-way is continued.
            self._link([str(part["plan_id"]) for part in changes], self._applying)
        return result

    def _carried_out(self, result: dict[str, Any], context: Context) -> dict[str, Any]:
        """Announce what was carried out, by this attempt or by one before, and return the task's result."""
        from airflow_ckpt_provider.lineage.runs import changed_place, changes_of

        self._applying = context
        for part in changes_of(result["plan"]):
            extra = {"kind": part["kind"], "plan_id": part["plan_id"], "batch_id": part.get("batch_id")}
            self._announce(changed_place(part), extra, context)
        return self._noted(result)

    def _asked(self) -> dict[str, Any]:
        """What was asked about sources, as far as the plan does not say: ``tables`` and ``servers``."""
        return {}

    def _how(self, checkpoint: Location, context: Context) -> dict[str, Any]:
        """What carrying any change out takes.

        :param checkpoint: the checkpoint whose query is stopped.
        """
        self._applying = context
        return {
            "fingerprint": text(self.fingerprint),
            "rest": self._rest(checkpoint, context),
            "made_by": made_by(context),
            "reason": text(self.reason) or "",
        }

    def _is_asked_again(self, record: Mapping[str, Any]) -> bool:
        """Whether the plan that was approved is younger than a change of this task: both tasks were cleared since."""
        approved = text(mapping(self.approval, "approval").get("at"))
        return approved is not None and parse_time(str(record["at"])) < parse_time(approved)

    def _ended_before(
        self, repository: Repository, place: Location, context: Context, *, kind: str
    ) -> dict[str, Any] | None:
        """The audit record of a change that an attempt before this one carried to its end.

        It is written before the seal is lifted: a place that is still sealed by its plan is not finished yet. One from before the
        plan that was approved is about another plan.
        """
        from airflow_ckpt_provider.change.target import inspect_target

        record = repository.audit(made_by(context)) if has_been_tried(context) else None
        if (
            record is None
            or record.get("kind") != kind
            or record["plan"].get("target", record.get("checkpoint")) != place.uri
        ):
            return None
        seal = inspect_target(place).seal
        if (seal is not None and seal.plan_id == record["plan_id"]) or self._is_asked_again(record):
            return None
        self.log.info(
            "An attempt before this one carried the %s of %s out at %s (plan %s): nothing is changed. To do it again start a new "
            "run.",
            kind,
            place,
            record["at"],
            record["plan_id"],
        )
        return record


class StoppingOperator(ChangeOperator):
    """Base of the operators that may stop a query that still runs.

    Parameters of the change: see :class:`~.change_operator.ChangeOperator`.

    :param stop_running: stop a query that still runs: its checkpoint is sealed, and it ends at its batch boundary. (templated)
    """

    template_fields: Sequence[str] = (*ChangeOperator.template_fields, "stop_running")

    def __init__(self, *, stop_running: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stop_running = stop_running

    def _how(self, checkpoint: Location, context: Context) -> dict[str, Any]:
        how = super()._how(checkpoint, context)
        return {**how, "stop_running": flag(self.stop_running, "stop_running")}
