"""How much of what a person would point to is recalled, by ranking mode.

Usage: python -m benchmarks.quality --conversations FILE [--json FILE]

FILE holds labelled conversations, see `conversations`; it is the user's, and nothing of it is kept
but figures. Without one nothing is measured. A conversation is a resource, a session a thread, a
turn a message: the speaker is its `author`; its `text` is the turn's, with `[shares CAPTION]` for a
picture; the session's date is its `create_time`. All of it goes through a sidecar on a Unix socket.

Every question is recalled in every mode with top_k 50 and no neighbours:

  quality   evidence recall at 1, 5, 10 and 20: the share of a question's evidence among the first
            k hits; mean reciprocal rank of the first hit that is evidence (0 where none of 50 is);
            by category, for 1 to 4 together, and for all; means over questions with evidence.
            Evidence that no turn has counts as not found; a figure says how much there is
  answers   the share of the evidence in an answer of a shape, hits and neighbours, and its tokens
            as the model's tokenizer counts "author: text": 5 hits with 2 neighbours on each side as
            the sidecar gives them, hits alone up to a budget, hits with their 2 neighbours up to
            the budget, and what the sidecar gives with max_tokens and up to 50 hits with their
            neighbours; categories 1 to 4
  latencies of the recalls: caches are off, so that every one embeds its question

Beside the modes stand references that do not depend on what the product embeds: brute force over
the model's vectors of the text alone, of the text with its caption, and of "author: text" with its
caption. A mode that the sidecar does not have is a row that says so.

The bars are of five conversations of LoCoMo (docs/decisions/0022); of other files they say nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from benchmarks import processes
from benchmarks.conversations import (
    CATEGORIES,
    Conversation,
    NoConversationsError,
    Question,
    Turn,
    conversations_of,
)
from benchmarks.evidence import (
    ANSWERABLE,
    ANSWERABLE_CATEGORIES,
    EVERY,
    Scored,
    by_category,
    mean_figures,
    scored,
    share_found,
    window,
    within,
)
from benchmarks.measure import timed
from benchmarks.report import Bar, Chart, Digest, Result, flag, run_script
from benchmarks.wire_requests import BATCH_MESSAGES
from semanticrecall.v1 import recall_pb2, recall_pb2_grpc, types_pb2
from semanticrecall_core.embedding.provision import find_model

MODES = {
    "dense": types_pb2.MODE_DENSE,
    "lexical": types_pb2.MODE_LEXICAL,
    "hybrid": types_pb2.MODE_HYBRID,
}
REFERENCES: dict[str, Callable[[Turn], str]] = {
    "reference: text": lambda turn: turn.text,
    "reference: text [caption]": lambda turn: turn.full_text,
    "reference: author: text [caption]": lambda turn: f"{turn.speaker}: {turn.full_text}",
}
STORED = (types_pb2.STATUS_INDEXED, types_pb2.STATUS_NOT_EMBEDDED)
"""What becomes of a turn; the second where it has no text."""

TOP_K = 50
SHAPE_HITS, SHAPE_REACH = 5, 2
NOT_THERE = "not in this version"
EMBED_TEXTS = 256
FLAGS = ("--log-level", "warning", "--cache-bytes-max", "0", "--answer-cache-bytes-max", "0")
SAMPLE = Path(__file__).with_name("sample_conversation.json")

CHARTS = [
    Chart(
        name="quality_by_category",
        title="Evidence among the first ten hits",
        table="quality",
        x="category",
        y="recall_at_10",
        by=("mode",),
        x_label="category of question",
        y_label="evidence recall at 10",
        kind="bar",
        only={"note": ""},
    ),
    Chart(
        name="evidence_in_answers",
        title="Evidence in the whole answer, categories 1 to 4",
        table="answers",
        x="shape",
        y="evidence",
        by=("mode",),
        x_label="shape of the answer",
        y_label="share of the evidence",
        kind="bar",
    ),
]


@dataclass(frozen=True, slots=True)
class Config:
    """What is measured."""

    conversations: Path | None = flag(None, "file of labelled conversations", Path)  # noqa: RUF009
    budget_tokens: int = flag(1_000, "most tokens of an answer")
    authors: int = flag(1, "1: messages name their authors; 0: they do not")
    references: int = flag(1, "1: measure the references too; 0: only the modes")


@dataclass(frozen=True, slots=True)
class Ranked:
    """The answer to one question.

    Attributes:
        hits: ids, best first.
        shaped: ids of an answer of `SHAPE_HITS` hits with their neighbours.
        budgeted: ids of an answer with `max_tokens`; None of a reference.
    """

    question: Question
    hits: list[str]
    shaped: list[str]
    budgeted: list[str] | None = None


@dataclass(slots=True)
class Answered:
    """All questions of one mode, by conversation."""

    by_conversation: list[tuple[Conversation, list[Ranked]]] = field(default_factory=list)

    def scores(self) -> list[Scored]:
        """Of the questions that have evidence."""
        return [
            scored(one.question.category, one.hits, one.question.evidence)
            for _, answers in self.by_conversation
            for one in answers
            if one.question.evidence
        ]


def index_requests(
    conversation: Conversation, *, with_authors: bool
) -> list[recall_pb2.IndexRequest]:
    """Every turn as a message, in order, in requests of one session each at most."""
    requests = []
    for session in conversation.sessions:
        messages = []
        for number, turn in enumerate(session.turns):
            message = types_pb2.Message(
                id=turn.id,
                role=types_pb2.ROLE_USER,
                author=turn.speaker if with_authors else "",
                text=turn.full_text,
            )
            if session.started is not None:
                message.create_time.FromSeconds(int(session.started.timestamp()) + number)
            messages.append(message)
        requests += [
            recall_pb2.IndexRequest(
                resource_id=conversation.name,
                thread_id=session.name,
                messages=messages[start : start + BATCH_MESSAGES],
            )
            for start in range(0, len(messages), BATCH_MESSAGES)
        ]
    return requests


def recall_request(
    conversation: Conversation, question: Question, mode: types_pb2.Mode, hits: int, reach: int
) -> recall_pb2.RecallRequest:
    """So many hits, with `reach` neighbours on each side, and no text for a prompt."""
    return recall_pb2.RecallRequest(
        resource_id=conversation.name,
        query=question.text,
        top_k=hits,
        message_range=recall_pb2.MessageRange(before=reach, after=reach),
        ranking=recall_pb2.Ranking(mode=mode),
        context_format=types_pb2.CONTEXT_NONE,
    )


def ranked_hits(answer: recall_pb2.RecallResponse) -> list[str]:
    """Ids of the hits by rank. Equal scores are in the order that the server gave them."""
    hits = [recalled for recalled in answer.messages if recalled.hit]
    return [recalled.message.id for recalled in sorted(hits, key=lambda one: one.rank)]


def modes_there(
    stub: recall_pb2_grpc.RecallServiceStub, conversation: Conversation
) -> dict[str, types_pb2.Mode]:
    """The modes that the server has: those it does not answer UNIMPLEMENTED."""
    there = {}
    for name, mode in MODES.items():
        try:
            stub.Recall(recall_request(conversation, conversation.questions[0], mode, 1, 0))
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise
        else:
            there[name] = mode
    return there


def ids_not_there(conversations: Sequence[Conversation]) -> int:
    """Ids of evidence, of all questions, that are not among the turns: nobody can find them."""
    return sum(
        id_ not in there
        for one in conversations
        for there in [{turn.id for turn in one.turns()}]
        for question in one.questions
        for id_ in question.evidence
    )


class _Asking:
    """Every question in every mode."""

    def __init__(
        self, stub: recall_pb2_grpc.RecallServiceStub, result: Result, budget_tokens: int
    ) -> None:
        self._stub = stub
        self._result = result
        self._budget_tokens = budget_tokens
        self.answered: dict[str, Answered] = {}

    def ask(self, conversation: Conversation, modes: Mapping[str, types_pb2.Mode]) -> None:
        """In turns; which mode comes first changes with every question."""
        order = list(modes)
        answers: dict[str, list[Ranked]] = {name: [] for name in modes}
        for question in conversation.questions:
            for name in order:
                request = recall_request(conversation, question, modes[name], TOP_K, 0)
                seconds, answer = timed(partial(self._stub.Recall, request))
                self._result.seconds.setdefault(name, []).append(seconds)
                shape = recall_request(conversation, question, modes[name], SHAPE_HITS, SHAPE_REACH)
                shaped = [one.message.id for one in self._stub.Recall(shape).messages]
                answers[name].append(
                    Ranked(question, ranked_hits(answer), shaped, self._within_budget(request))
                )
            order.append(order.pop(0))
        for name, found in answers.items():
            here = self.answered.setdefault(name, Answered())
            here.by_conversation.append((conversation, found))

    def _within_budget(self, request: recall_pb2.RecallRequest) -> list[str]:
        """The same with neighbours and `max_tokens`: what the sidecar makes of the budget."""
        budgeted = recall_pb2.RecallRequest()
        budgeted.CopyFrom(request)
        budgeted.max_tokens = self._budget_tokens
        budgeted.message_range.before = budgeted.message_range.after = 1
        return [one.message.id for one in self._stub.Recall(budgeted).messages]


class Vectors:
    """The model's own vectors, through the sidecar, each text once."""

    def __init__(self, stub: recall_pb2_grpc.RecallServiceStub) -> None:
        self._stub = stub
        self._known: dict[tuple[int, str], NDArray[np.float32]] = {}

    def of(self, texts: Sequence[str], role: recall_pb2.EmbedRole) -> NDArray[np.float32]:
        """Unit vectors, shape (texts, dimensions)."""
        new = [text for text in dict.fromkeys(texts) if (role, text) not in self._known]
        for start in range(0, len(new), EMBED_TEXTS):
            batch = new[start : start + EMBED_TEXTS]
            embedded = self._stub.Embed(recall_pb2.EmbedRequest(texts=batch, role=role)).embeddings
            for text, one in zip(batch, embedded, strict=True):
                self._known[role, text] = np.array(one.values, np.float32)
        return np.stack([self._known[role, text] for text in texts])


