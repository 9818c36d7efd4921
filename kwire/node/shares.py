"""The share partitions of one node; their modules are loaded when a member first fetches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from kwire.configs.resource_types import GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import trio

    from kwire.node.core import Core
    from kwire.replica.partition import Partition
    from kwire.replica.replicas import ReplicaService
    from kwire.share.led_share import LedShare
    from kwire.share.persister import Persister
    from kwire.share.settings import ShareSettings
    from kwire.share.share_partitions import ShareService


@attrs.define(eq=False, repr=False)
class NodeShares:
    """One node's share partitions, which are created on first use."""

    core: Core
    replicas: ReplicaService
    persister: Callable[[], Persister]
    nursery: trio.Nursery | None = None
    """The nursery of the tasks; set before the node serves clients."""
    _service: ShareService | None = None

    def on_role_changed(self, partition: Partition) -> None:
        """Drop the share partitions of a partition that this node no longer leads as before."""
        if self._service is not None:
            self._service.on_role_changed(partition)

    def partitions(self) -> Iterable[LedShare]:
        """Return the share partitions that this node leads."""
        return () if self._service is None else self._service

    def session_count(self) -> int:
        return 0 if self._service is None else len(self._service.sessions)

    def service(self) -> ShareService:
        """Return the share partitions; the first call creates them and starts their task."""
        if self._service is None:
            from kwire.share.share_partitions import ShareService

            assert self.nursery is not None
            start_task = self.nursery.start_soon
            self._service = ShareService(
                self.replicas, self.persister(), self._settings, self.core.clock, start_task
            )
            start_task(self._service.run)
        return self._service

    def _settings(self, group_id: str) -> ShareSettings:
        from kwire.share.settings import ShareSettings

        overrides = self.core.publisher.image.config(GROUP, group_id)
        return ShareSettings.of(self.core.current.config, overrides)
