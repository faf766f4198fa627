"""Recall by meaning and by words, at a real sidecar with the default model.

Nothing here is compared with what the same sidecar answers in another way, but where two ways must
agree: what is right follows from the texts.
"""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semanticrecall.v1 import recall_pb2, types_pb2
from support.running_server import ServerProcess, Stubs

pytestmark = pytest.mark.model

DAY = 86_400
TIMEOUT = 60
LEXICAL = types_pb2.MODE_LEXICAL
DENSE = types_pb2.MODE_DENSE
HYBRID = types_pb2.MODE_HYBRID
PARTS = ("dense", "lexical", "neighbour", "author", "recency", "diversity")


class Memory:
    """One resource of a sidecar."""

    def __init__(self, stubs: Stubs, resource_id: str) -> None:
        self._stubs = stubs
        self.resource_id = resource_id

    def learn(self, texts: dict[str, str], thread_id: str = "t", **fields: Any) -> None:
        """Index messages by their ids, said one minute after the other."""
        begin = fields.pop("at", 1_700_000_000)
        metadata = fields.pop("metadata", {})
        request = recall_pb2.IndexRequest(resource_id=self.resource_id, thread_id=thread_id)
        request.metadata.update(metadata)
        for number, (message_id, text) in enumerate(texts.items()):
            message = request.messages.add(
                id=message_id, role=types_pb2.ROLE_USER, text=text, **fields
            )
            message.create_time.seconds = begin + 60 * number
        results = self._stubs.recall.Index(request, timeout=TIMEOUT).results
        assert {result.status for result in results} <= {
            types_pb2.STATUS_INDEXED,
            types_pb2.STATUS_REPLACED,
        }

    def forget(self, *message_ids: str) -> None:
        ids = recall_pb2.MessageIds(ids=message_ids)
        request = recall_pb2.ForgetRequest(resource_id=self.resource_id, message_ids=ids)
        assert self._stubs.recall.Forget(request, timeout=TIMEOUT).messages == len(message_ids)

    def request(self, query: str, **fields: Any) -> recall_pb2.RecallRequest:
        """A recall of hits alone."""
        ranking = {"mode": fields.pop("mode", 0), **fields.pop("ranking", {})}
        return recall_pb2.RecallRequest(
            resource_id=self.resource_id,
            query=query,
            message_range=recall_pb2.MessageRange(before=0, after=0),
            ranking=ranking,
            **fields,
        )

    def recall(self, query: str, **fields: Any) -> recall_pb2.RecallResponse:
        """The answer to it."""
        answer: recall_pb2.RecallResponse = self._stubs.recall.Recall(
            self.request(query, **fields), timeout=TIMEOUT
        )
        return answer

    def stream(self, requests: list[recall_pb2.RecallRequest]) -> dict[str, Any]:
        """The answers to many on one stream, by the ids of the requests."""
        answers = self._stubs.recall.RecallStream(iter(requests), timeout=TIMEOUT)
        return {answer.request_id: answer for answer in answers}


def ranked(answer: recall_pb2.RecallResponse) -> list[recall_pb2.RecalledMessage]:
    """Hits, the best first."""
    return sorted((m for m in answer.messages if m.hit), key=lambda m: m.rank)


def ids(answer: recall_pb2.RecallResponse) -> list[str]:
    return [hit.message.id for hit in ranked(answer)]


def flags(directory: Path) -> list[str]:
    listen = f"unix:{directory}/s.sock"
    data = ["--data-dir", str(directory / "data"), "--listen", listen]
    return [*data, "--answer-cache-bytes-max", "0"]


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stubs]:
    """A sidecar that answers everything by a search."""
    directory = tmp_path_factory.mktemp("sidecar")
    with ServerProcess(flags(directory)) as server:
        server.wait_for("serving")
        stubs = Stubs(f"unix:{directory}/s.sock")
        yield stubs
        stubs.close()
        server.signal()
        assert server.wait()[0] == 0


@pytest.fixture
def memory(stubs: Stubs) -> Memory:
    """A resource of its own for each test."""
    return Memory(stubs, uuid.uuid4().hex)


# ---- what the default does ----

