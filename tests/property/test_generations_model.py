"""Random histories while the model is exchanged, over and over: every answer is one model's."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from semanticrecall_core.engine import generations
from semanticrecall_core.types.errors import AlreadyExistsError, NotFoundError
from semanticrecall_core.types.values import ForgetTarget
from support.exchanging_engine import Exchanging, Numbered

MEMORY = Path("/dev/shm")
PAUSED_MAX_S = generations.PAUSED_MAX_S
RESOURCES = ("u", "v")
IDS = [f"m{n}" for n in range(6)]
TEXTS = [f"{a} {b}" for a in ("red", "green", "blue") for b in ("tea", "boat", "house")]

QUERY = "some green boat"

resources = st.sampled_from(RESOURCES)
texts = st.dictionaries(st.sampled_from(IDS), st.sampled_from(TEXTS), min_size=1, max_size=3)


class ModelsAreExchanged(RuleBasedStateMachine):
    """A dictionary of texts, and brute force with the model that should answer."""

    def __init__(self) -> None:
        super().__init__()
        self._home = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        self.home = Path(self._home.name)
        self.texts: dict[str, dict[str, str]] = {resource: {} for resource in RESOURCES}
        self.number = 0

    @initialize()
    def begin(self) -> None:
        generations.PAUSED_MAX_S = 0.05
        self._start()

    def _start(self) -> None:
        """Model `number` serves, the one after it is next; its first runs are held up."""
        while True:
            self.running = Exchanging(self.home, Numbered(self.number), Numbered(self.number + 1))
            if self.running.store.generation == self.running.embedder.generation:
                break
            self.running.engine.stop()  # it was through before it was stopped
            self.number += 1
        self.following = None
        self.gates = [self.running.next_embedder.block_on(text) for text in TEXTS]
        self.running.engine.exchange.on_switch(self._let_all_through)
        self.running.start()

    def _let_all_through(self) -> None:
        for gate in self.gates:
            gate.release.set()

    @rule(resource=resources, given=texts)
    def add(self, resource: str, given: dict[str, str]) -> None:
        """New ones, and others in the place of those that are there."""
        self.running.add(resource, given)
        self.texts[resource].update(given)

    @rule(resource=resources, gone=st.lists(st.sampled_from(IDS), min_size=1, max_size=3))
    def forget(self, resource: str, gone: list[str]) -> None:
        self.running.engine.forget(resource, ForgetTarget(message_ids=tuple(gone)))
        for name in gone:
            self.texts[resource].pop(name, None)

    @rule(resource=resources)
    def forget_all(self, resource: str) -> None:
        self.running.engine.forget(resource, ForgetTarget(everything=True))
        self.texts[resource].clear()

    @rule(resource=resources)
    def move(self, resource: str) -> None:
        other = next(name for name in RESOURCES if name != resource)
        try:
            self.running.engine.transfer_thread(resource, "t", other)
        except (NotFoundError, AlreadyExistsError):
            return
        self.texts[other].update(self.texts[resource])
        self.texts[resource].clear()

    @rule()
    def ask_for_the_exchange(self) -> None:
        """It begins, or is joined, and is held up at the first text."""
        if self.following is None:
            self.following = self.running.follow()
        self.seen = next(self.following, None)

    @rule(which=st.integers(0, len(TEXTS) - 1))
    def let_one_text_through(self, which: int) -> None:
        self.gates[which].release.set()

    @precondition(lambda self: self.following is not None)
    @rule()
    def complete_the_exchange(self) -> None:
        self._let_all_through()
        events = self.running.reembed()
        total = sum(len(texts) for texts in self.texts.values())
        assert (events[-1].done, events[-1].total, events[-1].complete) == (total, total, True)
        self.running.wait_until_retired()
        size = self.running.next_embedder.dimensions
        assert self.running.vectors_on_record() == ({(total, 4 * size)} if total else set())
        before = self.number
        self._restart()
        assert self.number == before + 1

    @rule()
    def restart(self) -> None:
        """In the middle of it or not; the next call goes on."""
        self._restart()

    def _restart(self) -> None:
        self.running.engine.stop()
        self._start()

    @invariant()
    def every_answer_is_one_models(self) -> None:
        if not hasattr(self, "running"):
            return
        numbers = set()
        for resource, texts in self.texts.items():
            found = self.running.found(resource, QUERY, top_k=10)
            assert {name for name, _ in found} == set(texts)
            for number in (self.number, self.number + 1):
                asked = Numbered.vector(QUERY, number).astype(np.float64)
                right = {n: float(Numbered.vector(t, number) @ asked) for n, t in texts.items()}
                if texts and all(abs(right[name] - score) < 1e-5 for name, score in found):
                    numbers.add(number)
        assert len(numbers) == any(self.texts.values())
        if self.following is None and numbers:
            assert numbers == {self.number}

    def teardown(self) -> None:
        generations.PAUSED_MAX_S = PAUSED_MAX_S
        if hasattr(self, "running"):
            self.running.engine.stop()
        self._home.cleanup()


TestModelsAreExchanged = ModelsAreExchanged.TestCase
TestModelsAreExchanged.settings = settings(max_examples=25, stateful_step_count=20)
