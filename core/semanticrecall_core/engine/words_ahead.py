"""Words that are scored on another core while the model embeds the query.

The two need nothing of each other, and a model that runs in native code leaves the interpreter to
others. It is of use only where a core has nothing else to do: so recalls are counted, and the texts
that each embeds at once. What nobody has begun when it is wanted is taken back: a recall never
queues behind another one's words. Reasons and figures: docs/decisions/0023.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from semanticrecall_core.types.lexical import LexicalIndex, ScoredWords

CORES_MAX = 64


class WordsBegun:
    """Words that another thread scores, or will. `take` and `abandon` are for one thread.

    Two bare locks: a `Future` takes a tenth of what the words of a small resource do.
    """

    __slots__ = ("_done", "_error", "_is_wanted", "_unclaimed", "_words")

    def __init__(self) -> None:
        """Nobody has begun."""
        self._is_wanted = True
        self._unclaimed = threading.Lock()  # whoever gets it scores the words, or takes them back
        self._done = threading.Lock()  # held until they are scored
        self._done.acquire()
        self._words: ScoredWords | None = None
        self._error: BaseException | None = None

    def run(self, score: Callable[[], ScoredWords]) -> None:
        """Score them, if they are still wanted."""
        if not self._unclaimed.acquire(blocking=False):
            return
        try:
            self._words = score()
        except BaseException as error:  # whoever waits raises it
            self._error = error
        finally:
            self._done.release()

    def take(self) -> ScoredWords | None:
        """What was scored, once; waits for who has begun.

        None where nobody has begun (and nobody will), and for who asks again: words age.

        Raises:
            SemanticRecallError: what the index raised.
        """
        if not self._is_wanted:
            return None
        self._is_wanted = False
        if self._unclaimed.acquire(blocking=False):
            return None
        self._done.acquire()
        words, self._words = self._words, None
        if self._error is not None:
            raise self._error
        return words

    def abandon(self) -> None:
        """Nobody wants them any more."""
        if self._is_wanted:
            self._is_wanted = False
            self._unclaimed.acquire(blocking=False)


class WordsAhead:
    """Threads for the words of all recalls together, one fewer than cores. Thread-safe.

    Threads are started when they are first of use.
    """

    def __init__(self, lexical: LexicalIndex | None, cores: int) -> None:
        """Recalls may use so many cores together, 1 to 64; with 1 nothing is done ahead."""
        self._lexical = lexical
        self._cores = min(CORES_MAX, max(1, cores))
        self._lock = threading.Lock()
        self._busy = 0
        self._pool = ThreadPoolExecutor(max(1, self._cores - 1), thread_name_prefix="words-ahead")

    @contextmanager
    def recalling(self) -> Generator[None]:
        """A recall is at work on the calling thread."""
        self._add(1)
        try:
            yield
        finally:
            self._add(-1)

    def begin(
        self, resource_id: str, texts: tuple[str, ...], top_k: int, *, embedding: int
    ) -> WordsBegun | None:
        """Have `LexicalIndex.scored` called; None where no core is free for it.

        Args:
            embedding: how many texts the recall embeds meanwhile, at once: 1 or more.
        """
        with self._lock:
            if self._lexical is None or self._busy + embedding > self._cores:
                return None
            self._busy += 1
        begun = WordsBegun()
        try:
            self._pool.submit(self._score, self._lexical, begun, resource_id, texts, top_k)
        except RuntimeError:  # closed, or no thread to be had
            self._add(-1)
            return None
        return begun

    def close(self) -> None:
        """End the threads, after what each has in hand. Recalls go on without them."""
        self._pool.shutdown(wait=True)

    def _score(
        self,
        lexical: LexicalIndex,
        begun: WordsBegun,
        resource_id: str,
        texts: tuple[str, ...],
        top_k: int,
    ) -> None:
        try:
            begun.run(lambda: lexical.scored(resource_id, texts, top_k))
        finally:
            self._add(-1)

    def _add(self, count: int) -> None:
        with self._lock:
            self._busy += count