HOUSE = {
    "dog": "My sister's dog is called Biscuit.",
    "boiler": "The boiler was repaired in March by a man from Leeds.",
    "train": "Please book the train to Lisbon for Friday.",
    "nuts": "I am allergic to walnuts.",
    "rent": "The landlady wants the rent on the first of the month.",
    "piano": "I practise the piano for half an hour before breakfast.",
}


def test_without_a_mode_meaning_and_words_count_and_the_answer_says_so(memory: Memory) -> None:
    memory.learn(HOUSE)
    answer = memory.recall("Which nuts can I not eat?", explain=True)
    assert answer.info.mode_used == HYBRID
    assert ids(answer)[0] == "nuts"
    said = memory.recall("Which nuts can I not eat?", mode=HYBRID, explain=True)
    assert said.messages == answer.messages
    hits = ranked(answer)
    assert [hit.rank for hit in hits] == [1, 2, 3, 4]
    relevances = [hit.relevance for hit in hits]
    assert relevances == sorted(relevances, reverse=True)
    for hit in hits:
        assert not hit.lexical_only
        assert -1 <= hit.score <= 1
        assert hit.explain.cosine == hit.score
        total = sum(getattr(hit.explain, f"{part}_part") for part in PARTS)
        assert hit.relevance == pytest.approx(total, abs=1e-4)
    assert max(hit.score for hit in hits) == pytest.approx(answer.info.best_score, abs=1e-6)
    assert hits[0].explain.bm25 > 0
    assert answer.info.timings.lexical_us > 0


def test_each_mode_is_honest_about_what_it_used(memory: Memory) -> None:
    memory.learn(HOUSE)
    dense = memory.recall("the boiler", mode=DENSE, explain=True)
    assert dense.info.mode_used == DENSE
    assert dense.info.exact
    for hit in ranked(dense):
        assert hit.relevance == pytest.approx(hit.score, abs=1e-6)
        assert (hit.explain.bm25, hit.explain.lexical_rank) == (0, 0)
    lexical = memory.recall("the boiler", mode=LEXICAL, explain=True)
    assert lexical.info.mode_used == LEXICAL
    assert ids(lexical)[0] == "boiler"
    for hit in ranked(lexical):
        assert hit.lexical_only
        assert not hit.HasField("score")
    assert not lexical.info.HasField("best_score")
    vector = memory.recall("", query_embedding=[1.0] + [0.0] * 383)
    assert vector.info.mode_used == DENSE
    assert len(vector.messages) == 4


# ---- words ----


def test_a_code_is_first_however_far_down_its_vector_is(memory: Memory) -> None:
    """TOPK-7."""
    talk = (
        "We walked along the river for hours and talked about her wedding, the music, the cake and "
        "the weather; on the way back I wrote {code} on the back of my hand and forgot about it "
        "until supper, when the children laughed and wanted to know which animal it was."
    )
    memory.learn(HOUSE, "house")
    tickets = {
        f"ticket-{number}": f"Ticket QX-{number}: error code {number}, serial ZX{number}."
        for number in range(8800, 8812)
    }
    memory.learn(tickets, "tickets")
    memory.learn({"right": talk.format(code="ZX-8841")}, "walk")
    answer = memory.recall("ZX-8841", explain=True)
    assert ids(answer)[0] == "right"
    dense = memory.recall("ZX-8841", mode=DENSE, top_k=100)
    assert ids(dense).index("right") == len(tickets)
    assert ids(memory.recall("zx-8841", mode=LEXICAL))[0] == "right"


NOTES = (
    "Meeting notes. We spoke at length about the garden party, the caterer, the tents and the "
    "weather in June. Somebody mentioned ZX-8841 in passing. Then the band was discussed, the "
    "parking, the neighbours and the invitations, and who brings the cake. "
)


@pytest.mark.parametrize("place", [0, 20, 41])
@pytest.mark.parametrize(
    "ticket",
    [
        "Ticket {} is open and waits for the customer.",
        "ZX-{} is open and waits for the customer.",
        "ZX-{}",
        "The code of the ticket is open.",
    ],
)
def test_a_code_is_first_among_dozens_that_are_alike(
    memory: Memory, ticket: str, place: int
) -> None:
    """TOPK-7, where the one vector that is different is as far from the mean as can be."""
    said = {f"ticket-{number}": ticket.format(number) for number in range(9000, 9041)}
    before, after = [*said][:place], [*said][place:]
    said["right"] = NOTES
    memory.learn({key: said[key] for key in [*before, "right", *after]})
    for query in ("ZX-8841", "zx8841", "what about ZX-8841?"):
        assert ids(memory.recall(query))[0] == "right"


