"""Rest is proven, or the change is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_ckpt_provider.change.rest import RestEvidence, RestProof, RestRule, StopProbe, prove_rest
from airflow_ckpt_provider.change.sealing import put_seal
from airflow_ckpt_provider.errors import QueryNotStoppedError, RefusedError
from airflow_ckpt_provider.storage.store import Listing
from tests.support.checkpoints import offsets_log
from tests.support.made_up_queries import World
from tests.support.timed_store import TimedStore

HOUR, DAY = 3600.0, 86400.0
#: A day and more, a batch every quarter of an hour; the silence that is needed is 45 minutes.
QUARTERS = [900.0] * 100
PATIENT = RestRule(wait_at_most=HOUR)


@dataclass
class Says:
    """A probe that gives these answers, one after the other; the last one for ever."""

    answers: Sequence[str | Exception | None]
    asked: int = 0

    def ended(self) -> str | None:
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        if isinstance(answer, Exception):
            raise answer
        return answer


RUNS = RefusedError("application app-7 runs", hint="stop it")


def prove(world: World, rule: RestRule = PATIENT, **more: object) -> RestProof:
    return prove_rest(world.location, rule, clock=world.clock, **more)  # type: ignore[arg-type]


def refused(world: World, rule: RestRule = PATIENT, **more: object) -> QueryNotStoppedError:
    with pytest.raises(QueryNotStoppedError) as error:
        prove(world, rule, **more)
    return error.value


@pytest.fixture(autouse=True)
def _creating(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(store: TimedStore, path: str, data: bytes) -> None:
        if path in store.files:
            raise FileExistsError(path)
        store.replace(path, data)

    monkeypatch.setattr(TimedStore, "create", create)


class TestWord:
    def test_a_person_says_so(self) -> None:
        world = World().ran([1.0] * 3)
        proof = prove(world, RestRule(query_is_stopped=True, said_by="kim@ops"))
        assert (proof.how, proof.by, proof.at) == (RestEvidence.STATEMENT, "kim@ops", world.now)
        assert proof.to_json() == {
            "how": "statement",
            "words": "kim@ops says that the query is stopped",
            "at": world.now.isoformat(),
            "by": "kim@ops",
        }
        assert world.awake == pytest.approx(5.0)

    def test_a_probe_says_so(self) -> None:
        world, probe = World().ran([1.0] * 3), Says(["run 7 terminated"])
        proof = prove(world, RestRule(query_is_stopped=True, said_by="kim", probes=(Says([None]), probe)))
        assert (proof.how, proof.words, proof.by) == (RestEvidence.PROBE, "run 7 terminated", "")
        assert probe.asked == 2

    @pytest.mark.parametrize("path", ["commits/4", "state/0/0/.5.delta.tmp", "sources/0/5", "metadata"])
    @pytest.mark.parametrize("rule", [RestRule(query_is_stopped=True), RestRule(probes=(Says(["it ended"]),))])
    def test_a_word_that_is_wrong(self, rule: RestRule, path: str) -> None:
        world = World().ran([1.0] * 3)
        world.at(2, lambda: world.put(path, b"new"))
        error = refused(world, rule)
        assert error.message.startswith(f"{world.location} is in use: {path} changed within 5 s, though ")

    def test_a_file_that_goes(self) -> None:
        world = World().ran([1.0] * 3)
        world.at(2, lambda: world.location.delete("offsets/0"))
        assert "offsets/0 changed" in refused(world, RestRule(query_is_stopped=True)).message

    def test_a_probe_that_knows_it_runs_beats_a_person(self) -> None:
        world = World().ran([1.0] * 3)
        error = refused(world, RestRule(query_is_stopped=True, probes=(Says(["ended"]), Says([RUNS]))))
        assert (error.message, error.hint) == ("application app-7 runs", "stop it")

    def test_a_run_that_begins_after_the_probe_was_asked(self) -> None:
        world = World().ran([1.0] * 3)
        assert "and no longer reports it" in refused(world, RestRule(probes=(Says(["ended", None]),))).message
        assert refused(world, RestRule(probes=(Says(["ended", RUNS]),))).message == "application app-7 runs"

    def test_an_empty_place(self) -> None:
        world = World()
        assert prove(world).how == RestEvidence.EMPTY
        assert world.awake == 0
        assert refused(world, RestRule(probes=(Says([RUNS]),))).message == "application app-7 runs"

    @pytest.mark.parametrize(
        "number", [{"quiet_for": -1.0}, {"factor": 0.5}, {"minimum": float("nan")}, {"wait_at_most": float("inf")}]
    )
    def test_numbers_that_make_no_sense(self, number: dict[str, float]) -> None:
        with pytest.raises(RefusedError, match=f"^{next(iter(number))} is "):
            RestRule(**number)  # type: ignore[arg-type]


class TestSilence:
    def test_three_of_its_longest_pauses(self) -> None:
        world = World().ran([*QUARTERS[:50], 1000.0, *QUARTERS[:50]])
        proof = prove(world)
        assert proof.how == RestEvidence.QUIET
        assert world.awake == pytest.approx(3000.0)
        assert proof.words == (
            "no file changed for 3000 s, more than 3 times the longest of the pauses between the newest 101 batches "
            "(1000.0 s, in 1 d 1 h)"
        )

    def test_never_less_than_a_minute(self) -> None:
        world = World().ran([1.0] * 10)
        assert prove(world, RestRule(history=0)).how == RestEvidence.QUIET
        assert world.awake == pytest.approx(60.0)

    @pytest.mark.parametrize("after", [0.5, 300.0, 2699.0])
    @pytest.mark.parametrize("path", ["offsets/101", "sources/0/101", "state/0/0/.102.delta.tmp"])
    def test_any_change_refutes_it(self, path: str, after: float) -> None:
        world = World().ran(QUARTERS)
        world.at(after, lambda: world.put(path, offsets_log("1")))
        error = refused(world)
        assert error.message.startswith(f"{world.location} is in use: {path} changed within ")
        assert error.needed == 2700

    @pytest.mark.parametrize(("rule", "at"), [(PATIENT, 300.0), (RestRule(query_is_stopped=True), 2.0)])
    def test_a_seal_that_is_set_meanwhile_does_not_shorten_it(self, rule: RestRule, at: float) -> None:
        """Somebody else changes the checkpoint: the listing shows the file, the inspection leaves the seal out."""
        world = World().ran(QUARTERS)
        world.at(at, lambda: put_seal(world.location, 101, plan_id="7f3a", reason="restore", made_by="kim"))
        assert " is in use: offsets/101 changed within " in refused(world, rule).message

    def test_one_listing_that_differs_does_not_shorten_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A store whose listing lacks a file for a moment: the inspection that follows finds nothing changed."""
        world = World().ran(QUARTERS)
        whole = TimedStore.list

        def list_(store: TimedStore, path: str) -> Listing:
            found = whole(store, path)
            lacks = path.endswith("commits") and 300 < world.awake < 330
            return replace(found, files=found.files[:-1]) if lacks else found

        monkeypatch.setattr(TimedStore, "list", list_)
        assert " is in use: commits/100 changed within 2700 s" in refused(world).message

    def test_longer_than_the_wait(self) -> None:
        error = refused(World().ran(QUARTERS), RestRule())
        assert error.message == (
            "memory://ck/orders may be in use: it is not known that its query is stopped: it must be silent for 2700 s, 3 times "
            "its longest pause between batches; 2700 s more are not within the wait of 600 s"
        )
        assert error.hint == (
            "stop the query. Then (1) say so: query_is_stopped / --query-is-stopped; or (2) give a probe that can report it: the "
            "driver's progress lines (--progress-log), the application's address in Spark's REST interface (--spark-api), or a "
            "command (--stopped-if); or (3) leave it without a change for 2700 s and allow that wait (wait_at_most / "
            "--wait-at-most)"
        )

    @pytest.mark.parametrize(
        ("history", "why"),
        [
            (lambda w: w.ran([900.0] * 3), "has the times of only 4 batches"),
            (lambda w: w.ran([900.0] * 80), "reaches back only 20.0 h"),
            (lambda w: w.ran([*QUARTERS, 4501.0]), "pauses at times: up to 4501 s"),
            (lambda w: w.ran([*[2.0] * 30, DAY, *[2.0] * 30, DAY, *[2.0] * 9]), "pauses at times: up to 86400 s"),
            (lambda w: w.put("metadata"), "no batch is logged yet"),
            (lambda w: w.ran(QUARTERS).log(), "offsets/101|logged and not committed"),
            (lambda w: w.ran(QUARTERS).location.delete("offsets/40"), "numbers are missing"),
            (lambda w: w.ran(QUARTERS).location.delete("commits/40"), "does not follow"),
            (lambda w: w.ran(QUARTERS).put("commits/101"), "does not follow"),
            (lambda w: w.ran(QUARTERS).put("offsets/100", offsets_log('{"0":1}')), "as in continuous mode"),
            (lambda w: w.ran(QUARTERS).put("offsets/7", b""), "cannot be read"),
            (lambda w: w.ran(QUARTERS).put("offsets/7", w.location.read("offsets/70")), "go backwards"),
        ],
    )
    def test_where_it_proves_nothing(self, history: Callable[[World], object], why: str) -> None:
        world = World()
        history(world)
        error = refused(world)
        assert why.rpartition("|")[2] in error.message
        assert error.needed is None
        assert error.hint is not None
        assert error.hint.endswith("or a command (--stopped-if)")  # there is no third way
        assert world.awake == 0

    def test_a_probe_is_asked_meanwhile(self) -> None:
        world = World().ran(QUARTERS)
        assert prove(world, replace(PATIENT, probes=(Says([None, None, None, "it ended"]),))).how == RestEvidence.PROBE
        assert world.awake < 100
        world = World().ran(QUARTERS)
        assert refused(world, replace(PATIENT, probes=(Says([None, None, RUNS]),))).message == "application app-7 runs"


