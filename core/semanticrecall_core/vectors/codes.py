"""Eight-bit codes of vectors, scanned by FAISS, with a proven bound on their error.

A row x is kept as c = clip(round(x * s), -127, 127), s = 127 / scale_clip, and stands for
x' = c / s. A query q is rounded the same way with a scale of its own, 127 / max |q|, so that none
of it is clipped. FAISS's QT_8bit_direct_signed stores c + 128 in a byte and, on its vector paths,
truncates the query to whole numbers that wrap beyond a signed byte (an unscaled unit query
becomes all zero): it is given whole numbers within [-127, 127] only, on which every path agrees.

    <x, q> - <x', q'> = <x - x', q'> + <x, q - q'>
    |<x, q> - <x', q'>| <= |x - x'| |q'| + |x| |q - q'|        (Cauchy-Schwarz)

The errors on the right are computed, not estimated; |q'| is at most |q| + |q - q'|. A row with an
outlier that was clipped has a far larger |x - x'| than the others: such rows are left out of the
bound and handed out with every scan instead, as long as they are few.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from semanticrecall_core.types.errors import InvalidArgumentError

from .environment import load_faiss
from .rows import NORM_SQUARED_TOLERANCE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semanticrecall_core.types.values import FloatRows, IntColumn

    CodeRows = NDArray[np.uint8]
    WideRows = NDArray[np.float64]
    ErrorColumn = NDArray[np.float32]

faiss = load_faiss()

CODE_MAX = 127
CODE_OFFSET = 128
ENCODED_ROWS_AT_ONCE = 4096
OUTLIER_SHARE_MAX = 1 / 64
REMEMBERED_SCANS_MAX = 8
REMEMBERED_ROWS_MAX = 512
REMEMBERED_FROM_ROWS = 4096
"""Smaller parts are scanned in about the time that remembering takes: docs/decisions/0012."""
_DIGEST_SALT = secrets.token_bytes(64)
LENGTH_MAX = math.sqrt(1.0 + NORM_SQUARED_TOLERANCE)


def float_slack(dimensions: int) -> float:
    """Bound on the rounding of one float32 dot product of two unit vectors, scores included.

    The standard bound is dimensions * 2**-24 * |x| |q|; twice that leaves room for lengths that
    are not quite 1 and for the rounding of the score itself.
    """
    return (dimensions + 8) * 2.0**-23


def checked(vectors: FloatRows, dimensions: int) -> WideRows:
    """Queries as exact cosines need them: in float64, shape (queries, dimensions).

    Raises:
        InvalidArgumentError: a wrong shape or dtype, not finite, not of unit length.
    """
    if vectors.ndim != 2 or vectors.shape[1] != dimensions or vectors.dtype != np.float32:
        raise InvalidArgumentError.of(
            "query_embedding", f"must be float32 with {dimensions} numbers"
        )
    wide = vectors.astype(np.float64)
    squares: list[float] = np.vecdot(wide, wide).tolist()
    if not all(abs(square - 1.0) <= NORM_SQUARED_TOLERANCE for square in squares):
        raise InvalidArgumentError.of("query_embedding", "must be finite and of unit length")
    return wide


class _CodedQuery(NamedTuple):
    """A query as coded rows are scanned with it; see `Probe`."""

    codes: FloatRows
    scale: float
    error: float


class Probe:
    """A checked query in every form that a search needs. Never changed; made once a search.

    Attributes:
        vector: shape (dimensions,), float32.
        wide: shape (1, dimensions), float64.
    """

    __slots__ = ("_coded", "_digest", "vector", "wide")

    def __init__(self, vector: FloatRows, dimensions: int) -> None:
        """Check a query.

        Raises:
            InvalidArgumentError: as `checked`.
        """
        self.wide = checked(vector[np.newaxis], dimensions)
        self.vector: FloatRows = np.ascontiguousarray(vector)
        self._coded: _CodedQuery | None = None
        self._digest: bytes | None = None

    @property
    def codes(self) -> FloatRows:
        """Shape (1, dimensions), whole numbers within [-127, 127]."""
        return self._in_codes().codes

    @property
    def scale(self) -> float:
        """`codes` / `scale` is close to the vector."""
        return self._in_codes().scale

    @property
    def error(self) -> float:
        """No less than |q - q'|."""
        return self._in_codes().error

    @property
    def digest(self) -> bytes:
        """SHA-256 of the vector, salted with a secret of this process.

        Equal for equal queries; nothing of the query can be told from it.
        """
        if self._digest is None:
            self._digest = sha256(_DIGEST_SALT + self.vector.tobytes()).digest()
        return self._digest

    def _in_codes(self) -> _CodedQuery:
        """Made when it is first wanted: small partitions have no codes. Two threads make equals."""
        coded = self._coded
        if coded is None:
            wide = self.wide
            scale = CODE_MAX / float(np.maximum.reduce(np.abs(wide[0])))
            scaled = wide * scale
            rounded = np.rint(scaled)
            scaled -= rounded
            error = math.sqrt(np.vecdot(scaled[0], scaled[0])) / scale * (1.0 + 1e-9)
            coded = self._coded = _CodedQuery(rounded.astype(np.float32), scale, error)
        return coded