@pytest.mark.parametrize("mode", [HYBRID, LEXICAL])
@pytest.mark.parametrize(
    ("query", "right"),
    [
        ("\u5bff\u53f8", "sushi"),
        ("\uff30\uff31\uff17\uff17", "plain"),
        ("pq88", "wide"),
        ("STRASSE", "sharp"),
    ],
)
def test_two_ideographs_and_full_width_letters_are_found(
    memory: Memory, query: str, right: str, mode: Any
) -> None:
    """TEXT-6."""
    memory.learn(
        {
            **{f"m{number}": f"{text} {number}" for number, text in enumerate(HOUSE.values())},
            "sushi": "昨日の夜は寿司を食べました。",
            "soba": "昨日の朝は蕎麦を食べました。",
            "plain": "The model PQ77 has arrived.",
            "wide": "The model \uff30\uff31\uff18\uff18 has arrived.",
            "sharp": "Sie wohnt in der Langen Stra\u00dfe.",
        }
    )
    answer = memory.recall(query, mode=mode, explain=True)
    assert right in ids(answer)
    (best,) = [hit for hit in answer.messages if hit.explain.lexical_rank == 1]
    assert best.message.id == right


def test_no_word_of_the_query_is_no_hit_in_lexical_mode(memory: Memory) -> None:
    memory.learn(HOUSE)
    answer = memory.recall("zeppelin", mode=LEXICAL)
    assert list(answer.messages) == []
    assert answer.info.why_empty == recall_pb2.WHY_EMPTY_NO_WORDS
    assert answer.info.searchable == len(HOUSE)


def test_a_threshold_is_the_true_cosine_in_every_mode(memory: Memory) -> None:
    memory.learn(HOUSE)
    dense = memory.recall("the boiler", mode=DENSE, top_k=6)
    cosines = {hit.message.id: hit.score for hit in ranked(dense)}
    least = cosines["boiler"] - 0.01
    for mode in (DENSE, LEXICAL, HYBRID):
        assert ids(memory.recall("the boiler", mode=mode, threshold=least)) == ["boiler"]
        none = memory.recall("the boiler", mode=mode, threshold=0.999)
        assert none.info.why_empty == recall_pb2.WHY_EMPTY_BELOW_THRESHOLD
        assert none.info.best_score == pytest.approx(cosines["boiler"], abs=1e-5)


# ---- whose words ----


def test_words_stay_in_their_thread_and_meet_the_filter(memory: Memory) -> None:
    memory.learn({"a": "the zeppelin over the lake"}, "t1", metadata={"project": "A"})
    memory.learn({"b": "a zeppelin of lead"}, "t2", metadata={"project": "B"})
    memory.learn({"c": "nothing but a balloon"}, "t2", metadata={"project": "B"})

    def found(**fields: Any) -> list[str]:
        return ids(memory.recall("zeppelin", mode=LEXICAL, **fields))

    assert sorted(found()) == ["a", "b"]
    assert found(thread_id="t1", scope=types_pb2.SCOPE_THREAD) == ["a"]
    assert found(filter={"project": "B"}) == ["b"]
    assert found(exclude_message_ids=["a"]) == ["b"]
    assert found(roles=[types_pb2.ROLE_ASSISTANT]) == []
    late = memory.request("zeppelin", mode=LEXICAL)
    late.create_time_from.seconds = 1_700_000_000 + DAY
    assert list(memory.stream([_named(late, "late")])["late"].messages) == []


def _named(request: recall_pb2.RecallRequest, request_id: str) -> recall_pb2.RecallRequest:
    request.request_id = request_id
    return request


