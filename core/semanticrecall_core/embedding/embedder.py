"""Texts to unit vectors: chunking, cache, single-flight, scheduling, ONNX.

Queries and passages have a session each on the processor, so that a query never waits for a lock
that a passage holds on a thread of low priority; for the same reason they share neither flights nor
a queue. They do share the cache: a vector depends on (prompt, chunk text) and on nothing else, but
what one owner has cached is never looked up for another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import structlog

from ..types.errors import EmbeddingFailedError, InvalidArgumentError, ModelUnavailableError
from ..types.stats import CacheStats, SchedulerStats
from ..types.values import CallBudget, EmbeddedText, EmbedRole
from .batching import batches_agree, batching_scheduler
from .cache import CachedVector, CacheKey, open_vector_cache
from .cache_file import CacheFileOptions
from .chunking import Chunk, chunks_of
from .encoder_model import EncoderModel, refuse_external_data
from .folder import read_model_folder
from .manifest import ModelFiles, Probe
from .provision import find_model
from .scheduler import DEFAULT_SCHEDULING, Scheduler, Scheduling, SlotScheduler
from .session import Device, EncoderSession, choose_device
from .single_flight import SingleFlight
from .spec import ModelSpec
from .token_counting import count_tokens, cut_to_tokens
from .tokenizer import TextTokenizer

if TYPE_CHECKING:
    from ..types.values import FloatRows

CACHE_BYTES_DEFAULT = 64 * 1024 * 1024

_SELF_TEST_TEXT = "The quick brown fox jumps over the lazy dog."
_WARM_UP_TEXT = "warm up the longest window there is "
_SPECIAL_TOKENS_MAX = 4
_BATCH_TEST_TEXTS = ("Hello!", "Where did we leave the boat last summer?", _SELF_TEST_TEXT * 3)

_log = structlog.get_logger(__name__)


class _Whole(NamedTuple):
    """All of a text, prepared, and the key it has if it is one chunk."""

    text: str
    key: CacheKey


class OnnxEmbedder:
    """Implements the `Embedder` port.

    The constructor opens both sessions, compares the model's known vectors, and warms up; it
    returns when the first call is as fast as any other.

    Args:
        model: verified in memory.
        device: "cpu", "cuda" or "auto".
        cache_bytes_max: of vectors kept in memory; 0 keeps none, on disk neither.
        cache_file: where vectors outlive the process; None is nowhere. See `close`.
        scheduling: bounds of what waits and runs.

    Raises ModelUnavailableError when the model cannot be opened on the device asked, or gives
    other vectors than it should.
    """

    def __init__(
        self,
        model: EncoderModel,
        *,
        device: str = "auto",
        cache_bytes_max: int = CACHE_BYTES_DEFAULT,
        cache_file: CacheFileOptions | None = None,
        scheduling: Scheduling = DEFAULT_SCHEDULING,
    ) -> None:
        spec = model.spec
        if not model.graph_version:
            refuse_external_data(model.graph)
        self._tokenizer = TextTokenizer(model.tokenizer_json, spec.max_tokens)
        self._prompts = {
            EmbedRole.QUERY: spec.query_prompt,
            EmbedRole.PASSAGE: spec.passage_prompt,
        }
        self._device: Device
        self._device, self._sessions = _open_sessions(model, device, shared=scheduling.one_session)
        self._dimensions = spec.dimensions
        self._generation = model.generation
        self._index_identity = model.index_identity
        self._flights = {role: SingleFlight[CacheKey, CachedVector]() for role in EmbedRole}
        self._self_test(model)
        self._scheduler = self._choose_scheduler(spec, scheduling)
        self._cache_bytes_max = cache_bytes_max
        self._cache = open_vector_cache(
            cache_bytes_max, cache_file, self._generation, self._dimensions
        )
        _log.info(
            "embedding.ready",
            model=self._index_identity,
            device=self._device,
            device_asked=device,
            quantisation=spec.quantisation,
            probes=len(model.probes),
            batched=not isinstance(self._scheduler, SlotScheduler),
        )

    @property
    def dimensions(self) -> int:
        """Numbers in a vector."""
        return self._dimensions

    @property
    def generation(self) -> str:
        """Identity of the vectors; see `EncoderModel.generation`."""
        return self._generation

    @property
    def index_identity(self) -> str:
        """Short readable form; see `EncoderModel.index_identity`."""
        return self._index_identity

    @property
    def device(self) -> str:
        """Where it runs: "cpu" or "cuda"."""
        return self._device

    @property
    def healthy(self) -> bool:
        """False once a thread that embeds has died."""
        return self._scheduler.healthy

    @property
    def passages_at_once(self) -> int:
        """How many callers with a passage each keep it busy."""
        return self._scheduler.passages_at_once

    def embed_query(self, text: str, budget: CallBudget, owner: str = "") -> EmbeddedText:
        """One vector, shape (1, dimensions); text longer than the window is cut.

        Raises InvalidArgumentError for a text without tokens, EmbeddingFailedError,
        ResourceExhaustedError, UnavailableError, DeadlineExceededError, CancelledError.
        """
        return self.embed_window(text, EmbedRole.QUERY, budget, owner)

    def embed_queries(
        self, texts: Sequence[str], budget: CallBudget, owner: str = ""
    ) -> list[EmbeddedText]:
        """As `embed_query` for each; what is not cached runs together. Raises as that does."""
        return self._first_windows(EmbedRole.QUERY, texts, budget, owner)

    def queries_to_compute(self, texts: Sequence[str], owner: str = "") -> int:
        """How many of these have no vector in memory; those beyond a window count."""
        unknown = 0
        for text in texts:
            whole = self._whole(EmbedRole.QUERY, text, owner)
            unknown += whole is None or whole.key not in self._cache
        return unknown

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """How many tokens each text is, without those around a text; see `token_counting`."""
        return count_tokens(self._tokenizer, texts)

    def cut_to_tokens(self, text: str, tokens_max: int) -> str:
        """The longest beginning of at most so many tokens, whole ones; see `token_counting`."""
        return cut_to_tokens(self._tokenizer, text, tokens_max)

    def embed_window(
        self, text: str, role: EmbedRole, budget: CallBudget, owner: str = ""
    ) -> EmbeddedText:
        """The vector of a text's first window, in either role. Raises as `embed_query` does."""
        (answer,) = self._first_windows(role, (text,), budget, owner)
        return answer

    def embed_passage(self, text: str, budget: CallBudget, owner: str = "") -> EmbeddedText:
        """One vector per chunk, shape (chunks, dimensions). Raises as `embed_query` does."""
        role = EmbedRole.PASSAGE
        budget.check()
        whole = self._whole(role, text, owner)
        if whole is not None and (known := self._cache.get(whole.key)) is not None:
            return _answer([known], computed=0, truncated=False)
        rows: list[CachedVector] = []
        computed = 0
        for chunk in self._chunks(role, text, whole):
            budget.check()
            key = self._key(role, chunk, whole, owner)
            if (entry := self._in_memory(key, whole)) is None:
                fresh: set[CacheKey] = set()
                entry = self._flown(role, {key: chunk}, budget, fresh)[key]
                computed += len(fresh)
            rows.append(entry)
        if not rows:
            raise _nothing_to_embed()
        return _answer(rows, computed=computed, truncated=False)

    def forget_texts(self, texts: Sequence[str], owner: str = "") -> int:
        """Drop the owner's cached vectors of these texts and their chunks; returns how many."""
        keys: set[CacheKey] = set()
        for text in texts:
            for prompt in set(self._prompts.values()):
                if self._surely_one_chunk(prompt, text):
                    keys.add(self._cache.key(owner, prompt, self._tokenizer.prepare("", text)))
                else:
                    chunks = chunks_of(self._tokenizer, prompt, text)
                    keys.update(self._cache.key(owner, prompt, chunk.text) for chunk in chunks)
        return self._cache.forget(keys)

    def forget_owner(self, owner: str) -> int:
        """Drop all that is cached for the owner; returns how many entries."""
        return self._cache.forget_owner(owner)

    def erase_forgotten(self) -> bool:
        """Free the cache's file of what was forgotten; False where a reader is in the way."""
        return self._cache.erase_forgotten()

    def cache_stats(self) -> CacheStats:
        """State of the cache."""
        return self._cache.stats()

    def keep_on_disk(self, file: CacheFileOptions) -> None:
        """Keep vectors in this file from now on, before the first text is embedded.

        A file of another generation is begun anew: so call it when it is known to be of no use.
        """
        self._cache.close()
        self._cache = open_vector_cache(
            self._cache_bytes_max, file, self._generation, self._dimensions
        )

    def close(self) -> None:
        """Write to disk what the cache has not written yet. No text is embedded afterwards."""
        self._cache.close()

    def scheduler_stats(self) -> SchedulerStats:
        """What waits and what has run."""
        return self._scheduler.stats()

    def _chunks(self, role: EmbedRole, text: str, whole: _Whole | None = None) -> Iterator[Chunk]:
        prepared = None if whole is None else whole.text
        return chunks_of(self._tokenizer, self._prompts[role], text, prepared)

    def _surely_one_chunk(self, prompt: str, text: str) -> bool:
        """Whether a text fits the window by its length alone: no token is less than a byte."""
        length = len(prompt.encode()) + len(text) + _SPECIAL_TOKENS_MAX
        return text.isascii() and length <= self._tokenizer.max_tokens

    def _whole(self, role: EmbedRole, text: str, owner: str) -> _Whole | None:
        """What finds the cached vector of a text that is one chunk, without the tokenizer.

        A key is only ever made of the text of one chunk, so a whole text found by its key is one.
        """
        if len(text) > self._tokenizer.slice_chars:
            return None
        prepared = self._tokenizer.prepare("", text)
        return _Whole(prepared, self._cache.key(owner, self._prompts[role], prepared))

    def _key(self, role: EmbedRole, chunk: Chunk, whole: _Whole | None, owner: str) -> CacheKey:
        if whole is not None and whole.text == chunk.text:
            return whole.key
        return self._cache.key(owner, self._prompts[role], chunk.text)

    def _in_memory(self, key: CacheKey, whole: _Whole | None) -> CachedVector | None:
        """A chunk's vector. That of a whole text was looked for already."""
        return None if whole is not None and key is whole.key else self._cache.get(key)

    def _first_windows(
        self, role: EmbedRole, texts: Sequence[str], budget: CallBudget, owner: str
    ) -> list[EmbeddedText]:
        """As `embed_window` for each; what is not cached runs together."""
        found: dict[CacheKey, CachedVector] = {}
        wanted: dict[CacheKey, Chunk] = {}
        windows: list[tuple[CacheKey, bool]] = []
        for text in texts:
            budget.check()
            whole = self._whole(role, text, owner)
            if whole is not None and (known := self._cache.get(whole.key)) is not None:
                found[whole.key] = known
                windows.append((whole.key, True))
                continue
            chunk = next(self._chunks(role, text, whole), None)
            if chunk is None:
                raise _nothing_to_embed()
            key = self._key(role, chunk, whole, owner)
            windows.append((key, chunk.last))
            if key in wanted or key in found:
                continue
            if (known := self._in_memory(key, whole)) is None:
                wanted[key] = chunk
            else:
                found[key] = known
        fresh: set[CacheKey] = set()
        if wanted:
            found |= self._flown(role, wanted, budget, fresh)
        answers: list[EmbeddedText] = []
        for key, is_all in windows:
            computed = int(key in fresh)
            fresh.discard(key)  # of equal texts the first was computed
            answers.append(_answer([found[key]], computed=computed, truncated=not is_all))
        return answers

    def _flown(
        self,
        role: EmbedRole,
        wanted: Mapping[CacheKey, Chunk],
        budget: CallBudget,
        fresh: set[CacheKey],
    ) -> dict[CacheKey, CachedVector]:
        """Vectors of chunks that are not in memory; those that this call computed are `fresh`."""

        def compute(keys: Sequence[CacheKey]) -> list[CachedVector | EmbeddingFailedError]:
            computed = self._found_or_computed(
                role, {key: wanted[key] for key in keys}, budget, fresh
            )
            return [computed[key] for key in keys]

        flown = self._flights[role].run_all(tuple(wanted), compute, budget)
        return {key: entry for key, (entry, _) in zip(wanted, flown, strict=True)}

    def _found_or_computed(
        self,
        role: EmbedRole,
        asked: Mapping[CacheKey, Chunk],
        budget: CallBudget,
        fresh: set[CacheKey],
    ) -> dict[CacheKey, CachedVector | EmbeddingFailedError]:
        """Vectors of chunks that were not in memory; those that were computed are in `fresh`."""
        found: dict[CacheKey, CachedVector | EmbeddingFailedError] = {}
        missing: list[CacheKey] = []
        for key, chunk in asked.items():
            # The flight that this caller just missed may have left its result here, or an earlier
            # process on the disk.
            if (known := self._cache.find(key)) is not None:
                found[key] = known
            elif len(chunk.ids) > self._tokenizer.max_tokens:
                found[key] = EmbeddingFailedError("a chunk is longer than the model's window")
            else:
                missing.append(key)
        marks = [self._cache.begin_miss() for _ in missing]
        results = self._scheduler.run_all(role, [asked[key].ids for key in missing], budget)
        for key, mark, result in zip(missing, marks, results, strict=True):
            if isinstance(result, EmbeddingFailedError):
                found[key] = result
                continue
            found[key] = entry = CachedVector(result, len(asked[key].ids))
            self._cache.put(key, entry, mark)
            fresh.add(key)
        return found

    def _self_test(self, model: EncoderModel) -> None:
        """Compare known vectors on both sessions, compare the sessions, and warm both up."""
        try:
            self._compare_known(model)
            longest = next(
                self._chunks(EmbedRole.PASSAGE, _WARM_UP_TEXT * self._tokenizer.max_tokens)
            )
            vectors = [self._bare_vector(role, _SELF_TEST_TEXT) for role in EmbedRole]
            for session in self._sessions.values():
                session.run(longest.ids)
        except EmbeddingFailedError as error:
            raise _self_test_failed(f"fails on a plain sentence: {error.message}") from error
        if self._device == "cpu" and not np.array_equal(vectors[0], vectors[1]):
            raise _self_test_failed("gives different vectors in two sessions")

    def _compare_known(self, model: EncoderModel) -> None:
        for text in dict.fromkeys(probe.text for probe in model.probes):
            if len(self._tokenizer.encode("", text).ids) > self._tokenizer.max_tokens:
                continue  # how it was cut is not ours to know
            probes = [probe for probe in model.probes if probe.text == text]
            for role in EmbedRole:
                self._compare(self._bare_vector(role, text), probes)

    def _compare(self, vector: FloatRows, probes: Sequence[Probe]) -> None:
        """Raise ModelUnavailableError where a text's vector is too far from a known one."""
        for probe in probes:
            if probe.origin == "recorded" and self._device != "cpu":
                continue
            cosine = float(vector.astype(np.float64) @ probe.vector.astype(np.float64))
            if not cosine >= probe.min_cosine:
                raise _self_test_failed(
                    f"gives other vectors than it should (cosine {cosine:.4f}, at least "
                    f"{probe.min_cosine} expected)"
                )

    def _choose_scheduler(self, spec: ModelSpec, scheduling: Scheduling) -> Scheduler:
        """Batches where they give the vectors that single runs give; else slots."""
        texts = [self._tokenizer.encode("", text).ids for text in _BATCH_TEST_TEXTS]
        if spec.quantisation == "fp32":
            if batches_agree(self._sessions[EmbedRole.QUERY], texts):
                return batching_scheduler(self._sessions, self._device, scheduling)
            _log.warning("embedding.batches_unusable")
        return SlotScheduler(self._sessions, scheduling)

    def _bare_vector(self, role: EmbedRole, text: str) -> FloatRows:
        """The vector of a short text without prompt, past the cache."""
        return self._sessions[role].run(self._tokenizer.encode("", text).ids)