def reference(
    conversation: Conversation, vectors: Vectors, text_of: Callable[[Turn], str]
) -> list[Ranked]:
    """Brute force: the turns that have a text by cosine, of equal ones the earlier first."""
    turns = [turn for turn in conversation.turns() if text_of(turn).strip()]
    threads = threads_of(conversation)
    passages = vectors.of([text_of(turn) for turn in turns], recall_pb2.EMBED_ROLE_PASSAGE)
    questions = vectors.of(
        [question.text for question in conversation.questions], recall_pb2.EMBED_ROLE_QUERY
    )
    answers = []
    for question, scores in zip(conversation.questions, questions @ passages.T, strict=True):
        best = np.argsort(-scores, kind="stable")[:TOP_K]
        hits = [turns[at].id for at in best]
        shaped = {
            one for hit in hits[:SHAPE_HITS] for one in window(threads[hit], hit, SHAPE_REACH)
        }
        answers.append(Ranked(question, hits, sorted(shaped)))
    return answers


def threads_of(conversation: Conversation) -> dict[str, list[str]]:
    """By a turn's id, the ids of its session in order."""
    sessions = ([turn.id for turn in session.turns] for session in conversation.sessions)
    return {id_: ids for ids in sessions for id_ in ids}


def quality_rows(name: str, answered: Answered) -> list[dict[str, object]]:
    """A row for each category and for their groups."""
    return [
        {
            "mode": name,
            "category": _category(category),
            "questions": len(questions),
            **mean_figures(questions),
            "note": "",
        }
        for category, questions in by_category(answered.scores()).items()
    ]