def test_words_of_another_resource_are_never_found_and_never_counted(
    stubs: Stubs, memory: Memory
) -> None:
    memory.learn(HOUSE)
    before = memory.recall("the boiler in March", explain=True)
    other = Memory(stubs, f"{memory.resource_id}-other")
    other.learn({f"x{number}": f"boiler march zeppelin {number}" for number in range(50)})
    after = memory.recall("the boiler in March", explain=True)
    assert after.messages == before.messages
    nothing = memory.recall("zeppelin", mode=LEXICAL)
    assert (list(nothing.messages), nothing.info.searchable) == ([], len(HOUSE))
    nobody = Memory(stubs, f"{memory.resource_id}-nobody").recall("boiler", mode=LEXICAL)
    assert nobody.info.why_empty == recall_pb2.WHY_EMPTY_NO_MESSAGES


# ---- several queries, recency, and what is left out ----


def test_other_phrasings_find_what_the_query_alone_does_not(memory: Memory) -> None:
    memory.learn(HOUSE)
    alone = memory.recall("walnuts", mode=LEXICAL)
    assert ids(alone) == ["nuts"]
    both = memory.recall("walnuts", mode=LEXICAL, alternative_queries=["Lisbon", " ", "walnuts"])
    assert sorted(ids(both)) == ["nuts", "train"]
    hybrid = memory.recall("walnuts", top_k=2, alternative_queries=["the train to Lisbon"])
    assert sorted(ids(hybrid)) == ["nuts", "train"]
    scores = {hit.message.id: hit.score for hit in ranked(hybrid)}
    train = memory.recall("the train to Lisbon", mode=DENSE, top_k=1)
    assert scores["train"] == pytest.approx(ranked(train)[0].score, abs=1e-5)


def test_a_message_of_the_future_is_as_recent_as_one_of_now(memory: Memory) -> None:
    """SCORE-6."""
    now = int(time.time())
    text = "The meeting about the roof"
    for name, at in {"future": now + 10 * DAY, "now": now, "old": now - 60 * DAY}.items():
        memory.learn({name: text}, name, at=at)
    answer = memory.recall("meeting about the roof", ranking={"recency_weight": 0.5}, explain=True)
    hits = {hit.message.id: hit for hit in ranked(answer)}
    assert ids(answer)[2] == "old"
    assert hits["future"].relevance == pytest.approx(hits["now"].relevance, abs=1e-3)
    assert hits["future"].explain.recency_part > hits["old"].explain.recency_part
    for hit in hits.values():
        assert hit.score == pytest.approx(hits["old"].score, abs=1e-6)
        assert -1 <= hit.score <= 1
        total = sum(getattr(hit.explain, f"{part}_part") for part in PARTS)
        assert hit.relevance == pytest.approx(total, abs=1e-4)


def test_what_is_left_out_says_why(memory: Memory) -> None:
    memory.learn({**HOUSE, "again": HOUSE["nuts"]})
    answer = memory.recall("walnuts", top_k=1, explain=True)
    assert len(answer.messages) == 1
    assert {one.reason for one in answer.excluded} == {recall_pb2.EXCLUDED_REASON_TOP_K}
    assert [one.rank for one in answer.excluded] == list(range(2, len(answer.excluded) + 2))
    assert {one.message_id for one in answer.excluded} <= {*HOUSE, "again"}
    assert {one.thread_id for one in answer.excluded} == {"t"}
    twice = memory.recall("walnuts", ranking={"near_duplicate_cosine": 0.98}, explain=True)
    (kept,) = {"nuts", "again"}.intersection(ids(twice))
    (gone,) = {"nuts", "again"} - {kept}
    said = {one.message_id: one for one in twice.excluded}[gone]
    assert said.reason == recall_pb2.EXCLUDED_REASON_NEAR_DUPLICATE
    assert said.near_duplicate_of == kept
    below = memory.recall("walnuts", threshold=0.999, explain=True)
    assert list(below.messages) == []
    reasons = [one.reason for one in below.excluded]
    assert reasons[:4] == [recall_pb2.EXCLUDED_REASON_BELOW_THRESHOLD] * 4
    assert set(reasons[4:]) == {recall_pb2.EXCLUDED_REASON_TOP_K}
    assert list(memory.recall("walnuts", top_k=1).excluded) == []


