"""Engine work off the screen's thread: one job after the other, results handed back to the app's thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from textual.app import App

Result = TypeVar("Result")


class Jobs:
    """A thread that works for an app. Closing it drops what has not started."""

    def __init__(self, app: App[Any]) -> None:
        self._app = app
        self._closed = False
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="engine")

    def submit(
        self,
        work: Callable[[], Result],
        done: Callable[[Result], object],
        failed: Callable[[Exception], object],
    ) -> None:
        """Run `work`; then `done(result)` or `failed(error)` is called in the app's thread."""
        if not self._closed:
            self._executor.submit(self._run, work, done, failed)

    def _run(
        self,
        work: Callable[[], Result],
        done: Callable[[Result], object],
        failed: Callable[[Exception], object],
    ) -> None:
        try:
            result = work()
        except Exception as error:
            self.tell(failed, error)
        else:
            self.tell(done, result)

    def tell(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function in the app's thread, soon; never waits."""
        if not self._closed:
            self._app.call_later(function, *arguments)

    def close(self) -> None:
        """Take no more work and tell nothing more."""
        self._closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)