class TestTimeThatHasPassed:
    def test_it_counts_by_the_store_s_clock(self) -> None:
        world = World().ran(QUARTERS)
        world.sleep(2000)
        began = world.awake
        assert prove(world, store_now=lambda: world.now).how == RestEvidence.QUIET
        assert world.awake - began == pytest.approx(700.0)

    def test_a_minute_is_watched_in_any_case(self) -> None:
        """A query that was just started has written nothing yet."""
        world = World().ran(QUARTERS)
        world.sleep(DAY)
        began = world.awake
        prove(world, store_now=lambda: world.now)
        assert world.awake - began == pytest.approx(60.0)
        world.at(30, world.batch)
        assert "is in use: commits/0 changed within 60 s (5" in refused(world, store_now=lambda: world.now).message

    @pytest.mark.parametrize(("files_have_times", "clock"), [(True, "none"), (True, "unknown"), (False, "known")])
    def test_it_does_not_without(self, files_have_times: bool, clock: str) -> None:
        world = World().ran(QUARTERS)
        world.store.tells_times = files_have_times
        world.sleep(DAY)
        began = world.awake
        prove(world, store_now={"none": None, "unknown": lambda: None, "known": lambda: world.now}[clock])
        assert world.awake - began == pytest.approx(2700.0)

    def test_a_store_whose_clock_is_late(self) -> None:
        world = World().ran(QUARTERS)
        began = world.awake
        prove(world, store_now=lambda: world.now - timedelta(hours=1))
        assert world.awake - began == pytest.approx(2700.0)


