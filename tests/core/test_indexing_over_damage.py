"""A message that is given again takes the place of its damaged row, though it equals its hash."""

from __future__ import annotations

from pathlib import Path

import pytest

from semanticrecall_core.types.recalling import Mode
from semanticrecall_core.types.values import CallBudget, Status, Wait
from support.damaged_engine import TEXTS, DamagedEngine, on_record
from support.running_engine import draft

MANY = {**TEXTS, **{f"n{number}": f"number {number}" for number in range(20)}}
DAMAGES = {
    "body": "encoded = x'ff'",
    "body bit": "encoded = CAST(encoded || x'00' AS BLOB)",
    "no body": "encoded = x''",
    "no thread": "thread_key = 999",
    "checksum": "checksum = checksum + 1",
    "role": "role = 3 - role",
    "unknown role": "role = 77",
    "revision": "revision = revision + 1000000",
    "metadata": "metadata = '{\"a\": 1}'",
    "group": "group_id = 'other'",
}


@pytest.mark.parametrize("given", [{"m1": TEXTS["m1"]}, MANY], ids=["alone", "with others"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_it_is_there_again(tmp_path: Path, damage: str, given: dict[str, str]) -> None:
    made = DamagedEngine(tmp_path / "data")
    made.add("u", MANY)
    home = made.close()
    on_record(home, f"UPDATE messages SET {DAMAGES[damage]} WHERE id = 'm1'")
    engine = DamagedEngine(home)
    assert set(engine.ids("u")) == set(MANY) - {"m1"}
    drafts = [draft(name, text, thread_id="t") for name, text in given.items()]
    answer = engine.engine.index("u", drafts, Wait.SEARCHABLE, CallBudget.of_seconds(60))
    statuses = {d.id: r.status for d, r in zip(drafts, answer.results, strict=True)}
    assert statuses.pop("m1") is Status.REPLACED
    assert set(statuses.values()) <= {Status.UNCHANGED}
    assert engine.kinds("u") == []
    assert engine.engine.get_messages("u", ["m1"])[0].text == TEXTS["m1"]
    assert set(engine.ids("u")) == set(MANY)
    for mode in Mode:
        assert engine.first("u", TEXTS["m1"], mode) == "m1"
    answer = engine.engine.index("u", drafts, Wait.SEARCHABLE, CallBudget.of_seconds(60))
    assert {result.status for result in answer.results} == {Status.UNCHANGED}
    engine.close()
