"""The one event loop of a child, for all of its `async def` runs: clients of a module work in every run.

At the end of a run its tasks are cancelled and awaited and its threads have ended. Imports asyncio with the
first coroutine.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Coroutine
from contextvars import copy_context
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


_TRIES = 3


class EventLoop:
    """Runs one coroutine after the other; belongs to the main thread of the process that made it."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._runner: asyncio.Runner | None = None
        self._main: asyncio.Task[object] | None = None
        self._stopped_by: BaseException | None = None

    def run(self, coroutine: Coroutine[object, object, object]) -> object:
        """Run the coroutine of a handler and return what it returns; what it raises goes on.

        A loop that was closed, or does not work any more, is replaced first.
        """
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        runner = self._working_runner()
        loop = runner.get_loop()
        earlier_tasks = asyncio.all_tasks(loop)
        threads = ThreadPoolExecutor(thread_name_prefix="asyncio")
        loop.set_default_executor(threads)
        self._main = self._stopped_by = None
        try:
            return runner.run(self._run_to_end(coroutine, earlier_tasks), context=copy_context())
        except asyncio.CancelledError:
            if self._stopped_by is None:
                raise
            raise self._stopped_by from None
        finally:
            # Not in a process that the handler forked: it shares the loop's descriptors with its parent.
            if os.getpid() == self._pid:
                main, self._main = self._main, None
                self._clean_up(runner, earlier_tasks)
                coroutine.close()
                if main is not None and main.done() and not main.cancelled():
                    # Its exception is on its way already; unread, asyncio would log it once more.
                    main.exception()
                # After a stop, busy threads end with the process.
                threads.shutdown(wait=self._stopped_by is None, cancel_futures=True)

    def stop(self, reason: BaseException) -> bool:
        """Cancel the coroutine that runs, from a signal handler.

        False: the caller has to raise `reason`, because the interrupted code is the handler's own.
        """
        import asyncio

        main = self._main
        if main is None or main.done():
            return False
        loop = main.get_loop()
        current = asyncio.current_task(loop)
        if current is main:
            return False
        # Raised between two tasks, nobody would catch it; raised in another task, the handler may never get
        # it.
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

    async def _run_to_end(
        self, coroutine: Coroutine[object, object, object], earlier_tasks: Collection[asyncio.Task[object]]
    ) -> object:
        """Await the handler, then end the tasks that it left."""
        import asyncio

        self._main = asyncio.current_task()
        try:
            return await coroutine
        finally:
            # Where something was raised past this coroutine, `_clean_up` does it.
            if os.getpid() == self._pid and self._main is not None:
                await _end_tasks(earlier_tasks)

    def _clean_up(self, runner: asyncio.Runner, earlier_tasks: Collection[asyncio.Task[object]]) -> None:
        """End the tasks that the coroutine could not end itself, because something was raised past it."""
        import asyncio

        loop = runner.get_loop()
        for _ in range(_TRIES):
            if loop.is_closed():
                break
            if not asyncio.all_tasks(loop) - set(earlier_tasks):
                loop.set_exception_handler(None)
                loop.set_task_factory(None)
                return
            # A cancelled task may raise these past the loop once more; the first one is on its way already.
            with contextlib.suppress(SystemExit, KeyboardInterrupt, RuntimeError, OSError):
                runner.run(_end_tasks(earlier_tasks))
        self._runner = None


async def _end_tasks(earlier_tasks: Collection[asyncio.Task[object]]) -> None:
    """Cancel and await every task but the current one and `earlier_tasks`.

    What they raise goes to the loop's exception handler.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    # The loop closes abandoned async generators in tasks, which exist from the next turn on.
    await asyncio.sleep(0)
    tasks = asyncio.all_tasks() - {*earlier_tasks, asyncio.current_task()}
    if not tasks:
        return
    await asyncio.sleep(0)
    for task in tasks:
        if not task.cancelling():
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        # SystemExit and KeyboardInterrupt are in the run's answer.
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            loop.call_exception_handler(
                {"message": "A task that the handler left failed.", "exception": error, "task": task}
            )
