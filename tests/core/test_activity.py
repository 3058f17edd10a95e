"""What a thread does is notified to the worker whose thread it is, and to no other."""

from __future__ import annotations

import threading

from hybridsync.core.activity import current, follow


class Noted:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def reading(self) -> None:
        self.notes.append("reading")

    def has_read(self) -> None:
        self.notes.append("has read")

    def compiling(self) -> None:
        self.notes.append("compiling")


def test_each_thread_notifies_its_own_worker_and_one_without_a_worker_nobody() -> None:
    workers = [Noted(), Noted()]

    def work(worker: Noted, call: str) -> None:
        follow(worker)
        getattr(current(), call)()

    for worker, call in zip(workers, ("reading", "compiling"), strict=True):
        thread = threading.Thread(target=work, args=(worker, call))
        thread.start()
        thread.join(60)
    bystander = threading.Thread(target=lambda: current().reading())
    bystander.start()
    bystander.join(60)
    assert [worker.notes for worker in workers] == [["reading"], ["compiling"]]
