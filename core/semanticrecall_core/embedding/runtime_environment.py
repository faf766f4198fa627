"""onnxruntime, imported only where it does not report to its maker.

Its official builds collect events, write a persistent device id under the user's cache
(`Microsoft/DeveloperTools`) and send both over HTTPS, and are set to do so by default (their
Privacy.md, 1.32). ORT_DISABLE_TELEMETRY, read once as the library starts, prevents uploader,
events and device id; `disable_telemetry_events()` comes too late for the first event. So every
module takes the library from here, and the variable is set whatever it was.
"""

from __future__ import annotations

import os
import sys

TELEMETRY_VARIABLE = "ORT_DISABLE_TELEMETRY"

_was_imported = "onnxruntime" in sys.modules and os.environ.get(TELEMETRY_VARIABLE) != "1"
os.environ[TELEMETRY_VARIABLE] = "1"

import onnxruntime  # noqa: E402

if _was_imported:
    # A program around us was first and may have started it: what can still be stopped, is.
    onnxruntime.disable_telemetry_events()

__all__ = ["TELEMETRY_VARIABLE", "onnxruntime"]
