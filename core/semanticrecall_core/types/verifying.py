"""What a Verify says, and what the parts say to each other about damage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from .stored_message import StoredMessage
from .values import CallBudget, Finding, PartitionImage, PartitionRows, PendingRow

if TYPE_CHECKING:
    from .values import IntColumn


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """How far a Verify is.

    Attributes:
        stage: "database", "messages", "vectors", "words", "partitions", "images", "snapshots" or
            "self-test".
        done: rows, partitions or files of it that were read.
        total: of so many, as they were counted at the start; 0 where that is not known.
    """

    stage: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a Verify looked at; always its last event.

    Attributes:
        messages, vectors: read.
        findings: given; `repaired` of these were mended.
        analyses: messages whose words were compared.
        images, snapshots: images of partitions and saved snapshots that were read.
        self_test_recalls: messages that were recalled by their own text after a repair;
            `self_test_failures` of these did not come first.
        lost: messages that a repair has removed, for nothing on record gives them back; the first
            of them are findings MESSAGE_LOST.
    """

    messages: int
    vectors: int
    findings: int
    repaired: int = 0
    analyses: int = 0
    images: int = 0
    snapshots: int = 0
    self_test_recalls: int = 0
    self_test_failures: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class RecordDamage:
    """A finding about the record, with the place where it is mended.

    Attributes:
        seq, resource_key: of the message it is about; 0 where it is about none.
        row_key: of the row, where that is another.
    """

    finding: Finding
    seq: int = 0
    resource_key: int = 0
    row_key: int = 0


@dataclass(frozen=True, slots=True)
class ImageCheck:
    """One image of a partition on the disk.

    Attributes:
        resource_id: whose; "" for a file of which that cannot be told.
        image: None where it is damaged.
        file: the name of a file of which nothing can be read.
    """

    resource_id: str
    image: PartitionImage | None
    file: str = ""


@dataclass(frozen=True, slots=True)
class LostMessage:
    """A message that could not be read, or did not match its checksum, and left the record.

    Attributes:
        resource_id, message_id: as far as they can be told; else "".
    """

    seq: int
    resource_id: str
    message_id: str


@dataclass(slots=True)
class MendReport:
    """What became of damage.

    Attributes:
        repaired: for each that was given, in order: the record agrees with itself there now.
        lost: messages that left the record for it.
        requeued: messages that wait to be embedded again; their texts are not read.
    """

    repaired: list[bool] = field(default_factory=list)
    lost: list[LostMessage] = field(default_factory=list)
    requeued: list[PendingRow] = field(default_factory=list)


class RecordCare(Protocol):
    """Verifying the record, and mending it. Thread-safe."""

    def examine(
        self, resource_id: str | None, budget: CallBudget | None, dimensions: int | None
    ) -> Iterator[RecordDamage | VerifyProgress]:
        """Read everything and give what does not agree; after each batch how far it is.

        Changes nothing, and what changes meanwhile is never taken for damage.

        Args:
            resource_id: this resource alone; None is the whole record, its file included.
            budget: raises DeadlineExceededError or CancelledError soon after it is over.
            dimensions: of the vectors that are served; None compares none.
        """
        ...

    def mend(self, damages: Sequence[RecordDamage]) -> MendReport:
        """Mend rows in one transaction; each is judged once more in it."""
        ...

    def mend_file(self, damages: Sequence[RecordDamage]) -> MendReport:
        """Mend what is damaged below the rows: indexes are made anew, or the whole file.

        What is in memory of any resource is to be dropped afterwards, and what is pending taken up.
        Rows that cannot be read, or do not match their checksum, are lost. `repaired` has one
        entry: whether SQLite's own check is content now.
        """
        ...

    def drop_resource(self, resource_id: str) -> None:
        """What is in memory of a resource is thrown away; whoever asks next reads the record."""
        ...

    def caught_up(self, budget: CallBudget) -> None:
        """Return when every listener was told of all that is on record now.

        At once where the store takes no more writes: then no listener is told any more.

        Raises DeadlineExceededError, CancelledError.
        """
        ...

    def partition(self, resource_id: str) -> tuple[PartitionRows, IntColumn]:
        """The vectors that are searched, as the record has them, and messages with damaged ones.

        As `MessageStore.load_partition`, but changes nothing.
        """
        ...

    def texts(self, resource_id: str) -> tuple[IntColumn, IntColumn, IntColumn]:
        """Seqs and revisions of messages with something to embed, and seqs of damaged ones."""
        ...

    def seqs_there(self, resource_id: str, seqs: IntColumn) -> IntColumn:
        """Those of these that are messages of the resource, sorted."""
        ...

    def sample(self, resource_id: str | None, limit: int) -> list[StoredMessage]:
        """Messages that have vectors, of many resources or of this one; sound ones only."""
        ...

    def counts(self) -> dict[str, int]:
        """How much was found damaged since the start: "message", "vector", "words", "page"."""
        ...
