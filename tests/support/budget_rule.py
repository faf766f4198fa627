"""The rule by which a budget takes messages, with everything summed anew at each step."""

from __future__ import annotations

from collections.abc import Sequence

from semanticrecall_core.ranking.budget import Choice


def rule(choice: Choice, sizes: Sequence[int], limit: int) -> set[int]:
    """The rule, with everything summed anew at each step; {-1} and the hit: it is to be cut."""

    def fits(more: set[int]) -> bool:
        return sum(sizes[seq] for seq in answer | more) <= limit

    answer: set[int] = set()
    for hit in choice.hits:
        group = set(choice.groups.get(hit, ()))
        alone = {other for other in group if other in answer and other in choice.hits}
        is_absent = bool(alone - {hit}) and not group <= answer
        is_absent |= any(
            sizes[other] > limit
            for other in choice.hits[: choice.hits.index(hit)]
            if other in group
        )
        if group and not is_absent and fits(group):
            answer |= group
        elif fits({hit}):
            answer |= {hit}
        elif sizes[hit] <= limit:
            return answer
        elif hit == choice.hits[0]:
            return {-1, hit}
    split = [
        set(group) for group in choice.groups.values() if set(group) & set(choice.hits) - answer
    ]
    split += [
        set(group)
        for group in choice.groups.values()
        if set(group) & answer and not set(group) <= answer
    ]
    for hit in choice.hits:
        if hit not in answer:
            continue
        before, after = (list(side) for side in choice.windows.get(hit, ((), ())))
        for step in range(max(len(before), len(after))):
            for side in (before, after):
                if step >= len(side) or side[step] in answer:
                    continue
                unit = set(choice.groups.get(side[step], (side[step],)))
                if unit in split or not fits(unit):
                    del side[step:]
                else:
                    answer |= unit
    return answer
