# SPDX-License-Identifier: BSD-3-Clause
"""Runs jobs in a few threads while the caller waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

WORKERS = 16


def run_all(jobs: list[Callable[[], None]], workers: int = WORKERS) -> None:
    """Runs jobs in so many threads. After an error it starts no more, and raises the first."""
    queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
    for job in jobs:
        queue.put(job)
    failures: list[BaseException] = []

    def work() -> None:
        while not failures:
            try:
                queue.get_nowait()()
            except Empty:
                return
            except BaseException as why:
                failures.append(why)

    threads = [threading.Thread(target=work, name="gpunvme checkpoint")
               for _ in range(min(workers, len(jobs)))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException as why:  # Ctrl-C: memory stays in use until they have ended
        failures.append(why)
        for thread in threads:
            thread.join()
        raise
    if failures:
        raise failures[0]
