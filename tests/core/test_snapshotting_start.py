"""Images are compared with the record after a start: what it has lost since is forgotten."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from structlog.testing import capture_logs

from semanticrecall_core.types.errors import UnavailableError
from semanticrecall_core.types.values import CallBudget, ForgetTarget, ListQuery
from support.snapshotting_world import PLAN, WAIT_S, World


def imaged_world(*resources: str) -> World:
    """Images of resources, whose first message the record has lost since."""
    world = World(replace(PLAN, interval_s=0.0))
    for resource in resources:
        world.add(20, resource)
    world.snapshots.write(
        world.index.image_of(name, "g", world.store.load_partition(name)) for name in resources
    )
    world.snapshots.writes.clear()
    for resource in resources:
        first = world.store.list_messages(ListQuery(resource, None, limit=1))[0]
        world.store.forget(resource, ForgetTarget(message_ids=(first.id,)))
    return world


def test_comparing_images_after_a_start_gives_way_to_what_is_asked_for() -> None:
    world = imaged_world("u", "v", "w")
    events: list[str] = []
    asking = threading.Thread(
        target=world.snapshotting.create, args=[CallBudget.of_seconds(WAIT_S)]
    )
    compared = threading.Event()

    def at_seqs(resource_id: str) -> None:
        events.append(f"compare {resource_id}")
        if len(events) == 1:
            asking.start()
            assert world.snapshotting._wake.wait(WAIT_S)
        elif resource_id == "w":
            compared.set()

    world.snapshots.at_seqs = at_seqs
    world.snapshots.at_image = lambda resource_id: events.append(f"write {resource_id}")
    world.snapshotting.start()
    assert compared.wait(WAIT_S)
    asking.join(WAIT_S)
    assert not asking.is_alive()
    assert events[0] == "compare u"
    assert events.index("write u") < events.index("compare v") < events.index("compare w")
    world.snapshotting.stop()


def test_a_record_that_cannot_be_compared_is_said_and_the_next_one_is() -> None:
    world = imaged_world("u", "v")
    done = threading.Event()

    def at_seqs(resource_id: str) -> None:
        if resource_id == "u":
            raise UnavailableError("the disk", reason="DISK")

    forget = world.snapshots.forget

    def forget_and_tell(resource_ids: Sequence[str]) -> None:
        forget(resource_ids)
        done.set()

    world.snapshots.at_seqs = at_seqs
    world.snapshots.forget = forget_and_tell  # type: ignore[method-assign]
    with capture_logs() as logs:
        world.snapshotting.start()
        assert done.wait(WAIT_S)
        world.snapshotting.stop()
    assert list(world.snapshots.resources()) == []  # closed
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == [
        "snapshot_not_compared"
    ]
    assert {
        "event": "snapshots_forgotten_after_start",
        "partitions": 1,
        "log_level": "info",
    } in logs
    assert world.snapshotting.failures() == 1


def test_a_stop_does_not_wait_until_all_images_are_compared() -> None:
    world = imaged_world("u", "v", "w")
    compared: list[str] = []
    stopping = threading.Thread(target=world.snapshotting.stop)

    def at_seqs(resource_id: str) -> None:
        compared.append(resource_id)
        stopping.start()
        assert world.snapshotting._stopped.wait(WAIT_S)

    world.snapshots.at_seqs = at_seqs
    world.snapshotting.start()
    world.snapshotting._thread.join(WAIT_S)
    stopping.join(WAIT_S)
    assert not stopping.is_alive()
    assert compared == ["u"]
