"""Seeded faults in what answers, guards and speaks to people."""

from __future__ import annotations

from support.mutation import Mutation

CORE = "core/semanticrecall_core"
SERVER = "server/semanticrecall_server"
CLIENT = "clients/python/semanticrecall"

SERVING: tuple[Mutation, ...] = (
    # --- recalled text is data -----------------------------------------------------------------
    Mutation(
        "recalled text is not escaped",
        f"{CORE}/ranking/quoting.py",
        'f"\\n{INDENT}".join(line.translate(_ESCAPES) for line in lines)',
        'f"\\n{INDENT}".join(lines)',
        "tests/core/test_context.py::test_recalled_text_cannot_close_the_block",
    ),
    Mutation(
        "the fence of the context is always the same",
        f"{CORE}/ranking/context.py",
        "hashlib.sha256(content.encode()).hexdigest()[:16]",
        'hashlib.sha256(b"").hexdigest()[: 16 * bool(content)]',
        "tests/cases/test_formatting.py::test_the_nonce_depends_on_the_content_and_on_nothing_else",
    ),
    Mutation(
        "an author may write a colon",
        f"{CORE}/ranking/quoting.py",
        'return _LATE_COLON.sub("&#58;", quoted_name(author))',
        "return quoted_name(author)",
        "tests/core/test_context_fence.py::test_an_author_cannot_speak_as_another",
    ),
    # --- answers that are given again ----------------------------------------------------------
    Mutation(
        "kept answers outlive a change",
        f"{SERVER}/answer_cache.py",
        "            known = self._resources.pop(resource_id, None)\n"
        "            if known is not None:\n",
        "            known = self._resources.get(resource_id)\n"
        "            if known is None and self._resources.pop(resource_id, known):\n",
        "tests/server/test_answer_cache.py::test_a_change_of_the_resource_ends_its_answers",
    ),
    Mutation(
        "an answer that was begun before a change is kept",
        f"{SERVER}/answer_cache.py",
        "            if not place.is_current:\n                return\n",
        "",
        "tests/server/test_answer_cache.py::test_an_answer_begun_before_a_change_is_not_kept",
    ),
    Mutation(
        "answers are kept by the query alone",
        f"{SERVER}/answer_cache.py",
        "    encoded = request.SerializeToString(deterministic=True)\n",
        "    encoded = request.query.encode()\n",
        "tests/server/test_answer_cache.py::test_every_field_that_may_change_an_answer_is_in_the_key",
    ),
    # --- who is let in -------------------------------------------------------------------------
    Mutation(
        "any token is good",
        f"{SERVER}/security.py",
        "            found |= hmac.compare_digest(digest, offered)\n",
        "            found |= len(digest) == len(offered)\n",
        "tests/server/test_security.py::test_no_method_is_reached_without_a_good_token",
    ),
    Mutation(
        "reflection needs no token",
        f"{SERVER}/security.py",
        'OPEN_SERVICES = ("/grpc.health.v1.Health/",)',
        'OPEN_SERVICES = ("/grpc.",)',
        "tests/server/test_security.py::test_no_method_is_reached_without_a_good_token",
    ),
    Mutation(
        "a page token holds for every list",
        f"{SERVER}/page_tokens.py",
        "        for part in (*(text.encode() for text in query), head):\n",
        "        for part in (head,):\n",
        "tests/server/test_convert.py::test_page_tokens_hold_for_one_list_of_one_store",
    ),
    Mutation(
        "a place is taken although all are",
        f"{SERVER}/gate.py",
        "        if self._taken >= self._limit:\n",
        "        if self._taken >= 1_000 * self._limit:\n",
        "tests/server/test_gate.py::test_the_gate_counts_by_kind",
    ),
    Mutation(
        "an unexpected error tells its text",
        f"{SERVER}/errors.py",
        '    return InternalError(f"internal error; its id in the server\'s log is {error_id}")\n',
        '    return InternalError(f"{error}; its id in the server\'s log is {error_id}")\n',
        "tests/server/test_errors.py::test_text_of_an_unexpected_exception_reaches_neither_client_nor_log",
    ),
    Mutation(
        "a deadline that passed is not noticed",
        f"{CORE}/types/values.py",
        "        if time.monotonic() >= self.deadline:\n",
        "        if time.monotonic() >= self.deadline + 3600:\n",
        "tests/core/test_verify_budget.py::test_a_deadline_ends_it_too",
    ),
    # --- what is asked for ---------------------------------------------------------------------
    Mutation(
        "a threshold is not kept to",
        f"{CORE}/engine/selection.py",
        "candidates.cosines >= np.float32(query.threshold)",
        "candidates.cosines >= np.float32(-query.threshold)",
        "tests/core/test_hybrid_recall.py::test_raising_the_threshold_never_adds_a_result",
    ),
    Mutation(
        "more tokens are given than were asked for",
        f"{CORE}/engine/token_budget.py",
        "            if context_tokens <= tokens_max:\n                break\n",
        "            if context_tokens <= 2 * tokens_max:\n                break\n",
        "tests/core/test_budget.py::test_every_budget_is_kept_and_more_never_shows_less",
    ),
    Mutation(
        "texts that share a run get each other's vectors",
        f"{CORE}/embedding/batching.py",
        "                pairs = list(zip(batch, results, strict=True))\n",
        "                pairs = list(zip(reversed(batch), results, strict=True))\n",
        "tests/core/test_embedding_batching.py"
        "::test_a_lone_text_runs_at_once_and_what_came_meanwhile_runs_together",
    ),
    Mutation(
        "a text whose vector failed in a batch is not run alone",
        f"{CORE}/embedding/batching.py",
        "                    alone.append(request)\n",
        "                    request.fail(result)\n",
        "tests/core/test_embedding_batching.py::test_a_text_that_fails_does_not_fail_its_neighbours",
    ),
    Mutation(
        "a recall in one thread finds messages of all",
        f"{CORE}/partitions/conditions.py",
        "        mask &= rows.thread_keys == query.thread_key\n",
        "        mask &= rows.thread_keys >= 0\n",
        "tests/contract/test_vector_index_contract.py::test_conditions_hold_before_top_k",
    ),
    Mutation(
        "what is in the prompt already is found again",
        f"{CORE}/partitions/conditions.py",
        "        mask[rows_of(query.excluded_seqs)] = False\n",
        "        mask[rows_of(query.excluded_seqs)] &= True\n",
        "tests/contract/test_vector_index_contract.py"
        "::test_excluded_messages_leave_their_places_to_others",
    ),
    Mutation(
        "vectors of any length are searched",
        f"{CORE}/vectors/rows.py",
        "    return bool(np.all(np.abs(squares - 1.0) <= NORM_SQUARED_TOLERANCE))\n",
        "    return bool(np.all(np.abs(squares - 1.0) < np.inf))\n",
        "tests/contract/test_vector_index_contract.py"
        "::test_rows_that_are_no_unit_vectors_change_nothing",
    ),
    Mutation(
        "an answer holds a text that its score is not of",
        f"{CORE}/messages/windows.py",
        "            if not is_neighbour and (seq, revision) != hits[hit]:\n",
        "            if not is_neighbour and seq != hits[hit][0]:\n",
        "tests/contract/test_message_store_reading_contract.py"
        "::test_a_hit_of_another_revision_is_gone",
    ),
    Mutation(
        "a read token of another store is waited for",
        f"{CORE}/engine/read_token.py",
        "    if parts[1] != store_id:\n",
        "    if not parts[1]:\n",
        "tests/core/test_engine_waiting.py::test_a_token_of_elsewhere_is_refused",
    ),
    Mutation(
        "a worker that died goes unnoticed",
        f"{CORE}/embedding/batching.py",
        "            self._dead = True\n",
        "            self._dead = False\n",
        "tests/core/test_embedding_batching.py::test_a_worker_that_dies_tells_all_who_wait",
    ),
    # --- the client ----------------------------------------------------------------------------
    Mutation(
        "the client sends twice what must not be done twice",
        f"{CLIENT}/connection.py",
        '                [("RecallService", "Index"), ("RecallService", "Forget")],\n'
        '                ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],\n',
        '                [("RecallService", "Index"), ("AdminService", "RestoreSnapshot")],\n'
        '                ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],\n',
        "tests/clients/test_care.py::test_what_must_not_be_done_twice_is_not_sent_twice",
    ),
    Mutation(
        "an empty condition forgets more",
        f"{CLIENT}/requests.py",
        '        if value is None or value in ("", [], ()):\n',
        "        if value is conditions:\n",
        "tests/clients/test_care.py::test_a_condition_that_says_nothing_never_forgets_more",
    ),
    Mutation(
        "a message comes back without its nanoseconds",
        f"{CLIENT}/wire.py",
        "extra_ns=wire.create_time.nanos % 1000 if timed else 0,",
        "extra_ns=0,",
        "tests/clients/test_client.py::test_a_message_comes_back_as_it_went",
    ),
)
