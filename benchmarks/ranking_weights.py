"""What the weights of ranking are worth on conversations that they were not chosen on.

Usage: python -m benchmarks.ranking_weights --conversations FILE [--json FILE]

FILE is that of `quality`; nothing of it is kept but figures. Every message of every conversation is
ranked for every question by the product's own code (`ranked_conversations`), with messages that
name their authors and with messages that do not, at every point of a grid of weights:

  window      what messages at distance 1 and 2 count in a message's words, in tenths
  lexical     of words, where the vector's cosine counts 100 hundredths
  neighbour   share of a question's worth that the message after it gets, in hundredths
  author      of a query that names the message's author, in hundredths

The figures of a point: evidence recall at 10 of categories 1 to 4 and of all, recall at 5, mean
reciprocal rank and the share of the evidence in the best hits that fit into an answer of 1,000
tokens, of categories 1 to 4. A point is as good as the mean of these, with authors and without.

  figures          the product's weights; "held out": for each conversation the best point of the
                   others, measured on it, all questions together; the best point of all; the
                   least, the median and the most over the grid, each figure by itself
  by_conversation  the product's weights, and the best point of the others, on each
  ablation         the product's weights with one part taken away; last, with no messages ranked but
                   the best by cosine and the best by words that a recall of some hits looks at
"""

from __future__ import annotations

import argparse
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from benchmarks.axes import NUMBERS_MAX, Numbers, numbers, say
from benchmarks.conversations import Conversation, NoConversationsError, conversations_of
from benchmarks.evidence import ANSWERABLE_CATEGORIES
from benchmarks.quality import SAMPLE, token_counter
from benchmarks.ranked_conversations import Budget, RankedConversation, Setting, Vectors
from benchmarks.report import Chart, Digest, Result, flag, run_script
from semanticrecall_core.engine.recall import DEPTH_MIN
from semanticrecall_core.lexical.scoring import Scoring
from semanticrecall_core.ranking.fusion import Weights

Wide = NDArray[np.float64]
BoolColumn = NDArray[np.bool_]

MEANS = ("recall_at_10", "recall_at_10_all", "recall_at_5", "mrr", "evidence")
AUTHORS = {True: "named", False: "not named"}
DEFAULT, HELD_OUT = "the product's", "held out"
ALONE = "there is one conversation: no other to choose weights on"

CHARTS = [
    Chart(
        name="parts_of_ranking",
        title="Evidence among the first ten hits, categories 1 to 4",
        table="ablation",
        x="without",
        y="recall_at_10",
        by=("authors",),
        x_label="part that is taken away",
        y_label="evidence recall at 10",
        kind="bar",
    )
]


class Windows(tuple[tuple[int, int], ...]):
    """Weights of windows, written as on the command line: `5/2,6/3`."""

    __slots__ = ()

    def __str__(self) -> str:
        return ",".join(f"{near}/{far}" for near, far in self)


def windows(text: str) -> Windows:
    """Pairs separated by commas, each of two whole numbers up to 10, each once.

    Raises:
        argparse.ArgumentTypeError: they are not.
    """
    pairs = [part.split("/") for part in text.split(",")]
    if not all(len(pair) == 2 and all(one.isdecimal() for one in pair) for pair in pairs):
        raise argparse.ArgumentTypeError("pairs of whole numbers such as 6/3, separated by commas")
    found = Windows((int(near), int(far)) for near, far in pairs)
    if len(set(found)) < len(found) or len(found) > NUMBERS_MAX or max(map(max, found)) > 10:
        raise argparse.ArgumentTypeError(f"at most {NUMBERS_MAX} pairs up to 10, each once")
    return found


@dataclass(frozen=True, slots=True)
class Config:
    """What is measured."""

    conversations: Path | None = flag(None, "file of labelled conversations", Path)  # noqa: RUF009
    budget_tokens: int = flag(1_000, "most tokens of an answer")
    window: Windows = flag(  # noqa: RUF009
        Windows(((5, 2), (6, 3), (7, 3), (7, 4), (8, 4))), "tenths, near/far", windows
    )
    lexical: Numbers = flag(Numbers((80, 100, 120)), "hundredths", numbers)  # noqa: RUF009
    neighbour: Numbers = flag(  # noqa: RUF009
        Numbers((15, 20, 25, 30, 35)), "hundredths", numbers
    )
    author: Numbers = flag(  # noqa: RUF009
        Numbers((50, 75, 100, 125, 150)), "hundredths", numbers
    )


