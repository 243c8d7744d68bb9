"""Ctrl-C and SIGTERM: asked once, a run saves and leaves with 130 or 143; Ctrl-C again stops it at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

# torchrun and process groups deliver one Ctrl-C twice; a person needs longer.
_SAME_PRESS_SECONDS = 0.3


class StopSignals:
    """While entered, the first SIGINT or SIGTERM is kept in `received` and nothing is interrupted.

    A later SIGINT ends the process at once with 130; what is on disk is as valid as after kill -9. Outside the main
    thread, where Python allows no handlers, nothing is changed.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._when = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self._when = number, time.monotonic()
            # os.write: the interrupted code may be inside print or logging.
            os.write(2, b"\nstopping after this step, with a checkpoint; Ctrl-C again stops at once\n")
        elif number == signal.SIGINT and time.monotonic() - self._when > _SAME_PRESS_SECONDS:
            os.write(2, b"stopped at once; the last checkpoint is as it was\n")
            os._exit(128 + number)