@dataclass(frozen=True, slots=True)
class Coder:
    """How rows become codes: one scale for all rows of an index, so that codes can be merged."""

    dimensions: int
    scale_clip: float

    @property
    def scale(self) -> float:
        """What a number is multiplied by before it is rounded."""
        return CODE_MAX / self.scale_clip

    def encode(self, vectors: FloatRows) -> tuple[CodeRows, ErrorColumn]:
        """Codes as FAISS keeps them, shape of `vectors`, and |x - x'| of each row."""
        codes = np.empty(vectors.shape, np.uint8)
        errors = np.empty(len(vectors), np.float32)
        scale = np.float32(self.scale)
        for start in range(0, len(vectors), ENCODED_ROWS_AT_ONCE):
            part = slice(start, start + ENCODED_ROWS_AT_ONCE)
            rounded = np.rint(vectors[part] * scale)
            np.clip(rounded, -CODE_MAX, CODE_MAX, out=rounded)
            missing = vectors[part] - rounded / scale
            # Float32 arithmetic errs by a few parts in a million here; the bound stays above it.
            errors[part] = np.sqrt(np.vecdot(missing, missing)) * np.float32(1.0001) + 1e-6
            rounded += CODE_OFFSET
            codes[part] = rounded
        return codes, errors


class _Scan(NamedTuple):
    """What a scan found; holds nothing of the query but its salted digest."""

    digest: bytes
    wanted: int
    allowed_bits: NDArray[np.uint8] | None
    rows: IntColumn
    scores: NDArray[np.float32]


