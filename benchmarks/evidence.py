"""How much of the evidence an answer holds. Pure functions over ids.

`found` is what was recalled, best first; `evidence` is what a person would point to. A question
without evidence has no figure: it is left out of every mean.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

K = (1, 5, 10, 20)
ANSWERABLE, EVERY = "1-4", "all"
ANSWERABLE_CATEGORIES = frozenset((1, 2, 3, 4))


def share_found(found: Collection[str], evidence: Collection[str]) -> float:
    """The share of the evidence that is among what was found, 0 to 1.

    Raises:
        ValueError: there is no evidence.
    """
    wanted = set(evidence)
    if not wanted:
        raise ValueError("a question without evidence has no share")
    return len(wanted.intersection(found)) / len(wanted)


def recall_at(k: int, found: Sequence[str], evidence: Collection[str]) -> float:
    """The share of the evidence among the first k, 0 to 1."""
    return share_found(found[:k], evidence)


def reciprocal_rank(found: Sequence[str], evidence: Collection[str]) -> float:
    """1 / the rank of the first that is evidence; 0 where none is."""
    wanted = set(evidence)
    return next((1 / rank for rank, one in enumerate(found, 1) if one in wanted), 0.0)


@dataclass(frozen=True, slots=True)
class Scored:
    """One question's figures.

    Attributes:
        recall: by k.
    """

    category: int
    recall: Mapping[int, float]
    reciprocal_rank: float


def scored(category: int, found: Sequence[str], evidence: Collection[str]) -> Scored:
    """Every figure of one question."""
    recall = {k: recall_at(k, found, evidence) for k in K}
    return Scored(category, recall, reciprocal_rank(found, evidence))


def by_category(questions: Sequence[Scored]) -> dict[str, list[Scored]]:
    """The questions of each category, of 1 to 4 together, and all; those that there are."""
    groups = {
        str(category): [one for one in questions if one.category == category]
        for category in sorted({one.category for one in questions})
    }
    groups[ANSWERABLE] = [one for one in questions if one.category in ANSWERABLE_CATEGORIES]
    groups[EVERY] = list(questions)
    return {name: found for name, found in groups.items() if found}


def mean_figures(questions: Sequence[Scored]) -> dict[str, float]:
    """Means over questions, by name: `recall_at_<k>` and `mrr` (mean reciprocal rank)."""
    figures = {f"recall_at_{k}": fmean(one.recall[k] for one in questions) for k in K}
    return {**figures, "mrr": fmean(one.reciprocal_rank for one in questions)}


def within(
    budget_tokens: int, groups: Sequence[Sequence[str]], tokens: Mapping[str, int]
) -> list[str]:
    """The groups, in order, as long as all of them fit; each message once, counted once.

    Ends before the first group that does not fit, so that no lower hit takes a higher one's place.
    """
    taken: dict[str, None] = {}
    spent = 0
    for group in groups:
        new = [one for one in dict.fromkeys(group) if one not in taken]
        spent += sum(tokens[one] for one in new)
        if spent > budget_tokens:
            break
        taken |= dict.fromkeys(new)
    return list(taken)


def window(thread: Sequence[str], hit: str, reach: int) -> list[str]:
    """A hit and `reach` neighbours on each side, in the order of its thread."""
    at = thread.index(hit)
    return list(thread[max(0, at - reach) : at + reach + 1])
