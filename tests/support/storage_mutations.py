"""Seeded faults in what keeps, checks and removes data."""

from __future__ import annotations

from support.mutation import Mutation

CORE = "core/semanticrecall_core"
MESSAGES = f"{CORE}/messages"
CACHE = f"{CORE}/embedding"
IMAGES = f"{CORE}/snapshots"
SAVING = f"{CORE}/saving"

STORAGE: tuple[Mutation, ...] = (
    # --- what must be on disk ------------------------------------------------------------------
    Mutation(
        "a commit is acknowledged before it is on disk",
        f"{MESSAGES}/connection.py",
        'connection.pragma("synchronous", "FULL")',
        'connection.pragma("synchronous", "NORMAL")',
        "tests/faults/test_syncs.py::test_a_message_is_on_disk_before_it_is_acknowledged",
    ),
    Mutation(
        "the mark of what was acknowledged is never synced",
        f"{MESSAGES}/high_water_mark.py",
        "        os.fdatasync(self._fd)\n",
        "",
        "tests/faults/test_syncs.py::test_the_mark_is_synced_when_the_store_closes",
    ),
    Mutation(
        "a new data directory's names are not synced",
        f"{MESSAGES}/journal.py",
        "        directory.sync()\n",
        "",
        "tests/faults/test_syncs.py::test_the_names_of_a_new_store_are_synced",
    ),
    Mutation(
        "an image is renamed before it is on disk",
        f"{IMAGES}/new_file.py",
        "a damaged block that was left out may lie behind\n        os.fsync(self._fd)\n",
        "a damaged block that was left out may lie behind\n",
        "tests/faults/test_snapshot_files.py"
        "::test_nothing_is_removed_before_what_replaces_it_is_on_disk",
    ),
    Mutation(
        "the name of an image is not synced",
        f"{IMAGES}/new_file.py",
        "            sync_directory(path.parent)\n        except OSError:",
        "            pass\n        except OSError:",
        "tests/faults/test_snapshot_files.py"
        "::test_nothing_is_removed_before_what_replaces_it_is_on_disk",
    ),
    Mutation(
        "an image is copied to its name instead of renamed",
        f"{IMAGES}/new_file.py",
        "        os.rename(self._path, path)\n",
        "        path.write_bytes(self._path.read_bytes())\n",
        "tests/faults/test_snapshot_files.py"
        "::test_nothing_is_removed_before_what_replaces_it_is_on_disk",
    ),
    Mutation(
        "the name of an erased image goes before the image",
        f"{IMAGES}/new_file.py",
        "        os.fsync(fd)  # who finds no name relies on it that the block is erased\n",
        "",
        "tests/faults/test_snapshot_forgetting.py"
        "::test_a_name_is_overwritten_after_its_block_is_on_disk",
    ),
    Mutation(
        "the ledger of what was forgotten is not synced",
        f"{SAVING}/ledger.py",
        "records, end)\n                os.fsync(fd)\n",
        "records, end)\n",
        "tests/faults/test_syncs.py::test_the_ledger_is_on_disk_before_a_forget_is_answered",
    ),
    Mutation(
        "a saved snapshot gets its name before its files are on disk",
        f"{SAVING}/folder.py",
        "        files.sync_file(path)\n        entry",
        "        entry",
        "tests/faults/test_syncs.py::test_a_snapshot_is_on_disk_before_it_has_its_name",
    ),
    Mutation(
        "the file of the key is renamed before it is on disk",
        f"{CORE}/encryption/data_key.py",
        "        os.fsync(fd)\n    finally:\n        os.close(fd)\n    os.rename",
        "    finally:\n        os.close(fd)\n    os.rename",
        "tests/faults/test_syncs.py::test_the_key_is_on_disk_before_it_has_its_name",
    ),
    Mutation(
        "after a failed sync the store goes on",
        f"{MESSAGES}/commit.py",
        "            self._journal.rollback()\n            self._journal.distrust()\n",
        "            self._journal.rollback()\n",
        "tests/faults/test_messages_disk.py"
        "::test_after_a_failed_sync_nothing_is_acknowledged_until_the_disk_is_verified",
    ),
    Mutation(
        "a full disk's reserve is not given up",
        f"{MESSAGES}/commit.py",
        "                self._journal.make_room()\n",
        "",
        "tests/faults/test_messages_disk.py"
        "::test_a_full_disk_refuses_messages_serves_reads_and_can_still_forget",
    ),
    # --- what is damaged must be seen ----------------------------------------------------------
    Mutation(
        "the checksum of a message is not compared",
        f"{MESSAGES}/rows.py",
        "is_sound = zlib.crc32(encoded, zlib.crc32(names)) == checksum",
        "is_sound = bool(names)",
        "tests/faults/test_messages_disk.py::test_a_changed_row_is_never_served",
    ),
    Mutation(
        "the checksum of a vector is not compared",
        f"{MESSAGES}/vector_rows.py",
        "sound = fits & (vector_checksums(numbers, vectors) == checksums)",
        "sound = fits",
        "tests/faults/test_messages_disk.py::test_a_changed_vector_is_left_out_and_made_again",
    ),
    Mutation(
        "the checksum of a block of an image is not compared",
        f"{IMAGES}/sealed_file.py",
        "        if digest.intdigest() != entry.checksum:\n"
        '            raise CorruptDataError("a block of the snapshot file does not match',
        "        if not entry.checksum:\n"
        '            raise CorruptDataError("a block of the snapshot file does not match',
        "tests/faults/test_snapshot_files.py::test_every_flipped_bit_is_found",
    ),
    Mutation(
        "the checksum of a cached vector is not compared",
        f"{CACHE}/cache_file.py",
        "            and checksum == self._checksum(name, value)\n",
        "",
        "tests/core/test_embedding_cache_faults.py::test_an_entry_of_another_name_is_not_given_out",
    ),
    Mutation(
        "a cached vector may have any length",
        f"{CACHE}/cache_file.py",
        "            and self._is_unit(value)\n",
        "",
        "tests/core/test_embedding_cache_faults.py"
        "::test_a_vector_that_is_not_of_unit_length_is_not_given_out",
    ),
    Mutation(
        "a vector that is not finite is taken from the model",
        f"{CACHE}/session.py",
        "    if not math.isfinite(length):\n",
        "    if length < 0:\n",
        "tests/core/test_embedding_session.py::test_a_value_that_is_not_finite_is_refused",
    ),
    Mutation(
        "the checksums of pages are not compared",
        f"{CORE}/encryption/connecting.py",
        "            connection = _connected(name, flags, layer, statements_cached)\n",
        "            connection = _connected(name, flags, base or layer, statements_cached)\n",
        "tests/core/test_page_checksums.py::test_every_flipped_bit_of_the_database_is_found",
    ),
    Mutation(
        "a record shorter than what was acknowledged is taken",
        f"{MESSAGES}/journal.py",
        "        if missing > 0:\n",
        "        if missing > 1_000_000:\n",
        "tests/core/test_messages_files.py::test_an_older_copy_is_noticed",
    ),
    Mutation(
        "the digest of a saved snapshot is not compared",
        f"{SAVING}/reading.py",
        "            if files.digest_of(folder / name, budget) != entry.sha256:\n",
        "            if not files.digest_of(folder / name, budget):\n",
        "tests/core/test_saved_digests.py"
        "::test_another_database_that_is_sound_in_itself_is_refused",
    ),
    # --- what is whose, and what is late -------------------------------------------------------
    Mutation(
        "messages by id are looked for in all resources",
        f"{MESSAGES}/reading.py",
        '        f" WHERE m.resource_key = {_RESOURCE} AND m.id = CAST(c.value AS TEXT)",\n',
        '        f" WHERE (m.resource_key = {_RESOURCE} OR 1) AND m.id = CAST(c.value AS TEXT)",\n',
        "tests/contract/test_message_store_contract.py::test_a_foreign_seq_or_id_finds_nothing",
    ),
    Mutation(
        "a listing shows all resources",
        f"{MESSAGES}/reading.py",
        'f"?2 IS NULL AND m.resource_key = {_RESOURCE}"',
        'f"?2 IS NULL AND (m.resource_key = {_RESOURCE} OR 1)"',
        "tests/core/test_messages_foreign_rows.py::test_a_listing",
    ),
    Mutation(
        "a filter reads the metadata of all resources",
        f"{MESSAGES}/reading.py",
        'm.resource_key = {_RESOURCE} AND {where.text}"',
        '(m.resource_key = {_RESOURCE} OR 1) AND {where.text}"',
        "tests/contract/test_message_store_reading_contract.py::test_filters_mean_what_is_written",
    ),
    Mutation(
        "a window may begin at another resource's message",
        f"{MESSAGES}/windows.py",
        'f" CROSS JOIN messages m ON m.seq = c.value AND m.resource_key = {_RESOURCE}"',
        'f" CROSS JOIN messages m ON m.seq = c.value AND {_RESOURCE} IS NOT NULL"',
        "tests/core/test_messages_foreign_rows.py::test_windows_of_foreign_hits",
    ),
    Mutation(
        "partitions are filled with vectors of every generation",
        f"{MESSAGES}/reading.py",
        '        " AND v.generation_key = ?2 ORDER BY v.seq, v.chunk",',
        '        " AND ?2 IS NOT NULL ORDER BY v.seq, v.chunk",',
        "tests/core/test_generations.py::test_the_next_model_takes_the_place_of_the_present_one",
    ),
    Mutation(
        "vectors of a text that was replaced meanwhile are stored",
        f"{MESSAGES}/put_vectors.py",
        '" WHERE m.seq = ? AND m.revision = ? AND r.resource_id = ?"',
        '" WHERE m.seq = ? AND m.revision >= ? AND r.resource_id = ?"',
        "tests/contract/test_message_store_contract.py"
        "::test_vectors_of_a_row_that_changed_come_too_late",
    ),
    Mutation(
        "a record takes whichever model comes",
        f"{MESSAGES}/generations.py",
        " or recorded.generation in of_ours or not _has_vectors(connection):\n",
        " or recorded.generation or not _has_vectors(connection):\n",
        "tests/core/test_messages_generations.py"
        "::test_another_model_is_refused_where_there_is_something_of_one",
    ),
    Mutation(
        "a thread may be given to who has a message of the same id",
        f"{MESSAGES}/transfer.py",
        "        if self._ids_taken(connection, thread, target):\n",
        "        if self._ids_taken(connection, thread, target) and not target:\n",
        "tests/contract/test_message_store_contract.py::test_a_thread_does_not_move_onto_another",
    ),
    Mutation(
        "a cached vector's name has one byte of its digest",
        f"{CACHE}/cache.py",
        "        return of_owner.digest() + of_text.digest()\n",
        "        return of_owner.digest() + of_text.digest()[:1] * KEY_BYTES\n",
        "tests/core/test_embedding_cache.py::test_each_of_a_thousand_texts_has_its_own",
    ),
    Mutation(
        "a cached vector is anybody's",
        f"{CACHE}/cache.py",
        "        sized_owner = _sized(owner)\n",
        '        sized_owner = _sized("")\n',
        "tests/contract/test_embedder_contract.py"
        "::test_what_one_owner_has_cached_is_not_used_for_another",
    ),
    Mutation(
        "the parts of a cached vector's name run into each other",
        f"{CACHE}/cache.py",
        '    return len(encoded).to_bytes(8, "little") + encoded\n',
        "    return encoded\n",
        "tests/core/test_embedding_cache.py::test_prompt_and_text_are_not_joined",
    ),
    Mutation(
        "two stores may hold one directory",
        f"{MESSAGES}/directory.py",
        "        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)\n",
        "tests/core/test_messages_files.py::test_a_second_store_is_refused_and_the_first_goes_on",
    ),
    Mutation(
        "others may read the mark",
        f"{MESSAGES}/high_water_mark.py",
        "os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)",
        "os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)",
        "tests/core/test_messages_files.py::test_only_the_owner_may_read",
    ),
    Mutation(
        "a directory that is open to others stays so",
        f"{MESSAGES}/directory.py",
        "os.chmod(path, stat.S_IMODE(status.st_mode) & ~_FOR_OTHERS)",
        "os.chmod(path, stat.S_IMODE(status.st_mode))",
        "tests/faults/test_directory_places.py"
        "::test_a_directory_that_is_open_to_others_is_closed_to_them",
    ),
    Mutation(
        "given vectors may have any length",
        "server/semanticrecall_server/given_vectors.py",
        "    if (np.abs(lengths - 1.0) > UNIT_TOLERANCE).any():\n",
        "    if (np.abs(lengths - 1.0) < 0).any():\n",
        "tests/server/test_saved_snapshots.py::test_bad_vectors_reject_their_message_alone",
    ),
    Mutation(
        "given vectors may be of any model",
        "server/semanticrecall_server/given_vectors.py",
        "if given.index_identity != form.index_identity or counts[given.message_id] > 1:",
        "if counts[given.message_id] > 1:",
        "tests/server/test_saved_snapshots.py::test_vectors_of_another_model_are_left_aside",
    ),
    # --- who is told, and when -----------------------------------------------------------------
    Mutation(
        "a caller is answered before the indexes were told",
        f"{MESSAGES}/commit.py",
        "            for job in batch:\n                self._tell(job)\n"
        "            for job in batch:\n                job.answer()\n",
        "            for job in batch:\n                job.answer()\n"
        "            for job in batch:\n                self._tell(job)\n",
        "tests/core/test_messages_commit.py"
        "::test_a_fault_in_the_listener_stops_the_store_and_nobody_waits_for_ever",
    ),
    Mutation(
        "listeners are told in another order than they came",
        f"{MESSAGES}/commit.py",
        "        for notice in job.change.notices:\n            for listener in self._listeners:\n",
        "        for notice in job.change.notices:\n"
        "            for listener in reversed(self._listeners):\n",
        "tests/contract/test_message_store_rows_contract.py"
        "::test_each_listener_is_told_in_the_order_they_came",
    ),
    Mutation(
        "a write whose caller has left is done all the same",
        f"{MESSAGES}/commit.py",
        "            if job.budget is not None:\n                job.budget.check()\n",
        "            if job.budget is None:\n                pass\n",
        "tests/core/test_messages_commit.py"
        "::test_a_caller_who_went_away_in_the_queue_leaves_no_trace",
    ),
    # --- what is forgotten must be gone --------------------------------------------------------
    Mutation(
        "deleted messages stay in free pages",
        f"{MESSAGES}/connection.py",
        'connection.pragma("secure_delete", "ON")',
        'connection.pragma("secure_delete", "OFF")',
        "tests/faults/test_messages_disk.py::test_forgotten_text_is_not_left_in_the_file",
    ),
    Mutation(
        "forgotten vectors stay in free pages of the cache",
        f"{CACHE}/cache_format.py",
        'connection.pragma("secure_delete", "ON")',
        'connection.pragma("secure_delete", "OFF")',
        "tests/core/test_embedding_cache_file.py::test_no_byte_of_what_was_forgotten_is_left",
    ),
    Mutation(
        "what was forgotten while it was embedded is cached",
        f"{CACHE}/cache.py",
        "            if mark != self._forgets:\n                return\n",
        "",
        "tests/core/test_embedding_cache.py"
        "::test_what_was_forgotten_while_it_was_computed_is_not_kept",
    ),
    Mutation(
        "a forget by author takes what others wrote",
        f"{MESSAGES}/forget.py",
        "        if not condition.authors or author_of(message, decode) in condition.authors:\n",
        "        if not condition.authors or author_of(message, decode) is not None:\n",
        "tests/cases/test_forgetting.py::test_what_meets_every_condition_goes",
    ),
    Mutation(
        "a forget leaves no trace for snapshots",
        f"{MESSAGES}/forget.py",
        "    in_snapshots = tuple(seq for seq in seqs if seq <= last)\n",
        "    in_snapshots = tuple(seq for seq in seqs if seq > last)\n",
        "tests/core/test_saved_forgotten.py::test_what_was_forgotten_since_is_not_restored",
    ),
    Mutation(
        "a restore takes what was forgotten",
        f"{MESSAGES}/restoring.py",
        "            rows = [row for row in batch if row[0] not in self._left_out]\n"
        "            self.left_out_count",
        "            rows = list(batch)\n            self.left_out_count",
        "tests/core/test_saved_forgotten.py::test_what_was_forgotten_since_is_not_restored",
    ),
    Mutation(
        "a purge leaves the log as long as it is",
        f"{MESSAGES}/journal.py",
        "self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)\n        finally:\n",
        "self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)\n        finally:\n",
        "tests/faults/test_forgotten_bytes.py::test_nothing_of_what_was_forgotten_is_in_any_byte",
    ),
    Mutation(
        "a lost ledger is not made again",
        f"{SAVING}/folder.py",
        "            self._bring_up_to_date(store.forgotten())\n",
        "",
        "tests/core/test_saved_forgotten.py"
        "::test_a_ledger_that_was_lost_is_made_again_from_the_record",
    ),
    Mutation(
        "the checksum of a record of the ledger is not compared",
        f"{SAVING}/ledger.py",
        "    if _checksum(body) != checksum:\n",
        "    if not checksum:\n",
        "tests/core/test_saving_ledger.py::test_one_flipped_bit_loses_nothing",
    ),
    Mutation(
        "a wrong key is taken",
        f"{CORE}/encryption/data_key.py",
        "        except InvalidTag:\n            continue\n",
        "        except InvalidTag:\n            return wrapped[:KEY_BYTES]\n",
        "tests/core/test_encryption_keys.py::test_a_wrong_or_missing_key_is_refused_and_changes_nothing",
    ),
    Mutation(
        "the file of the key is written in place",
        f"{CORE}/encryption/data_key.py",
        "    partial = path.with_name(path.name + _PARTIAL)\n",
        "    partial = path\n",
        "tests/core/test_encryption_keys.py"
        "::test_a_change_that_is_cut_off_anywhere_leaves_the_old_or_the_new_key",
    ),
    Mutation(
        "encrypted images have one key whatever their file",
        f"{CORE}/encryption/segments.py",
        "HKDF(hashes.SHA256(), len(key), salt=head, info=_INFO)",
        "HKDF(hashes.SHA256(), len(key), salt=None, info=_INFO)",
        "tests/core/test_encryption_keys.py::test_a_piece_of_a_file_opens_at_its_place_of_its_file_only",
    ),
    Mutation(
        "a jump of the clock expires everything",
        f"{CORE}/engine/retention.py",
        "self._ceiling_ns = min(wall, self._ceiling_ns + CLOCK_SPEED_MAX * passed)",
        "self._ceiling_ns = max(wall, passed)",
        "tests/core/test_retention_clock.py"
        "::test_a_jump_forward_is_gone_after_at_twice_the_speed_and_not_at_once",
    ),
)
