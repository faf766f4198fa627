"""Which of the two models of the settings serves: that of the record's vectors.

Usually that is --model-dir. Where Reembed has switched the record to the next model and the
settings were not changed since, it is --next-model-dir, and the former one is let go.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog

from semanticrecall_core.embedding.cache_format import delete_cache_file
from semanticrecall_core.types.ports import Embedder

from .config import Settings

CACHE_FILE = "embeddings.db"
"""Vector cache in the data directory, of the model that --model-dir names."""

Load = Callable[[Settings], Embedder]
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Models:
    """Loaded models.

    Attributes:
        embedder: serves.
        following: is to take its place; None for none.
        former: index identity of the one that the record was switched from, "" where it was not.
        next_is_same: the settings name the model that serves as the next one too.
    """

    embedder: Embedder
    following: Embedder | None = None
    former: str = ""
    next_is_same: bool = False

    def close(self) -> None:
        """Let go of both."""
        self.embedder.close()
        if self.following is not None:
            self.following.close()

    def chosen(self, settings: Settings, generation: str) -> Models:
        """Those that are needed for a record that is searched by this generation.

        The others are closed. What the former one kept on disk is deleted: nobody could ask it to
        forget anything.
        """
        following = self.following
        if following is None:
            return self
        if self.embedder.generation == generation:
            if following.generation != generation:
                return self
            following.close()
            _log.warning("next_model_is_the_one_that_serves", identity=self.embedder.index_identity)
            return Models(self.embedder, next_is_same=True)
        former = self.embedder.index_identity
        _log.warning("next_model_serves", hint="name it in --model-dir and --device from now on")
        self.embedder.close()
        discard_cache_file(settings)
        return Models(following, None, former)


def load_models(settings: Settings, load: Load, load_next: Load) -> Models:
    """Load what the settings name; where one fails, none is left open."""
    embedder = load(settings)
    if settings.next_model_dir is None:
        return Models(embedder)
    try:
        return Models(embedder, load_next(settings))
    except BaseException:
        embedder.close()
        raise


def discard_cache_file(settings: Settings) -> None:
    """Delete the vector cache of a model that is closed, or of a record that is gone."""
    with suppress(OSError):  # then it is found to be another model's
        delete_cache_file(settings.data_dir / CACHE_FILE)
