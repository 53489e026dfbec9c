"""Compiles many things side by side, then measures them one after the other."""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Measure = Callable[[], Any]


def in_turns(prepare: Callable[[Any], Measure], jobs: Sequence[Any], processes: int, at_once: int) -> Iterator[Any]:
    """``(job, prepare(job)())`` of every job, as they come.

    Jobs are dealt out to processes. Each prepares its own, at most `at_once` of all at a time; when the last is ready
    the measures run, one process after the other, with nothing else at work.

    Args:
        prepare: a function of a module; whatever compiles, and runs, for the first time.
        at_once: as many as the GPU's memory holds.
    """
    context = multiprocessing.get_context("spawn")
    room, turn, found = context.Semaphore(at_once), context.Lock(), context.Queue()
    ready = context.Barrier(processes)
    workers = [
        context.Process(target=_work, args=(prepare, jobs[i::processes], room, ready, turn, found))
        for i in range(processes)
    ]
    for worker in workers:
        worker.start()
    for _ in jobs:
        while True:
            try:
                yield found.get(timeout=1)
                break
            except queue.Empty:
                if any(worker.exitcode for worker in workers):
                    raise SystemExit("a process failed; its error is above") from None
    for worker in workers:
        worker.join()


def _work(prepare: Callable[[Any], Measure], jobs: Sequence[Any], room: Any, ready: Any, turn: Any, found: Any) -> None:
    measures = []
    try:
        for job in jobs:
            with room:
                measures.append(prepare(job))
        ready.wait()
    except BaseException:
        ready.abort()
        raise
    with turn:
        for job, measure in zip(jobs, measures, strict=True):
            found.put((job, measure()))