class CodedRows:
    """An immutable FAISS index of codes. Any number of threads may scan it.

    A large one remembers its last few scans, because an agent recalls for one text before every
    model call of a turn. The codes never change, so a scan that is remembered stays right.
    """

    __slots__ = ("_count", "_error_max", "_index", "_recent", "_scale", "errors", "outliers")

    def __init__(self, coder: Coder, codes: CodeRows, errors: ErrorColumn) -> None:
        """Build from what `Coder.encode` gave (copied; the errors are kept)."""
        index = faiss.IndexScalarQuantizer(
            coder.dimensions,
            faiss.ScalarQuantizer.QT_8bit_direct_signed,
            faiss.METRIC_INNER_PRODUCT,
        )
        index.add_sa_codes(np.ascontiguousarray(codes))
        self._index: Any = index
        self._count = int(index.ntotal)
        # Replaced whole by whoever has scanned: of two at once, one goes unremembered.
        self._recent: tuple[_Scan, ...] = ()
        self._scale = coder.scale
        self.errors = errors
        # Rounding alone leaves at most half a step in each coordinate.
        rounding_max = 0.5 * math.sqrt(coder.dimensions) / coder.scale
        clipped = errors > rounding_max * 1.0002 + 2e-6
        few = int(np.count_nonzero(clipped)) <= max(1, int(len(errors) * OUTLIER_SHARE_MAX))
        self.outliers: IntColumn = np.flatnonzero(clipped if few else np.zeros_like(clipped))
        kept = errors[~clipped] if few else errors
        self._error_max = float(kept.max(initial=0.0))

    def __len__(self) -> int:
        """How many rows."""
        return self._count

    def nbytes(self) -> int:
        """Bytes of codes and errors."""
        return len(self) * int(self._index.d) + self.errors.nbytes

    def codes(self, keep: NDArray[np.bool_] | None = None) -> CodeRows:
        """A copy of the codes of the rows in the mask, shape (n, dimensions); None is all."""
        count, width = len(self), int(self._index.d)
        # FAISS's own memory: it must not be seen outside this method, which keeps it alive.
        view: CodeRows = faiss.rev_swig_ptr(self._index.codes.data(), count * width)
        rows = view.reshape(count, width)
        return rows.copy() if keep is None else rows[keep]

    def error_bound(self, probe: Probe) -> float:
        """No row but the outliers has a true cosine further than this from its coded one."""
        coding = self._error_max * (LENGTH_MAX + probe.error) + LENGTH_MAX * probe.error
        return coding + float_slack(len(probe.vector))

    def remembers(self, probe: Probe, wanted: int, allowed_bits: NDArray[np.uint8] | None) -> bool:
        """Whether `scan` of the same would find it remembered."""
        return self._remembered(probe, wanted, allowed_bits) is not None

    def scan(
        self,
        probe: Probe,
        wanted: int,
        allowed_bits: NDArray[np.uint8] | None,
        *,
        remember: bool = False,
    ) -> tuple[IntColumn, NDArray[np.float32]]:
        """The `wanted` rows (fewer if fewer are allowed) of highest coded cosine, best first.

        Args:
            probe: the query.
            wanted: 1 to the number of rows.
            allowed_bits: one bit a row, least significant first; None allows all. Never changed
                once given.
            remember: the same object `allowed_bits` may come again with this query.

        Returns:
            Row positions and coded cosines; read-only.
        """
        remember = remember and self._count >= REMEMBERED_FROM_ROWS
        if remember:
            known = self._remembered(probe, wanted, allowed_bits)
            if known is not None:
                return known.rows, known.scores
        rows, scores = self._scan(probe, wanted, allowed_bits)
        if remember and wanted <= REMEMBERED_ROWS_MAX:
            rows.flags.writeable = scores.flags.writeable = False
            made = _Scan(probe.digest, wanted, allowed_bits, rows, scores)
            self._recent = (made, *self._recent[: REMEMBERED_SCANS_MAX - 1])
        return rows, scores

    def _remembered(
        self, probe: Probe, wanted: int, allowed_bits: NDArray[np.uint8] | None
    ) -> _Scan | None:
        for known in self._recent:
            if (
                known.digest == probe.digest
                and known.wanted == wanted
                and known.allowed_bits is allowed_bits
            ):
                return known
        return None

    def _scan(
        self, probe: Probe, wanted: int, allowed_bits: NDArray[np.uint8] | None
    ) -> tuple[IntColumn, NDArray[np.float32]]:
        if allowed_bits is None:
            scores, rows = self._index.search(probe.codes, wanted)
        else:
            selector = faiss.IDSelectorBitmap(allowed_bits)
            scores, rows = self._index.search(
                probe.codes, wanted, params=faiss.SearchParameters(sel=selector)
            )
        scores, rows = scores[0], rows[0]
        if rows[-1] < 0:  # padded: fewer rows are allowed than were wanted
            found = rows >= 0
            scores, rows = scores[found], rows[found]
        return rows, scores * np.float32(1.0 / (self._scale * probe.scale))
