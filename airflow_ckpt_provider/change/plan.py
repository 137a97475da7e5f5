"""The plan of a change: what every verb adds, and what all plans have in common.

A verb contributes data: which files are removed and written, what is done to the sink, what has to be true afterwards. How that
is carried out, resumed and undone is the same for all of them, in :mod:`~airflow_ckpt_provider.change.engine`.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_ckpt_provider.backup.beside import is_beside
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.edits import Edits
from airflow_ckpt_provider.change.target import Target
from airflow_ckpt_provider.errors import RefusedError, command
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict

_SUFFIX = "-undo"


#: Characters of the reasons that the refusal of a plan repeats.
_SHORT = 200


@dataclass(frozen=True, slots=True)
class Risk:
    """What a plan would do that somebody has to accept first.

    :param word: how it is accepted, such as ``sink_duplicates``.
    :param why: what would happen, in words.
    :param way: what can be done about it; empty where there is nothing to do but to accept it or not.
    """

    word: str
    why: str
    way: str = ""

    def in_short(self) -> str:
        """The word with the first reasons: a plan has all of them."""
        first, *more = self.why.split("; ")
        while more and len(first) + len(more[0]) < _SHORT:
            first += f"; {more.pop(0)}"
        return f"{self.word} ({first}{'; …' if more else ''})"


def each_word_once(risks: Iterable[Risk]) -> tuple[Risk, ...]:
    """Put the risks of one word together, in the order of their first ones."""
    found: dict[str, list[Risk]] = {}
    for risk in risks:
        found.setdefault(risk.word, []).append(risk)
    return tuple(
        Risk(word, "; ".join(r.why for r in same), "; ".join(dict.fromkeys(r.way for r in same if r.way)))
        for word, same in found.items()
    )


class Plan:
    """Base of all plans. Subclasses are frozen dataclasses with the fields that are declared here as properties."""

    __slots__ = ()

    #: What is done, in a word: the ``kind`` of the plan's document and of its audit record.
    kind: ClassVar[str]

    if TYPE_CHECKING:

        @property
        def plan_id(self) -> str:
            """Its id; the seal, the audit record and the commit in a table carry it."""

        @property
        def name(self) -> str:
            """Name of the stream in the repository."""

        @property
        def checkpoint(self) -> str:
            """URI of the checkpoint."""

        @property
        def fingerprint(self) -> str:
            """Of the checkpoint when the plan was made."""

        @property
        def continued(self) -> bool:
            """Whether it was begun before, and is resumed."""

        @property
        def verdict(self) -> Verdict:
            """What the change does to the data."""

        @property
        def reasons(self) -> tuple[str, ...]:
            """Why, in words."""

        @property
        def steps(self) -> tuple[str, ...]:
            """What carrying it out does, in order."""

        @property
        def already_done(self) -> bool:
            """Whether everything is as the plan wants it."""

        @property
        def plan_fingerprint(self) -> str:
            """Changes with whatever an approval is given for."""

        @property
        def seal_reason(self) -> str:
            """What the seal says; Spark's own error shows it."""

    @property
    def risks(self) -> tuple[Risk, ...]:
        """What has to be accepted before it is carried out."""
        return ()

    @property
    def sets_aside(self) -> bool:
        """Whether what is removed is kept first. Not for an undo: what it removes, the plan that is undone had written."""
        return True

    def command_to_undo(self, repository: Repository | None = None) -> str:
        """The command that undoes it.

        :param repository: where the plan is kept; ``None``: beside the checkpoint.
        """
        return undo_command(self.checkpoint, self.plan_id, repository)

    @property
    def own_seals(self) -> frozenset[str]:
        """Ids of plans whose seal does as well, and is taken over."""
        return frozenset()

    @property
    def expects(self) -> str | None:
        """The fingerprint that the place must have before the first change; ``None`` where it does not matter."""
        return self.fingerprint

    @property
    def writes_offsets(self) -> Collection[str]:
        """Paths in ``offsets/`` that will be written; the seal is put above them."""
        return ()

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON."""
        raise NotImplementedError

    def audit_facts(self, after: Target) -> dict[str, Any]:
        """What the audit record keeps of the plan."""
        return {"plan": self.to_json()}

    def prepare(self, *, workers: int) -> None:
        """See that everything that will be read is whole, before the first change.

        :param workers: requests under way at once.
        :raises RefusedError: it is not; nothing was changed.
        """

    def check_is_latest(self, place: Location, repository: Repository) -> None:
        """See, behind the fence, that no later change is in force, where the plan undoes one.

        :param place: the checkpoint.
        :param repository: keeps the changes.
        :raises RefusedError: one is; nothing was changed.
        """

    def document(self) -> dict[str, Any]:
        """The plan with all that carrying it out needs, as it is kept in the repository."""
        raise NotImplementedError

    def edits(self, there: Target, repository: Repository) -> Edits:
        """What is to be done to the files of a place.

        :param there: the place, as a listing under the seal and behind the fence found it.
        :param repository: where contents are read from.
        """
        raise NotImplementedError

    def check(self, there: Target) -> None:
        """See that the place is what the plan wants.

        :param there: the place, after the change.
        :raises StorageError: it is not.
        """
        raise NotImplementedError

    @property
    def subject(self) -> dict[str, Any]:
        """What the plan is about, as plain JSON: as much of what is approved as stays the same while the query runs."""
        return {"checkpoint": self.checkpoint}

    @property
    def newest_batch(self) -> int:
        """The newest batch that the query has logged; it grows while the query runs. -1: none, or the plan does not say."""
        return -1

    def approval(self, repository: str) -> dict[str, Any]:
        """What somebody approves who approves this plan, as plain JSON, for :meth:`check_approval`.

        :param repository: URI of the repository that keeps the plan; empty: that of each stream.
        """
        return {
            "plan_id": self.plan_id,
            "at": datetime.now(UTC).isoformat(),
            "subject": {**self.subject, "repository": repository},
            "risks": [risk.word for risk in self.risks],
            "newest_batch": self.newest_batch,
            "already_done": self.already_done,
        }

    def check_approval(self, approved: Mapping[str, Any], repository: str) -> None:
        """See that the plan does what was approved; the query may have run on since.

        :param approved: what :meth:`approval` returned of the plan that was shown; empty: not compared.
        :param repository: as for :meth:`approval`.
        :raises RefusedError: it does something else, or has a risk that the other one did not show.
        """
        if not approved:
            return
        now, before = self.approval(repository)["subject"], approved.get("subject")
        before = before if isinstance(before, Mapping) else {}
        found = [
            f"{key} was {before.get(key)!r} and is {value!r}" for key, value in now.items() if before.get(key) != value
        ]
        if not (self.already_done or self.continued):
            shown = approved.get("risks") or ()
            found += [
                f"its risk {risk.word} was not shown ({risk.why})" for risk in self.risks if risk.word not in shown
            ]
            if approved.get("already_done"):
                found.append("there was nothing to do, and now there is")
            if self.newest_batch < (reached := int(approved.get("newest_batch", -1))):
                found.append(f"its newest batch was {reached} and is {self.newest_batch}: somebody else has changed it")
        if found:
            raise RefusedError(
                f"the {self.kind} of {self.checkpoint} is not what plan {approved.get('plan_id')} showed, which was approved: "
                f"{'; '.join(found)}; nothing was changed",
                hint="make a new plan, have it approved, and apply that",
            )

    def check_accepted(self, accept: Collection[str]) -> None:
        """See that every risk was accepted.

        :param accept: words of risks.
        :raises RefusedError: one was not.
        """
        left = [risk for risk in self.risks if risk.word not in accept]
        if left:
            words = " ".join(f"--accept {risk.word}" for risk in left)
            listed = ", ".join(repr(risk.word) for risk in left)
            raise RefusedError(
                f"the {self.kind} of {self.checkpoint} needs somebody to accept: "
                + "\n  ".join(risk.in_short() for risk in left),
                hint="; ".join(
                    (
                        *dict.fromkeys(risk.way for risk in left if risk.way),
                        f"choose another target or remove the cause; or accept explicitly: {words} (accept=[{listed}])",
                    )
                ),
            )

    def check_fingerprint(self, shown: str | None, begun: str | None = None) -> None:
        """See that the plan is the one that was shown and approved. One that is resumed has changed things itself: it goes by
        the plan with which it was begun.

        :param shown: fingerprint of the plan that was shown; ``None``: not compared.
        :param begun: fingerprint of the plan with which it was begun, where it is resumed; ``None``: nobody has kept that.
        :raises RefusedError: it is another one.
        """
        if shown is None or self.already_done or shown == (begun if self.continued else self.plan_fingerprint):
            return
        if self.continued:
            if begun is None:
                return
            raise RefusedError(
                f"the {self.kind} {self.plan_id} of {self.checkpoint} was begun by a plan with the fingerprint {begun}, not "
                f"{shown}, and has not ended; nothing was changed",
                hint="resume it with that fingerprint or without one, or undo it first",
            )
        raise RefusedError(
            f"the plan that was shown ({shown}) is not the one that would be carried out now ({self.plan_fingerprint}): "
            f"{self.checkpoint} or its sink have changed since; nothing was changed",
            hint="make a new plan, and apply that",
        )


def undo_of(plan_id: str) -> str:
    """Id of the undo of a plan, by which a second run finds the first one's seal and commit."""
    return plan_id + _SUFFIX


