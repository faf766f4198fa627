"""Nearest rows to a vector inside one partition; hides FAISS.

Importing this package sets OMP_NUM_THREADS=1 (see `environment`).
"""

from .faiss_index import FaissVectorIndex
from .partition import Tuning

__all__ = ["FaissVectorIndex", "Tuning"]
