"""What somebody can do who has the rights of one role, on a real S3 server, and who notices: the table of ``docs/security.md``.

Each attack is carried out twice: with the role's policy as it stands (through the gate that enforces ``s3:if-none-match``), and
without that condition, as on a server that does not know it. Whatever is not refused is either noticed by a command, or has no
effect, or is not noticed: then ``check`` and ``verify --read-data`` have to find nothing, or the table is wrong.

``python -m tests.component.test_attacks`` writes the table into the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup import repository as repositories
from airflow_ckpt_provider.errors import StorageError
from tests.support.attacks import ATTACKS, BACKUP, CHECK, TRUST, VERIFY, Attack, Intruder, taken_over, whole
from tests.support.backups import stream
from tests.support.checkpoints import contents, plant
from tests.support.roles import World, assume, condition_gate
from tests.support.s3_server import RESTRICTED, S3Server

PAGE = Path(__file__).parents[2] / "docs" / "security.md"


def table() -> str:
    """The table as the page has it."""
    columns = (
        "with the rights of",
        "somebody",
        "with the policy of AWS",
        "where `s3:if-none-match` is not known",
        "there, with signatures",
    )
    head = f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|\n"
    rows = (
        f"| {x.role} | {x.what} | {x.outcome(condition=True)} | {x.outcome(condition=False)} | "
        f"{x.outcome(condition=False, signed=True)} |"
        for x in ATTACKS
    )
    return head + "\n".join(rows) + "\n"


_TABLE = re.compile(r"(?<=<!-- attacks -->\n).*?(?=<!-- end of attacks -->)", re.DOTALL)


def test_the_page_has_the_table() -> None:
    found = _TABLE.search(PAGE.read_text())
    assert found is not None
    assert found[0] == table(), "run: python -m tests.component.test_attacks"
    assert len(ATTACKS) >= 25


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.slow)], ids=["format-1", "format-2"])
def made(s3_server: S3Server, request: pytest.FixtureRequest) -> World:
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(repositories, "DEFAULT_FORMAT", request.param)
        return World.on(s3_server)


@pytest.fixture(scope="module")
def made_signed(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> World:
    return World.on(s3_server, tmp_path_factory.mktemp("signing"))


def cases() -> Iterator[object]:
    for attack in ATTACKS:
        for condition in (True, False):
            if attack.refused != "condition" and not condition:
                continue  # the condition makes no difference
            name = f"{attack.role} {attack.what}{'' if condition else ' (without the condition)'}".replace("/", ".")
            yield pytest.param(attack, condition, id=name)


def cases_where_signed() -> Iterator[object]:
    """Those that only the signatures show run every time: the others end as they do without signatures."""
    for attack in ATTACKS:
        marks = () if attack.signed else (pytest.mark.slow,)
        yield pytest.param(attack, id=f"{attack.role} {attack.what}".replace("/", "."), marks=marks)


@pytest.mark.parametrize("attack", list(cases_where_signed()))
def test_attack_where_documents_are_signed(
    made_signed: World, attack: Attack, caplog: pytest.LogCaptureFixture
) -> None:
    """On a server that does not know the condition; the attacker has the role's rights, and not the signing key."""
    carried_out(made_signed, attack, caplog, condition=False)


@pytest.mark.parametrize(("attack", "condition"), list(cases()))
def test_attack(made: World, attack: Attack, condition: bool, caplog: pytest.LogCaptureFixture) -> None:
    carried_out(made, attack, caplog, condition=condition)


def carried_out(made: World, attack: Attack, caplog: pytest.LogCaptureFixture, *, condition: bool) -> None:
    # That of the attack before, if nothing was changed in it.
    world = made.untouched or made.anew()
    made.untouched = None
    signed, checkpoint = world.signing is not None, world.place("checkpoint").walk()
    plant(
        world.place("checkpoint/orders"), stream(12)
    ) if attack.noticed_by == BACKUP or attack.still is taken_over else None
    repository = world.repository
    oldest, newest = (repository.read_manifest("orders", backup_id) for backup_id in repository.backup_ids("orders"))
    before = contents(world.place("repository"))
    assume(world.server, attack.role, world.bucket, world.base)
    with condition_gate(world.server, attack.role, world.bucket, world.base) as gate:
        options = gate.options(RESTRICTED) if condition else world.server.options(RESTRICTED)
        places = (world.place(path, options) for path in ("repository", "checkpoint/orders"))
        intruder = Intruder(world, *places, newest, oldest)
        expected = attack.outcome(condition=condition, signed=signed)
        if expected == "refused":
            with pytest.raises(StorageError, match=r"\(AccessDenied\)"):
                attack.do(intruder)
            after = contents(world.place("repository"))
            changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
            assert all(path.startswith("running/") for path in changed), "the right of a backup to renew its lease"
            assert whole(world)
            if not changed and world.place("checkpoint").walk() == checkpoint:
                made.untouched = world
            return
        attack.do(intruder)
    if noticed_by := attack.noticed_by or (attack.signed if signed else None):
        finished = world.run(noticed_by)
        unsigned = r"not\s+signed\s+by|is\s+pinned" if not attack.says else rf"{attack.says}|not\s+signed\s+by"
        says = unsigned if signed else attack.says
        # The terminal wraps its lines, at another place for each path.
        said = " ".join((finished.out + finished.err + caplog.text).split())
        assert re.search(says, said), said
        assert "unexpected" not in finished.err, "by a message, and not by a traceback"
    elif attack.still:
        assert attack.still(world)
    else:
        for command in (CHECK, VERIFY, *([TRUST] if signed else [])):
            finished = world.run(command)
            assert finished.code == 0, (
                f"it is noticed by `{command}` now, so say so in the table: {finished.out}{finished.err}"
            )


if __name__ == "__main__":
    PAGE.write_text(_TABLE.sub(table().replace("\\", r"\\"), PAGE.read_text()))