def _category(name: str) -> str:
    words = CATEGORIES.get(int(name)) if name.isdecimal() else None
    return f"{name} {words}" if words else name


def row_not_there(name: str, columns: Sequence[str]) -> dict[str, object]:
    """The row of a mode that the server does not have, with the columns of the others."""
    said = {"mode": name, "category": EVERY, "questions": 0, "note": NOT_THERE}
    return {column: said.get(column) for column in columns}


def answer_rows(
    name: str, answered: Answered, count: Callable[[Turn], int], budget_tokens: int
) -> list[dict[str, object]]:
    """What part of the evidence answers of each shape hold: means over categories 1 to 4."""
    found: dict[str, list[tuple[float, int, int]]] = {}
    for conversation, answers in answered.by_conversation:
        tokens = {turn.id: count(turn) for turn in conversation.turns()}
        threads = threads_of(conversation)
        for one in answers:
            evidence = one.question.evidence
            if not evidence or one.question.category not in ANSWERABLE_CATEGORIES:
                continue
            windows = [window(threads[hit], hit, SHAPE_REACH) for hit in one.hits]
            shapes = {
                f"{SHAPE_HITS} hits, {SHAPE_REACH} each side": one.shaped,
                f"hits, {budget_tokens} tokens": within(
                    budget_tokens, [[hit] for hit in one.hits], tokens
                ),
                f"hits, {SHAPE_REACH} each side, {budget_tokens} tokens": within(
                    budget_tokens, windows, tokens
                ),
            }
            if one.budgeted is not None:
                shapes[budget_shape(budget_tokens)] = one.budgeted
            for shape, ids in shapes.items():
                spent = sum(tokens[id_] for id_ in ids)
                found.setdefault(shape, []).append((share_found(ids, evidence), spent, len(ids)))
    return [
        {
            "mode": name,
            "shape": shape,
            "questions": len(figures),
            "evidence": fmean(share for share, _, _ in figures),
            "tokens": fmean(spent for _, spent, _ in figures),
            "messages": fmean(messages for _, _, messages in figures),
        }
        for shape, figures in found.items()
    ]


def budget_shape(budget_tokens: int) -> str:
    """The name of the answers that the sidecar keeps within a budget."""
    return f"max_tokens {budget_tokens}, up to {TOP_K} hits, 1 each side"


