"""The same store in several sizes, for the benchmarks that say how a figure grows with the store.

A store of more than the measured resource is a crowd: that resource, and others that share the rest
of the messages evenly. Directories are named by what they hold, so that scripts share them: those
that `growth`, `start` and `resident_memory` build at their full size are `alone` and `crowded`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.store_builder import ResourcePlan, build, crowd, many

SIZES_MAX = 8
MESSAGES_MAX = 20_000_000
SHARED = {(10_000, 1, 10_000, 7): "alone", (1_000_000, 10_000, 10_000, 7): "crowded"}
"""Directories of `growth`, by messages, resources, messages of the largest, and seed."""


def measured_resource(messages: int, seed: int) -> ResourcePlan:
    """The resource that is asked, the same in every store."""
    return ResourcePlan("measured", messages, seed)


def sizes_of(text: str) -> tuple[int, ...]:
    """Messages of each store, of a flag's "10000,100000": ascending, each once.

    Raises:
        ValueError: no number of messages, too many messages, or too many stores.
    """
    sizes = tuple(sorted({int(part) for part in text.split(",")}))
    if not 1 <= sizes[0] <= sizes[-1] <= MESSAGES_MAX or len(sizes) > SIZES_MAX:
        raise ValueError(f"--sizes: 1 to {SIZES_MAX} numbers of 1 to {MESSAGES_MAX:,} messages")
    return sizes


@dataclass(frozen=True, slots=True)
class SizedStore:
    """A store of one of the sizes.

    Attributes:
        messages: of all resources together.
        plan: its resources.
        name: of its directory.
    """

    messages: int
    plan: tuple[ResourcePlan, ...]
    name: str

    def build_in(self, directory: Path) -> Path:
        """Build it, unless it is there; returns its own directory."""
        store = directory / self.name
        if not (store / "built.json").exists():
            print(f"building {self.messages} messages in {store.name}", flush=True)
        build(store, self.plan)
        return store


def crowded(messages: int, measured: ResourcePlan, resource_messages: int) -> SizedStore:
    """The measured resource among as many others as make `resource_messages` a resource.

    Alone, where there is no more than its own messages.
    """
    if messages < measured.messages:
        raise ValueError(f"a store of {messages} holds no resource of {measured.messages}")
    if messages == measured.messages:
        plan, resources = [measured], 1
    else:
        resources = max(2, messages // resource_messages)
        plan = crowd(measured, resources, messages)
    made_of = (messages, resources, measured.messages, measured.seed)
    name = "crowded-{}-in-{}-largest-{}-seed-{}".format(*made_of)
    return SizedStore(messages, tuple(plan), SHARED.get(made_of, name))


def even(messages: int, resource_messages: int, seed: int) -> SizedStore:
    """Resources of `resource_messages` each, and no larger one."""
    resources = max(1, messages // resource_messages)
    name = f"even-{messages}-in-{resources}-seed-{seed}"
    return SizedStore(messages, tuple(many(resources, messages, seed=seed)), name)


def with_small_resources(
    sizes: Sequence[int], measured: ResourcePlan, resource_messages: int
) -> list[SizedStore]:
    """Stores that are shared with `crowded` where the measured resource is a small part of them.

    The part is a tenth at most: in smaller stores most of the messages would be that resource's.
    """
    return [
        crowded(size, measured, resource_messages)
        if size >= 10 * measured.messages
        else even(size, resource_messages, measured.seed)
        for size in sizes
    ]
