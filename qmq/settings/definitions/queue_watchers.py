"""What is called when a queue is deleted, for consumers of protocols that notify their clients (AMQP: basic.cancel)."""

from collections.abc import Callable, Iterable


class QueueWatchers:
    """Watchers of this node. A call must not change anything at once: the deletion is being applied."""

    def __init__(self) -> None:
        self._watchers: dict[str, dict[object, Callable[[], object]]] = {}

    def watch(self, queue: str, key: object, on_deleted: Callable[[], object]) -> None:
        """Call `on_deleted` once if the queue is deleted. `key` names this watcher of the queue."""
        self._watchers.setdefault(queue, {})[key] = on_deleted

    def forget(self, queue: str, key: object) -> None:
        """Call it no more."""
        known = self._watchers.get(queue)
        if known is not None and known.pop(key, None) is not None and not known:
            del self._watchers[queue]

    def deleted(self, queues: Iterable[str]) -> None:
        """These queues are deleted, by a client of any node."""
        for queue in queues:
            for on_deleted in self._watchers.pop(queue, {}).values():
                on_deleted()
