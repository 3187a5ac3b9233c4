"""The one event loop of a child, for all of its `async def` runs: clients that a module keeps go on working.

A run leaves nothing in it: its tasks are cancelled and awaited, its threads have ended. Imports asyncio when
the first coroutine comes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio


_TRIES = 3


class EventLoop:
    """Runs one coroutine after the other; belongs to the main thread of the process that made it."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._runner: asyncio.Runner | None = None
        self._main: asyncio.Task[Any] | None = None
        self._stopped_by: BaseException | None = None

    def run(self, coroutine: Any) -> object:
        """Run the coroutine of a handler and return what it returns; what it raises goes on.

        A loop that was closed, or does not work any more, is replaced first.
        """
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        runner = self._working_runner()
        loop = runner.get_loop()
        known = asyncio.all_tasks(loop)
        threads = ThreadPoolExecutor(thread_name_prefix="asyncio")
        loop.set_default_executor(threads)
        self._main = self._stopped_by = None
        try:
            return runner.run(self._whole(coroutine, known), context=copy_context())
        except asyncio.CancelledError:
            if self._stopped_by is None:
                raise
            raise self._stopped_by from None
        finally:
            # A process that the handler forked goes its own way: the loop's descriptors are its parent's too.
            if os.getpid() == self._pid:
                main, self._main = self._main, None
                self._leave_nothing(runner, known)
                coroutine.close()
                if main is not None and main.done() and not main.cancelled():
                    # It is told already; unread, asyncio would tell it again.
                    main.exception()
                # Threads that a stop left at work end with the process.
                threads.shutdown(wait=self._stopped_by is None, cancel_futures=True)

    def stop(self, reason: BaseException) -> bool:
        """Cut the coroutine that runs, from a signal's handler; True when it is done, False when the caller
        has to raise `reason`, because the code that was interrupted is the handler's own."""
        import asyncio

        main = self._main
        if main is None or main.done():
            return False
        loop = main.get_loop()
        current = asyncio.current_task(loop)
        if current is main:
            return False
        # Between two tasks nobody would get what is raised here; of another task the handler may never hear.
        self._stopped_by = reason
        loop.call_soon_threadsafe(main.cancel)
        return current is None

    def close(self) -> None:
        """End what the loop still has, and close it."""
        runner, self._runner = self._runner, None
        if runner is not None and os.getpid() == self._pid:
            with contextlib.suppress(Exception):
                runner.close()

    def _working_runner(self) -> asyncio.Runner:
        import asyncio

        if self._runner is not None:
            with contextlib.suppress(RuntimeError, OSError, ValueError):
                self._runner.run(asyncio.sleep(0))
                return self._runner
            self.close()
        # With a factory the runner leaves alone what `asyncio.get_event_loop()` is for other code.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        return self._runner

    async def _whole(self, coroutine: Any, known: Collection[asyncio.Task[Any]]) -> object:
        """The handler, and then the end of what it left."""
        import asyncio

        self._main = asyncio.current_task()
        try:
            return await coroutine
        finally:
            # Where something was raised past this coroutine, another one waits for it already.
            if os.getpid() == self._pid and self._main is not None:
                await _end_tasks(known)

    def _leave_nothing(self, runner: asyncio.Runner, known: Collection[asyncio.Task[Any]]) -> None:
        """End what the coroutine could not end itself, because something was raised past it."""
        import asyncio

        loop = runner.get_loop()
        for _ in range(_TRIES):
            if loop.is_closed():
                break
            if not asyncio.all_tasks(loop) - set(known):
                loop.set_exception_handler(None)
                loop.set_task_factory(None)
                return
            # A task that is ended may raise these past the loop once more; the first one goes on already.
            with contextlib.suppress(SystemExit, KeyboardInterrupt, RuntimeError, OSError):
                runner.run(_end_tasks(known))
        self._runner = None


async def _end_tasks(known: Collection[asyncio.Task[Any]]) -> None:
    """Cancel and await every task but the current one and those in `known`; what they raise is told by the
    loop's handler of exceptions."""
    import asyncio

    loop = asyncio.get_running_loop()
    # Generators that were left in the middle get their end; it is a task from the next turn on.
    await asyncio.sleep(0)
    spared = {*known, asyncio.current_task()}
    left = asyncio.all_tasks() - spared
    if not left:
        return
    await asyncio.sleep(0)
    for task in left:
        if not task.cancelling():
            task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    for task in left:
        # How a program leaves is told by the run's answer.
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            loop.call_exception_handler(
                {"message": "A task that the handler left failed.", "exception": error, "task": task}
            )


__all__ = ["EventLoop"]
