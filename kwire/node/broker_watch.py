"""Idle connections from a controller to all other serving brokers, to notice when one ends.

Every controller of the quorum keeps these connections, so that a new active controller can prove at
once that the process of its predecessor, and so the broker in it, has ended.
:mod:`kwire.raftmeta.controller.process_probe` decides what an ended connection proves, and
:mod:`kwire.raftmeta.controller.early_fencing` whether the broker is fenced. Nothing is sent, so an
idle cluster stays idle.
"""

import logging
from typing import TYPE_CHECKING, Final

import attrs
import trio

from kwire.clock import Clock
from kwire.configs.listeners import PROTOCOLS, has_tls
from kwire.errors import KafkaError
from kwire.net.connection_pool import Network
from kwire.raftmeta.controller.controller import Controller
from kwire.raftmeta.controller.early_fencing import decide_fence_ended
from kwire.raftmeta.controller.process_probe import ProcessProbe
from kwire.raftmeta.metadata.image import BrokerImage, MetadataImage, NodeEndpoint
from kwire.raftmeta.metadata.image_change import MetadataDelta
from kwire.raftmeta.metadata.publisher import MetadataPublisher

if TYPE_CHECKING:
    from kwire.net.tls.client_tls import ClientTls

logger = logging.getLogger(__name__)

CONNECT_S: Final = 2.0
"""Seconds within which a connection must be established."""
_TLS: Final = frozenset(number for name, number in PROTOCOLS.items() if has_tls(name))


@attrs.define(eq=False, repr=False)
class BrokerWatch:
    """One controller's connections to the brokers on other nodes."""

    node: int
    listener: str
    """The listener to connect to; a broker without it is reached at its first listener."""
    controller: Controller
    publisher: MetadataPublisher
    network: Network
    clock: Clock
    tls: "ClientTls | None" = None
    """The TLS for the other brokers' listener; None if it is not encrypted."""
    _nursery: trio.Nursery | None = None
    _watches: dict[int, tuple[int, trio.CancelScope]] = attrs.field(factory=dict)
    """The broker epoch and the task of each watched broker."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch brokers until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self.publisher.subscribe(self._on_image_published)
            self._follow(self.publisher.image, nursery)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def _on_image_published(self, image: MetadataImage, delta: MetadataDelta) -> None:
        if delta.brokers and self._nursery is not None:
            self._follow(image, self._nursery)

    def _follow(self, image: MetadataImage, nursery: trio.Nursery) -> None:
        """Watch exactly the unfenced brokers."""
        brokers = {b.id: b for b in image.brokers.values() if not b.fenced and b.id != self.node}
        for broker_id, (epoch, scope) in list(self._watches.items()):
            broker = brokers.get(broker_id)
            if broker is None or broker.epoch != epoch:
                scope.cancel()
                del self._watches[broker_id]
        for broker in brokers.values():
            endpoint = self._endpoint(broker)
            if broker.id not in self._watches and endpoint is not None:
                scope = trio.CancelScope()
                self._watches[broker.id] = (broker.epoch, scope)
                probe = ProcessProbe(broker.id, broker.epoch, self.clock.now())
                nursery.start_soon(self._watch, probe, endpoint, scope)

    def _endpoint(self, broker: BrokerImage) -> NodeEndpoint | None:
        first = broker.endpoints[0] if broker.endpoints else None
        return broker.endpoint(self.listener) or first

    async def _watch(
        self, probe: ProcessProbe, endpoint: NodeEndpoint, scope: trio.CancelScope
    ) -> None:
        with scope:
            while True:
                await self._attempt(probe, endpoint)
                await self._report(probe)
                await self._wait_due(probe)

    async def _attempt(self, probe: ProcessProbe, endpoint: NodeEndpoint) -> None:
        """Connect, and wait until the connection ends."""
        host, port = probe.address or (endpoint.host, endpoint.port)
        is_numeric = probe.address is not None
        try:
            with trio.fail_after(CONNECT_S):
                connection = await self.network.connect_idle(
                    host,
                    port,
                    is_numeric=is_numeric,
                    tls=self.tls if endpoint.security_protocol in _TLS else None,
                    server_name=endpoint.host,
                )
        except ConnectionRefusedError:
            probe.on_refused(self.clock.now())
        except (OSError, UnicodeError, trio.TooSlowError):
            probe.on_failed(self.clock.now())
        else:
            async with connection:
                probe.on_accepted(connection.address, self.clock.now())
                await connection.wait_end()
            probe.on_ended(self.clock.now())

    async def _report(self, probe: ProcessProbe) -> None:
        """Fence the broker if its process has ended and this node is the active controller."""
        proof = probe.proof
        if proof is None or not self.controller.is_active:
            return
        try:
            if await self.controller.call(decide_fence_ended, proof):
                logger.info(
                    "broker process ended id=%d epoch=%d", probe.broker_id, proof.broker_epoch
                )
        except KafkaError as error:
            logger.debug("early fencing failed error=%r", error)

    async def _wait_due(self, probe: ProcessProbe) -> None:
        """Wait until the next attempt is due, or until a new active controller needs the proof."""
        with trio.move_on_after(max(0.0, probe.due - self.clock.now())):
            if probe.proof is None or self.controller.is_active:
                await trio.sleep_forever()
            await self.controller.wait_active()