class TestPaused:
    """A watcher that was suspended may have been suspended with the query, on the same computer."""

    def test_a_pause_is_no_silence(self) -> None:
        world = World({3: 8 * HOUR}).ran(QUARTERS)
        assert "is not known" in refused(world).message  # but it takes from the wait

    def test_a_frozen_process_whose_clock_goes_on(self) -> None:
        world = World().ran(QUARTERS)
        frozen = iter([2000.0])
        clock = replace(world.clock, sleep=lambda s: world.sleep(s + next(frozen, 0.0)))
        proof = prove_rest(world.location, replace(PATIENT, wait_at_most=2 * HOUR), clock=clock)
        assert proof.how == RestEvidence.QUIET
        assert world.awake > 2700 + 1900


class TestStopping:
    def sealed(self, world: World) -> World:
        put_seal(world.location, world.next_batch, plan_id="7f3a", reason="stopping", made_by="me")
        return world

    def test_a_batch_under_way_ends_first(self) -> None:
        world = World().ran(QUARTERS)
        world.log()
        self.sealed(world).at(500, world.commit)
        proof = prove(world, stopping=True)
        assert proof.how == RestEvidence.QUIET
        assert world.awake == pytest.approx(500 + 2700, abs=10)

    def test_a_probe_that_says_so_later(self) -> None:
        world = self.sealed(World().ran([1.0] * 5))
        proof = prove(world, RestRule(probes=(Says([RUNS, RUNS, None, "it ended"]),)), stopping=True)
        assert (proof.how, proof.words) == (RestEvidence.PROBE, "it ended")

    def test_a_word_that_becomes_right(self) -> None:
        world = World().ran([1.0] * 5)
        world.log()
        self.sealed(world).at(3, world.commit)
        assert prove(world, RestRule(query_is_stopped=True), stopping=True).how == RestEvidence.STATEMENT

    def test_not_within_the_time(self) -> None:
        world = self.sealed(World().ran([1.0] * 5))
        error = refused(world, RestRule(probes=(Says([RUNS]),)), stopping=True)
        assert error.message == (
            "memory://ck/orders is sealed, and it is still not known that its query is stopped: application app-7 runs"
        )
        assert error.hint is not None
        assert error.hint.endswith(
            "It stays sealed; to start the query instead: airflow-ckpt unseal memory://ck/orders --for-start"
        )
        assert world.awake == pytest.approx(600, abs=10)
        assert "offsets/6" in world.location.walk()

    def test_where_waiting_cannot_help(self) -> None:
        world = self.sealed(World().ran([1.0] * 5))
        assert "reaches back only 5 s" in refused(world, stopping=True).message
        assert world.awake == 0

    def test_the_seal_is_no_change(self) -> None:
        world = World().ran([1.0] * 5)
        world.at(2, lambda: world.put("offsets/.6.crc"))
        assert prove(self.sealed(world), RestRule(query_is_stopped=True)).how == RestEvidence.STATEMENT