@dataclass(frozen=True, slots=True)
class Scores:
    """One conversation's figures at some settings, with authors named or not.

    Attributes:
        figures: shape (settings, questions, FIGURES).
        is_answerable: shape (questions,). Of categories 1 to 4.
    """

    figures: Wide
    is_answerable: BoolColumn


def grid(config: Config) -> list[Setting]:
    """All combinations; the weight of the dense part is that of the product."""
    axes = (config.window, config.lexical, config.neighbour, config.author)
    return [
        Setting(
            Scoring(near_tenths=near, far_tenths=far),
            Weights(lexical=lexical / 100, neighbour=neighbour / 100, author=author / 100),
        )
        for (near, far), lexical, neighbour, author in itertools.product(*axes)
    ]


def ablations() -> dict[str, Setting]:
    """The product's weights, and without one part each."""
    one, weights = Setting(), Weights()
    return {
        "nothing": one,
        "window": replace(one, scoring=Scoring(near_tenths=0, far_tenths=0)),
        "second neighbours": replace(one, scoring=Scoring(far_tenths=0)),
        "leaving names out": replace(one, leaves_names_out=False),
        "date words": replace(one, knows_dates=False),
        "author": replace(one, weights=replace(weights, author=0.0)),
        "hand-over": replace(one, weights=replace(weights, neighbour=0.0)),
        "dense": replace(one, weights=replace(weights, dense=0.0)),
        "lexical": replace(one, weights=replace(weights, lexical=0.0)),
        f"all but {DEPTH_MIN} by each": replace(one, depth=DEPTH_MIN),
    }


def means(scores: Sequence[Scores]) -> Wide:
    """Over all questions of some conversations, shape (settings, MEANS)."""
    every = np.concatenate([one.figures for one in scores], axis=1)
    answerable = every[:, np.concatenate([one.is_answerable for one in scores])]
    at_5, at_10, reciprocal_rank, evidence = answerable.mean(axis=1).T
    at_10_all = every[:, :, 1].mean(axis=1)
    return np.stack([at_10, at_10_all, at_5, reciprocal_rank, evidence], axis=1)


def best_point(sides: Mapping[bool, Sequence[Scores]]) -> int:
    """The setting with the largest mean of all figures, authors named and not; the first of equals.

    Args:
        sides: by whether authors are named, the conversations to choose on.
    """
    worth = np.mean([means(scores).mean(axis=1) for scores in sides.values()], axis=0)
    return int(np.argmax(worth))


def chosen_on_the_others(sides: Mapping[bool, Sequence[Scores]]) -> list[int]:
    """For each conversation the best setting of all the others: at least one."""
    count = len(next(iter(sides.values())))
    return [
        best_point({named: _without(scores, at) for named, scores in sides.items()})
        for at in range(count)
    ]


def _without(scores: Sequence[Scores], at: int) -> list[Scores]:
    return [one for number, one in enumerate(scores) if number != at]


def _only(scores: Sequence[Scores], settings: Sequence[int]) -> list[Scores]:
    """Of each conversation the figures at one setting."""
    return [
        Scores(one.figures[[setting]], one.is_answerable)
        for one, setting in zip(scores, settings, strict=True)
    ]


def _row(values: Wide) -> dict[str, float]:
    return dict(zip(MEANS, values.tolist(), strict=True))


def _weights_row(setting: Setting) -> dict[str, object]:
    return {
        "window": f"{setting.scoring.near_tenths}/{setting.scoring.far_tenths}",
        "lexical": setting.weights.lexical,
        "neighbour": setting.weights.neighbour,
        "author": setting.weights.author,
    }


def _ablation_rows(
    names: Sequence[str], sides: Mapping[bool, Sequence[Scores]]
) -> Iterator[dict[str, object]]:
    for named, scores in sides.items():
        for name, values in zip(names, means(scores), strict=True):
            yield {"without": name, "authors": AUTHORS[named], **_row(values)}