def _open_sessions(
    model: EncoderModel, asked: str, *, shared: bool
) -> tuple[Device, dict[EmbedRole, EncoderSession]]:
    """The session of each role, all on one device; only "auto" may end on another one.

    A GPU runs one text or batch after the other, and its memory is dear: there both roles share
    one, as they do where `shared` asks for it.
    """
    spec = model.spec
    device = choose_device(asked, spec.quantisation)

    def opened(on: Device) -> dict[EmbedRole, EncoderSession]:
        def one() -> EncoderSession:
            return EncoderSession(
                model.graph, device=on, pooling=spec.pooling, dimensions=spec.dimensions
            )

        if shared or on == "cuda":
            return dict.fromkeys(EmbedRole, one())
        return {role: one() for role in EmbedRole}

    try:
        return device, opened(device)
    except ModelUnavailableError as error:
        if asked != "auto" or device == "cpu":
            raise
        _log.warning("embedding.cuda_unusable", reason=error.reason)
        return "cpu", opened("cpu")


def _self_test_failed(how: str) -> ModelUnavailableError:
    return ModelUnavailableError(
        f"the embedding model {how}; install it anew", reason="MODEL_SELF_TEST_FAILED"
    )


def _answer(rows: list[CachedVector], *, computed: int, truncated: bool) -> EmbeddedText:
    if len(rows) == 1:
        (row,) = rows
        return EmbeddedText(row.vector[np.newaxis], row.tokens, truncated, computed, 1 - computed)
    vectors: FloatRows = np.stack([row.vector for row in rows])
    vectors.flags.writeable = False
    tokens = sum(row.tokens for row in rows)
    return EmbeddedText(vectors, tokens, truncated, computed, len(rows) - computed)