def test_a_budget_of_tokens_is_kept_and_counted(memory: Memory) -> None:
    memory.learn(HOUSE)
    whole = memory.recall("walnuts", top_k=6)
    assert (len(whole.messages), whole.info.tokens) == (6, 0)
    answer = memory.recall("walnuts", top_k=6, max_tokens=150)
    assert 0 < answer.info.tokens <= 150
    assert 0 < answer.info.context_tokens <= 150
    assert "allergic to walnuts" in answer.context_text
    assert 0 < len(answer.messages) < 6
    assert "nuts" in ids(answer)
    assert not any(message.text_cut for message in answer.messages)
    assert answer.info.messages_dropped_for_tokens == 6 - len(answer.messages)
    none = types_pb2.CONTEXT_NONE
    tiny = memory.recall("walnuts", top_k=6, max_tokens=5, context_format=none, explain=True)
    (cut,) = tiny.messages
    assert (cut.message.id, cut.text_cut, tiny.info.tokens) == ("nuts", True, 5)
    assert HOUSE["nuts"].startswith(cut.message.text)
    assert cut.message.text
    reasons = {one.reason for one in tiny.excluded}
    assert reasons == {recall_pb2.EXCLUDED_REASON_TOKENS}


def test_a_stream_answers_as_single_calls_do(memory: Memory) -> None:
    memory.learn(HOUSE)
    asked: dict[str, dict[str, Any]] = {
        "default": {},
        "lexical": {"mode": LEXICAL},
        "dense": {"mode": DENSE},
        "phrasings": {"alternative_queries": ["rent", "piano"]},
        "diverse": {"ranking": {"diversity": 0.5}},
        "duplicates": {"ranking": {"near_duplicate_cosine": 0.5}},
        "budget": {"max_tokens": 50},
    }
    requests = [
        memory.request("the boiler", explain=True, request_id=name, **fields)
        for name, fields in asked.items()
    ]
    answers = memory.stream(requests)
    assert set(answers) == set(asked)
    for name, fields in asked.items():
        single = memory.recall("the boiler", explain=True, **fields)
        assert single.messages
        assert answers[name].messages == single.messages
        assert answers[name].excluded == single.excluded
        assert answers[name].info.mode_used == single.info.mode_used


# ---- edits, forgetting and kill -9 ----


def _changed_words(memory: Memory) -> None:
    """What must hold after the edit and the forgetting of the test below, however often started."""

    def found(query: str) -> list[str]:
        return ids(memory.recall(query, mode=LEXICAL))

    assert found("Acme") == []
    assert found("Corp") == ["job"]
    assert found("4711") == []
    assert found("locker") == []
    assert found("Leeds") == ["boiler"]
    for query in ("Acme", "4711"):
        assert all(hit.explain.bm25 == 0 for hit in ranked(memory.recall(query, explain=True)))
    assert sorted(ids(memory.recall("Maya", top_k=50))) == sorted([*HOUSE, "job"])


def test_edited_and_forgotten_words_are_gone_at_once_and_after_a_kill(tmp_path: Path) -> None:
    """LOSS-4 and the like, by words."""
    target = f"unix:{tmp_path}/s.sock"
    with ServerProcess(flags(tmp_path)) as server:
        server.wait_for("serving")
        stubs = Stubs(target)
        memory = Memory(stubs, "alice")
        memory.learn({**HOUSE, "job": "Maya works at Acme", "code": "My locker code is 4711"})
        assert ids(memory.recall("Acme", mode=LEXICAL)) == ["job"]
        assert ids(memory.recall("4711", mode=LEXICAL)) == ["code"]
        memory.learn({"job": "Maya works at Beta Corp"})
        memory.forget("code")
        _changed_words(memory)
        stubs.close()
        server.signal(signal.SIGKILL)
        server.wait()
    with ServerProcess(flags(tmp_path)) as server:
        server.wait_for("serving")
        stubs = Stubs(target)
        memory = Memory(stubs, "alice")
        _changed_words(memory)
        memory.forget("job")
        assert ids(memory.recall("Corp", mode=LEXICAL)) == []
        stubs.close()
        server.signal(signal.SIGKILL)
        server.wait()
    with ServerProcess(flags(tmp_path)) as server:
        server.wait_for("serving")
        stubs = Stubs(target)
        assert ids(Memory(stubs, "alice").recall("Corp", mode=LEXICAL)) == []
        assert ids(Memory(stubs, "alice").recall("Leeds", mode=LEXICAL)) == ["boiler"]
        stubs.close()