#: Seconds between batches, of a part of a day: steady, or now and then, or nothing.
_PARTS = st.one_of(
    st.tuples(st.floats(60, 4 * HOUR), st.integers(1, 60)).map(lambda part: [part[0]] * part[1]),
    st.lists(st.floats(30, 6 * HOUR), min_size=1, max_size=10),
)


@settings(max_examples=60)
@given(
    parts=st.lists(_PARTS, min_size=1, max_size=4),
    days=st.integers(1, 4),
    stop=st.floats(0, 1),
    looks=st.lists(st.floats(0, DAY), min_size=1, max_size=4),
    wait=st.sampled_from([600.0, HOUR, DAY]),
    credited=st.booleans(),
)
def test_silence_is_no_proof_while_a_query_goes_on_as_it_always_did(
    parts: list[list[float]], days: int, stop: float, looks: list[float], wait: float, credited: bool
) -> None:
    """A habit that repeats within a day: whenever it is read, the query runs, so there is no proof."""
    habit = list(itertools.chain(*parts))
    while sum(habit) > DAY:
        habit.pop()
    if not habit:
        return
    world = World().runs_on(itertools.cycle(habit))
    world.batch()
    world.sleep((days + stop) * sum(habit))
    for pause in looks:
        world.sleep(pause)
        now = (lambda: world.now) if credited else None
        with pytest.raises(QueryNotStoppedError):
            prove(world, RestRule(wait_at_most=wait), store_now=now)


@settings(max_examples=60)
@given(pause=st.floats(30, 600), spread=st.floats(0, 1), look=st.floats(0, 1), cycles=st.integers(1, 3))
def test_silence_is_no_proof_in_the_night_of_a_query_that_works_by_day(
    pause: float, spread: float, look: float, cycles: int
) -> None:
    """All that Spark keeps of it is even: the pause comes after so many batches that the one before is purged."""
    day = 102 + int(spread * max(0.0, DAY / 2 / pause - 102))
    night = DAY - day * pause
    world = World().ran([*[pause] * day, night] * (cycles - 1) + [pause] * day)
    world.runs_on(itertools.chain([night], itertools.cycle([*[pause] * day, night])))
    world.sleep(look * night)
    with pytest.raises(QueryNotStoppedError):
        prove(world, RestRule(wait_at_most=DAY), store_now=lambda: world.now)


@settings(max_examples=10)
@given(
    pause=st.floats(900, 3 * HOUR), spread=st.floats(0, 0.3), seed=st.randoms(use_true_random=False), at=st.floats(0, 1)
)
def test_a_stopped_query_of_even_pauses_is_proven_silent(pause: float, spread: float, seed: object, at: float) -> None:
    uniform = seed.uniform  # type: ignore[attr-defined]
    world = World().ran([pause * (1 + uniform(-spread, spread)) for _ in range(130)])
    world.sleep(at * pause)
    assert prove(world, RestRule(wait_at_most=5 * DAY)).how == RestEvidence.QUIET


def test_a_clock_that_shows_no_picosecond_ends_the_watch() -> None:
    """What is left of the wait can be less than a float of a clock that has counted for long can show."""
    world = World().ran([1800.1] * 130)
    world.awake = 2.0**33
    proof = prove(world, RestRule(wait_at_most=5 * DAY))
    assert proof.how == RestEvidence.QUIET


def test_a_probe_is_what_the_rule_takes() -> None:
    probe: StopProbe = Says(["ended"])
    assert RestRule(probes=(probe,)).probes[0].ended() == "ended"