def _figure_rows(
    default: Mapping[bool, Sequence[Scores]],
    points: Mapping[bool, Sequence[Scores]],
    chosen: Sequence[int],
) -> Iterator[dict[str, object]]:
    best = best_point(points)
    for named, scores in points.items():
        over_grid = means(scores)
        rows = {DEFAULT: means(default[named])[0]}
        if chosen:
            rows[HELD_OUT] = means(_only(scores, chosen))[0]
        rows |= {
            "best in sample": over_grid[best],
            "least": over_grid.min(axis=0),
            "median": np.median(over_grid, axis=0),
            "most": over_grid.max(axis=0),
        }
        for name, values in rows.items():
            yield {"weights": name, "authors": AUTHORS[named], **_row(values)}


def _conversation_rows(
    default: Mapping[bool, Sequence[Scores]],
    points: Mapping[bool, Sequence[Scores]],
    settings: Sequence[Setting],
    chosen: Sequence[int],
) -> Iterator[dict[str, object]]:
    """Conversations are numbered as in the file."""
    for named, scores in points.items():
        for at, one in enumerate(scores):
            sets = [(DEFAULT, Setting(), means([default[named][at]])[0])]
            if chosen:
                setting = settings[chosen[at]]
                sets.append((HELD_OUT, setting, means(_only([one], [chosen[at]]))[0]))
            for name, setting, values in sets:
                yield {
                    "conversation": at + 1,
                    "authors": AUTHORS[named],
                    "weights": name,
                    **_weights_row(setting),
                    **_row(values),
                }


def _measure(conversations: Sequence[Conversation], config: Config, result: Result) -> None:
    settings, parts = grid(config), ablations()
    default: dict[bool, list[Scores]] = {}
    points: dict[bool, list[Scores]] = {}
    budget, digest = Budget(config.budget_tokens, token_counter()), Digest()
    vectors = Vectors()
    try:
        for named, conversation in itertools.product(AUTHORS, conversations):
            ranked = RankedConversation(conversation, vectors, budget, with_authors=named)
            count = len(ranked.questions)
            say(f"{count} questions, authors {AUTHORS[named]}, {len(settings)} points")
            is_answerable = np.array(
                [one.category in ANSWERABLE_CATEGORIES for one in ranked.questions]
            )
            figures = ranked.figures([*parts.values(), *settings])
            default.setdefault(named, []).append(Scores(figures[: len(parts)], is_answerable))
            points.setdefault(named, []).append(Scores(figures[len(parts) :], is_answerable))
            for hits in ranked.hits(Setting()):
                digest.add(hits)
    finally:
        vectors.close()
    chosen = chosen_on_the_others(points) if len(conversations) > 1 else []
    result.figures = {
        "conversations": len(conversations),
        "questions": sum(one.figures.shape[1] for one in points[True]),
        "points of the grid": len(settings),
        "best point in sample": _shown(settings[best_point(points)]),
    }
    if not chosen:
        result.figures["held out"] = ALONE
    result.tables = {
        "figures": list(_figure_rows(default, points, chosen)),
        "by_conversation": list(_conversation_rows(default, points, settings, chosen)),
        "ablation": list(_ablation_rows(list(parts), default)),
    }
    result.charts = CHARTS
    result.digest = digest.text()


def _shown(setting: Setting) -> str:
    return ", ".join(f"{name} {value}" for name, value in _weights_row(setting).items())


def measure(config: Config) -> Result:
    """Rank everything at every point, and compare with the evidence."""
    try:
        there = conversations_of(config.conversations)
    except NoConversationsError as error:
        return Result(skipped=f"no conversations: {error}")
    conversations = [
        one
        for one in there
        if any(q.evidence and q.category in ANSWERABLE_CATEGORIES for q in one.questions)
        and any(turn.full_text.strip() for turn in one.turns())
    ]
    if not conversations:
        return Result(skipped="no conversations: no question of categories 1 to 4 has evidence")
    result = Result()
    _measure(conversations, config, result)
    return result


SMOKE: dict[str, Any] = {
    "conversations": SAMPLE,
    "window": Windows(((0, 0), (6, 3))),
    "lexical": Numbers((100,)),
    "neighbour": Numbers((25,)),
    "author": Numbers((0, 100)),
}

if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    run_script(__doc__, Config, measure, smoke=SMOKE)
