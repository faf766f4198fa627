"""The limits that an engine is given."""

from __future__ import annotations

from dataclasses import dataclass, field

from semanticrecall_core.engine.purging import PurgePlan
from semanticrecall_core.engine.retention import RetentionPlan
from semanticrecall_core.engine.warming import WarmingLimits


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Limits that the engine itself keeps.

    Attributes:
        embed_threads: threads that embed pending messages, 1 or more.
        backlog_rows_max: messages that may wait to be embedded before Index is refused.
        answer_bytes_max: most bytes of text, payload and metadata in one Recall answer.
        filter_keys: keys that a filter may name though no message carries them yet.
        warming: how much is read ahead at the start.
        partitions_bytes_max: size of all partitions in memory beyond which none is read ahead.
        lexical_bytes_max: the same of their words.
        cores: that recalls may use together; with 2 or more, a query's words can be scored while
            it is embedded.
        purging: when what was forgotten leaves the files.
        retention: what is forgotten by itself.
    """

    embed_threads: int = 2
    backlog_rows_max: int = 200_000
    answer_bytes_max: int = 3 * 1024 * 1024
    filter_keys: frozenset[str] = frozenset()
    warming: WarmingLimits = field(default_factory=WarmingLimits)
    partitions_bytes_max: int = 2 * 2**30
    lexical_bytes_max: int = 2**30
    cores: int = 1
    purging: PurgePlan = field(default_factory=PurgePlan)
    retention: RetentionPlan = field(default_factory=RetentionPlan)