def bars(
    config: Config, quality: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]]
) -> list[Bar]:
    """What hybrid ranking must reach on the conversations that its weights were chosen on."""
    means = {row["category"]: row for row in quality if row["mode"] == "hybrid" and not row["note"]}
    if not means:
        return []
    answerable = means[ANSWERABLE]
    if not config.authors:
        name = "no author names: recall at 10, categories 1-4"
        return [Bar(name, answerable["recall_at_10"], 0.76, at_most=False)]
    evidence = {(row["mode"], row["shape"]): row["evidence"] for row in answers}
    ours = evidence["hybrid", budget_shape(config.budget_tokens)]
    plain = evidence["dense", f"{SHAPE_HITS} hits, {SHAPE_REACH} each side"]
    wanted = (
        ("recall at 10, categories 1-4", answerable["recall_at_10"], 0.80),
        ("recall at 10, all", means[EVERY]["recall_at_10"], 0.79),
        ("recall at 5, categories 1-4", answerable["recall_at_5"], 0.69),
        ("mean reciprocal rank, categories 1-4", answerable["mrr"], 0.57),
        (f"evidence in {config.budget_tokens} tokens", ours, 0.86),
        ("the same / 5 dense hits with 2 neighbours each side", ours / (plain or np.inf), 1.6),
    )
    return [Bar(name, measured, least, at_most=False) for name, measured, least in wanted]


def token_counter() -> Callable[[Turn], int]:
    """Tokens of "author: text [caption]", without those that a model puts around a text."""
    tokenizer = Tokenizer.from_buffer(find_model().read_tokenizer())
    tokenizer.no_padding()
    tokenizer.no_truncation()

    def count(turn: Turn) -> int:
        shown = f"{turn.speaker}: {turn.full_text}"
        return len(tokenizer.encode(shown, add_special_tokens=False).ids)

    return count


def _index(
    stub: recall_pb2_grpc.RecallServiceStub, conversation: Conversation, config: Config
) -> None:
    for request in index_requests(conversation, with_authors=bool(config.authors)):
        answer = stub.Index(request)
        if any(one.status not in STORED for one in answer.results):
            raise RuntimeError("a turn was not indexed")


def _measure(conversations: Sequence[Conversation], config: Config, result: Result) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="semanticrecall-bench-") as name,
        processes.sidecar(Path(name), *FLAGS) as (address, _),
        grpc.insecure_channel(address) as channel,
    ):
        stub = recall_pb2_grpc.RecallServiceStub(channel)
        asking = _Asking(stub, result, config.budget_tokens)
        vectors = Vectors(stub)
        references: dict[str, Answered] = {}
        modes: dict[str, types_pb2.Mode] = {}
        for conversation in conversations:
            turns, questions = len(list(conversation.turns())), len(conversation.questions)
            print(f"a conversation of {turns} turns, {questions} questions", flush=True)
            _index(stub, conversation, config)
            modes = modes or modes_there(stub, conversation)
            asking.ask(conversation, modes)
            for kind, text_of in REFERENCES.items() if config.references else ():
                answers = reference(conversation, vectors, text_of)
                references.setdefault(kind, Answered()).by_conversation.append(
                    (conversation, answers)
                )
    _report(config, asking.answered, references, result)


def _report(
    config: Config, modes: dict[str, Answered], references: dict[str, Answered], result: Result
) -> None:
    count, digest = token_counter(), Digest()
    quality: list[dict[str, object]] = []
    answers: list[dict[str, object]] = []
    for name, answered in {**modes, **references}.items():
        quality += quality_rows(name, answered)
        answers += answer_rows(name, answered, count, config.budget_tokens)
    for answered in modes.values():
        for _, found in answered.by_conversation:
            for one in found:
                digest.add(one.hits)
    result.bars = bars(config, quality, answers)
    columns = list(quality[0])
    quality += [row_not_there(name, columns) for name in MODES if name not in modes]
    result.tables = {"quality": quality, "answers": answers}
    result.charts = CHARTS
    result.digest = digest.text()


def measure(config: Config) -> Result:
    """Index the conversations, ask their questions, compare with the evidence."""
    try:
        there = conversations_of(config.conversations)
    except NoConversationsError as error:
        return Result(skipped=f"no conversations: {error}")
    conversations = [one for one in there if any(question.evidence for question in one.questions)]
    if not conversations:
        return Result(skipped="no conversations: the file has no question with evidence")
    result = Result(figures={"ids of evidence that no turn has": ids_not_there(conversations)})
    _measure(conversations, config, result)
    return result


if __name__ == "__main__":
    run_script(__doc__, Config, measure, smoke={"conversations": SAMPLE})
