"""The seals that an attempt at a change sets, takes over, and lifts: one, or two where a flow gets its next version."""

from __future__ import annotations

from collections.abc import Collection

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.plan import Plan, undone_by
from airflow_ckpt_provider.change.plan_seal import give_back, raise_above, seal_for_plan
from airflow_ckpt_provider.change.sealing import remove_empty, remove_seal
from airflow_ckpt_provider.change.target import Target, inspect_target
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.errors import CkptError, RefusedError, command
from airflow_ckpt_provider.storage.location import Location


class AttemptSeals:
    """The seals of one attempt.

    :param place: the place that is changed, guarded by the fence.
    :param observed: the checkpoint whose query has to be stopped, where that is another place; guarded likewise.
    :param repository: keeps the plan.
    :param plan: what is done.
    :param attempt: number of the attempt.
    :param observed_fingerprint: of ``observed`` when the plan was made; ``None``: not compared.
    :param made_by: the run or user.
    :param sealed_before: the checkpoint was sealed when its query was proven to be stopped, and has to be sealed still.
    """

    def __init__(
        self,
        place: Location,
        observed: Location | None,
        repository: Repository,
        plan: Plan,
        attempt: int,
        *,
        observed_fingerprint: str | None,
        made_by: str,
        sealed_before: bool,
    ) -> None:
        self._place, self._observed, self._repository, self._plan, self._attempt = (
            place,
            observed,
            repository,
            plan,
            attempt,
        )
        self._observed_fingerprint, self._made_by, self._sealed_before = observed_fingerprint, made_by, sealed_before
        #: Seals of the plan that is undone, which are taken over; they come back where the undo is refused.
        self.found: list[tuple[Location, Seal | None]] = []

    @property
    def has_taken_over(self) -> bool:
        """Whether one of them was that of the plan that is undone."""
        return any(mark for _, mark in self.found)

    @property
    def places(self) -> tuple[Location, ...]:
        """The places that are sealed, in the order in which their seals are lifted: the one that is changed first."""
        return (self._place,) if self._observed is None else (self._place, self._observed)

    def are_there(self) -> bool:
        """Whether an attempt has sealed one of the places."""
        marks = [inspect_target(place).seal for place in self.places]
        return any(mark is not None and mark.attempt is not None for mark in marks)

    def give_back(self) -> None:
        """Put the seals back that were taken over from the plan that is undone."""
        for place, mark in self.found:
            if mark is not None:
                give_back(place, mark)

    def lift(self, marks: list[Seal], *, sweep: bool = True) -> None:
        """Lift the seals.

        :param marks: the seals, in the order in which they were set.
        :param sweep: remove empty directories of the place before the next seal is lifted: Spark takes an empty
            directory for the live version of a flow, and would start from the beginning in it. Stopped in between, the
            other seal shows that it is not ended.
        """
        for place, seal in zip(self.places, reversed(marks), strict=True):
            remove_seal(place, seal)
            if sweep and place is self._place:
                if self._observed is None:
                    remove_empty(place)
                else:
                    place.remove_empty_directories()

    def set(self) -> list[Seal]:
        """Seal the checkpoint whose query is stopped, and the place that is changed where that is another one.

        A change that was begun is resumed only under its own seal: nothing else has kept a query from starting since.
        """
        plan = self._plan
        found = [(place, inspect_target(place)) for place in self.places]
        ours = [there for _, there in found if there.seal and there.seal.plan_id in {plan.plan_id, *plan.own_seals}]
        begun = plan.continued
        if plan.own_seals:
            self.found = [(place, there.seal) for place, there in found]
        marks = []
        if self._observed is not None:
            # Sealed first and unsealed last; where a person has lifted its seal alone, that of the changed place counts.
            still = begun and not (ours and found[-1][1] not in ours)
            marks.append(self._sealed(self._observed, self._observed_fingerprint, begun=still, above=()))
        fingerprint, there = plan.expects, found[0][1]
        if begun and self._observed is not None and ours and there not in ours:
            self._check_unsealed(there)
            begun, fingerprint = False, there.fingerprint
        try:
            mark = self._sealed(self._place, fingerprint, begun=begun, above=plan.writes_offsets)
        except RefusedError:
            for other in marks if not begun and not ours else ():
                remove_seal(self.places[-1], other)  # nothing was changed
            raise
        return [*marks, raise_above(self._place, mark, plan.writes_offsets, made_by=self._made_by)]

    def _check_unsealed(self, there: Target) -> None:
        """See that a place is before the first change or after the last one: it is sealed later, and unsealed earlier, than
        the former version of its flow.

        :raises RefusedError: it is neither: somebody has lifted its seal half-way.
        """
        undone = undone_by(self._plan.plan_id)
        document = self._repository.kept_plan(undone) or {}
        records = [r for r in self._repository.records() if r.get("plan_id") == undone]
        known = {document.get("checkpoint_fingerprint"), *(r.get("after") for r in records)}
        if there.is_empty or there.fingerprint in known:
            return
        try:
            self._plan.check(there)
        except CkptError:
            raise RefusedError(
                f"the seal of plan {self._plan.plan_id} on {there.location} was lifted half-way: its query may have been started",
                hint=f"see what is there: `{command('doctor', there.location)}`; to give the plan up, lift its other seal: "
                f"`{command('unseal', self.places[-1], '--plan', self._plan.plan_id)}`",
            ) from None

    def _sealed(self, place: Location, fingerprint: str | None, *, begun: bool, above: Collection[str]) -> Seal:
        return seal_for_plan(
            place,
            plan_id=self._plan.plan_id,
            attempt=self._attempt,
            reason=self._plan.seal_reason,
            made_by=self._made_by,
            fingerprint=fingerprint,
            begun=begun,
            sealed=self._sealed_before,
            above=above,
            own=self._plan.own_seals,
        )