def sink_command(checkpoint: str) -> str:
    """The command that says what a sink does at the next start.

    :param checkpoint: its address.
    """
    return f"{command('rewind', checkpoint, '--to-current')} --sink SINK"


def undo_command(place: str, plan_id: str, repository: Repository | None, sinks: Iterable[str] = ()) -> str:
    """The command that undoes a change.

    :param place: URI of the checkpoint.
    :param plan_id: the change.
    :param repository: where it is kept, which is named unless it lies beside the checkpoint, where ``undo`` finds it.
    :param sinks: URIs of the sinks that are put back with it.
    """
    words = ["airflow-ckpt", "undo", place, "--plan", plan_id]
    if repository is not None and not is_beside(repository, place):
        words += ["--repository", repository.location.uri]
    return shlex.join([*words, *(word for sink in sinks if sink for word in ("--sink", sink))])


def sink_words(sinks: Sequence[tuple[str, str]]) -> list[str]:
    """The sinks of a request as a command names them.

    :param sinks: a pair for each: how it is named, and its ``txnAppId``; both may be empty.
    """
    words = [word for name, _ in sinks if name for word in ("--sink", name)]
    if any(app_id for _, app_id in sinks):
        words += [word for _, app_id in sinks for word in ("--txn-app-id", app_id)]
    return words


def chain_command(action: str, of: Mapping[str, str]) -> str:
    """A command on all the streams that are changed together.

    :param action: ``undo``; or what is resumed: ``rewind`` or ``restore``.
    :param of: what a part keeps of it: ``plan_id``, ``arguments``, which name its streams in a command, and ``again``, the whole
        command that resumes it. Plans of older versions lack that.
    """
    arguments = _quoted(of["arguments"])
    if action == "undo":
        return f"airflow-ckpt chain undo {arguments} --plan {shlex.quote(str(of['plan_id']))}"
    again = _quoted(of.get("again") or "")
    return (
        again
        if again.startswith(f"airflow-ckpt chain {action} ")
        else f"airflow-ckpt chain {action} {arguments} … --apply"
    )


def _quoted(words: str) -> str:
    """Words of a command that a document has, quoted again: whoever wrote it, a shell runs one command."""
    try:
        return shlex.join(shlex.split(words))
    except ValueError:
        return shlex.quote(words)


def undone_by(plan_id: str) -> str:
    """Id of the plan that an undo is of; any other id is returned as it is."""
    return plan_id.removesuffix(_SUFFIX)
