"""FAISS, imported only where its threads are held to one.

An OpenMP pool per calling thread multiplies threads, crashes after an exhausted address space and
hangs a forked child, and `faiss.omp_set_num_threads` holds for the calling thread only. So
OMP_NUM_THREADS must be 1 in the environment before the library is loaded.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from semanticrecall_core.types.errors import UnsafeEnvironmentError

THREADS_VARIABLE = "OMP_NUM_THREADS"


def load_faiss() -> Any:
    """The faiss module, limited to one thread a call.

    Raises:
        UnsafeEnvironmentError: faiss was imported before OMP_NUM_THREADS was 1.
    """
    if os.environ.get(THREADS_VARIABLE) != "1":
        if "faiss" in sys.modules:
            raise UnsafeEnvironmentError(
                f"set {THREADS_VARIABLE}=1 in the environment before faiss is imported"
            )
        os.environ[THREADS_VARIABLE] = "1"
    faiss = importlib.import_module("faiss")
    faiss.omp_set_num_threads(1)
    return faiss
