"""A log that nobody can write to, because its disk is full or its reader gone, ends nothing."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator

import pytest
import structlog

from semanticrecall_server.logs import configure_logs


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    logging.captureWarnings(False)
    structlog.reset_defaults()


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_full_disk(form: str) -> None:
    with io.TextIOWrapper(io.FileIO("/dev/full", "w"), write_through=True) as full:
        log = configure_logs("info", form, full)
        for number in range(1_000):
            log.error("store_disk_full", operations=number)
        logging.getLogger("another.library").warning("anything")
        with pytest.raises(OSError, match="No space"):  # the device does what it should
            os.write(full.fileno(), b"x")


def test_a_reader_that_is_gone() -> None:
    reader, writer = os.pipe()
    with io.TextIOWrapper(io.FileIO(writer, "w"), write_through=True) as stream:
        log = configure_logs("info", "json", stream)
        os.close(reader)
        log.error("store_commit_failed")


def test_a_stream_that_is_closed() -> None:
    stream = io.StringIO()
    log = configure_logs("info", "json", stream)
    log.info("first")
    assert '"event": "first"' in stream.getvalue()
    stream.close()
    log.info("second")