def _nothing_to_embed() -> InvalidArgumentError:
    return InvalidArgumentError.of("text", "has nothing to embed: blank, or signs the model drops")


def load_embedder(
    model_folder: Path | None,
    cache_dir: Path | None,
    device: str = "auto",
    cache_bytes_max: int = CACHE_BYTES_DEFAULT,
    cache_file: CacheFileOptions | None = None,
    scheduling: Scheduling = DEFAULT_SCHEDULING,
) -> OnnxEmbedder:
    """Open the default model, or one's own folder, ready to serve. Fetches nothing.

    Args:
        model_folder: a Hugging Face style folder (see `folder`) or an installed model's folder;
            None is the default model.
        cache_dir: where models are installed; None is the user's cache.
        device: "cpu", "cuda" or "auto". The default model runs int8 on cpu and fp32 on cuda;
            their vectors are of different generations. "auto" takes cuda only if the fp32 graph
            is installed.
        cache_bytes_max: of the vector cache in memory.
        cache_file: the vector cache on disk; None is none.
        scheduling: bounds of what waits and runs.

    Raises ModelUnavailableError; its message says what to type.
    """
    if model_folder is not None:
        model = read_model_folder(model_folder, cache_dir)
    else:
        model = EncoderModel.of_files(_default_files(cache_dir, device))
    return OnnxEmbedder(
        model,
        device=device,
        cache_bytes_max=cache_bytes_max,
        cache_file=cache_file,
        scheduling=scheduling,
    )


def _default_files(cache_dir: Path | None, asked: str) -> ModelFiles:
    if choose_device(asked, "fp32") == "cuda":
        try:
            return find_model(cache_dir, quantisation="fp32")
        except ModelUnavailableError:
            if asked == "cuda":
                raise
            _log.info("embedding.cuda_unused", reason="FP32_GRAPH_NOT_INSTALLED")
    return find_model(cache_dir)
