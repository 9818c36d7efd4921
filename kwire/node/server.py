"""Builds a node in its environment, and starts and stops its parts in order. No logic.

Rules: a node is an object without globals or signal handlers, so that several can run in one
process. A node is ready when it can answer every request. If a part fails, the node ends, with a
clear error as its last line.
"""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import trio

from kwire import metrics as m
from kwire.codec.apis import ListenerType
from kwire.configs.authorizer import authorizer_config, early_listeners
from kwire.configs.broker import BrokerConfig
from kwire.configs.listeners import ListenerEndpoint, has_sasl
from kwire.configs.load import run_time_config
from kwire.configs.resource_types import BROKER
from kwire.handlers.dispatch import Dispatcher
from kwire.handlers.shared.context import Services
from kwire.net.listener import Address, ForConnection
from kwire.node import build
from kwire.node.broker import BrokerHalf
from kwire.node.core import Core, make_core
from kwire.node.environment import Environment
from kwire.raftmeta.controller.change_log import (
    change_lines,
    feature_lines,
    unclean_elections,
    warnings,
)
from kwire.raftmeta.controller.features import SUPPORTED
from kwire.raftmeta.metadata.image_change import MetadataDelta
from kwire.speedups import IMPLEMENTATION
from kwire.storage_format.directories import CannotOpenError, format_node, is_single_voter

if TYPE_CHECKING:
    from kwire.security.authorizer import Authorizer

__all__ = ["CannotOpenError", "Server", "format_node", "make_node"]

logger = logging.getLogger(__name__)

WAIT_LOG_SECONDS: Final = 5.0
"""Seconds after which a node first logs that it waits for a leader; later lines are rarer."""
HAND_OVER_SECONDS: Final = 10.0
"""Seconds allowed for handing over leaderships during a stop."""


def make_node(
    config: BrokerConfig,
    environment: Environment,
    cluster_id: str | None = None,
    *,
    features: Mapping[str, tuple[int, int]] = SUPPORTED,
) -> "Server":
    """Build a node, which claims its addresses and directories; :meth:`Server.run` starts it.

    ``cluster_id`` is the id of a new cluster. ``features`` are the smallest and largest levels that
    the node supports, by feature; a simulation passes those of an older release. Raises
    CannotOpenError or ConfigError with the reason.
    """
    return Server(make_core(config, environment, cluster_id, features))


class Server:
    """One node: controller, broker or both."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.config = core.config
        self.ready = trio.Event()
        self._stop = trio.Event()
        core.publisher.add_applier(self._reconfigure)
        authorizer = self._make_authorizer()
        core.publisher.subscribe(lambda image, delta: self._on_image_published(delta))
        self.broker = BrokerHalf(core) if self.config.is_broker else None
        self.services = Services(
            current=core.current,
            clock=core.clock,
            metrics=core.metrics,
            cluster_id=core.identity.cluster_id,
            supported_features=core.features,
            active_controller=core.active_controller,
            topic_creation=core.topic_creation,
            quorum=core.quorum,
            logs=core.logs,
            broker=None if self.broker is None else self.broker.services,
            authorizer=authorizer,
            check_certificates=core.tls.check if core.tls.listeners else None,
        )
        self._requests = {side: Dispatcher(self.services, side) for side in ListenerType}

    def _make_authorizer(self) -> "Authorizer | None":
        config = authorizer_config(self.config)
        if config is None:
            return None
        from kwire.node.authorization import make_authorizer

        return make_authorizer(config, self.core.publisher)

    # Following the metadata -----------------------------------------------------------------
    async def _reconfigure(self, delta: MetadataDelta) -> None:
        """Apply changed broker settings; runs first, because other appliers read them."""
        own = str(self.config.node_id)
        if {(BROKER, ""), (BROKER, own)} & delta.configs:
            image = delta.after
            config = self.core.current.config = run_time_config(
                self.config, image.config(BROKER, ""), image.config(BROKER, own)
            )
            self.core.net.relimit(build.limits(config))
            self.core.tls.configure(config)
            if self.broker is not None:
                self.broker.throttle(config)
            self.core.logs.configure_cleaner(build.cleaner_settings(config))

    def _on_image_published(self, delta: MetadataDelta) -> None:
        self.core.current.image = delta.after
        if any(kind == "ip" for entity in delta.quotas for kind, _ in entity):
            self.core.net.limit_addresses(delta.after.quotas)
        if self.core.controller.has_decided(delta.after.applied.offset):
            for line in feature_lines(delta):
                logger.info(line)
            if delta.before.applied.offset >= 0:  # The first image has what existed at the start.
                for line in change_lines(delta):
                    logger.info(line)
            elections = unclean_elections(delta)
            self.core.metrics.cell(m.UNCLEAN_ELECTIONS).value += len(elections)
            for line in warnings(elections):
                logger.warning(line)

    # Running --------------------------------------------------------------------------------
    @property
    def address(self) -> Address:
        """The address for clients: the first broker listener's, or else a controller listener's."""
        listeners = self.config.broker_endpoints or self.config.controller_endpoints
        return self.core.net.address(listeners[0].name)

    @property
    def is_serving(self) -> bool:
        """True if every request can be answered and the node is not stopping."""
        return self.ready.is_set() and not self._stop.is_set()

    def stop(self) -> None:
        """Begin a clean stop; :meth:`run` returns once it is done."""
        self._stop.set()

    async def run(self, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until :meth:`stop`; report the clients' address when ready."""
        self.core.logs.claim()
        try:
            await self._run(task_status)
        except BaseException:
            self.core.logs.abandon()
            raise

    async def _run(self, task_status: trio.TaskStatus[Address]) -> None:
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as starting:
                nursery.start_soon(self._stop_early, starting)
                await self._start(nursery)
                logger.info(
                    "ready node=%d address=%s:%d speedups=%s",
                    self.config.node_id,
                    *self.address,
                    IMPLEMENTATION,
                )
                self.ready.set()
                task_status.started(self.address)
            await self._stop.wait()
            if self.ready.is_set():
                await self._hand_over()
            nursery.cancel_scope.cancel()
        if self.broker is None or not self.broker.has_opened_logs:
            self.core.logs.abandon()
        else:
            await self.core.logs.close(self.broker.lifecycle.epoch)
        logger.info("stopped node=%d", self.config.node_id)

    async def _stop_early(self, starting: trio.CancelScope) -> None:
        """Cancel the start if :meth:`stop` is called while the node waits for others."""
        await self._stop.wait()
        starting.cancel()

    async def _start(self, nursery: trio.Nursery) -> None:
        core = self.core
        await nursery.start(core.net.run)
        await nursery.start(core.network.run)
        await nursery.start(core.quorum.run)
        await nursery.start(core.periodic_tasks.run)
        if self.config.is_controller and self.config.broker_early_fencing_enable:
            nursery.start_soon(self._watch_brokers)
        if core.controller.is_alone:
            await nursery.start(core.register_controller)
            self._accept_from_nodes(early=True)
        else:
            await self._join(nursery)
        if self.broker is not None:
            await self.broker.start(nursery)
        else:
            await nursery.start(core.publisher.run)
        await nursery.start(core.snapshotter.run)
        for endpoint in self.config.broker_endpoints:
            core.accept(endpoint.name, self._for_connection(endpoint, ListenerType.BROKER))
        if (authorizer := self.services.authorizer) is not None:
            await core.publisher.wait_for(lambda image: authorizer.is_loaded)
            self._accept_from_nodes(early=False)

    def _for_connection(self, endpoint: ListenerEndpoint, side: ListenerType) -> ForConnection:
        """Return the handler of a listener's new connections."""
        requests = self._requests[side]
        if not has_sasl(endpoint.protocol):
            return requests.for_connection
        from kwire.node.logins import with_logins

        return with_logins(self.core, endpoint.name, requests)

    def _accept_from_nodes(self, *, early: bool) -> None:
        """Serve the other nodes; ``early``: before the logs are open, which may take minutes.

        If connections were refused, a controller that may fence brokers would assume that this node
        has ended. Listeners that ``early.start.listeners`` leaves out wait until the ACLs are
        loaded.
        """
        early_names = early_listeners(self.config)
        for endpoint in self.core.controller_listeners:
            if (endpoint.name in early_names) is early:
                requests = self._for_connection(endpoint, ListenerType.CONTROLLER)
                self.core.accept(endpoint.name, requests)

    async def _watch_brokers(self) -> None:
        """Watch the processes of the other brokers, once there are any."""
        core = self.core
        await core.publisher.wait_for(lambda image: len(image.brokers) > 1)
        from kwire.node.broker_watch import BrokerWatch

        listener = self.config.inter_broker_listener
        await BrokerWatch(
            self.config.node_id,
            listener,
            core.controller,
            core.publisher,
            core.network,
            core.clock,
            core.tls.to_brokers,
        ).run()

    async def _join(self, nursery: trio.Nursery) -> None:
        """Join a multi-node quorum; accept connections first, because others need this node."""
        core = self.core
        self._accept_from_nodes(early=True)
        if self.config.is_controller:
            nursery.start_soon(core.register_controller)
        self._warn_of_other_voters()
        async with trio.open_nursery() as waiting:
            waiting.start_soon(self._log_waiting)
            await core.quorum.wait_caught_up()
            waiting.cancel_scope.cancel()

    def _warn_of_other_voters(self) -> None:
        """Warn at once if the directories belong to a quorum that the configuration lacks.

        Such a node, for example one that was formatted with a file but started without it, waits
        for voters that may never find it.
        """
        if not is_single_voter(self.config):
            return
        nodes = self.core.quorum.voter_nodes
        logger.warning(
            "waiting for the voters in the metadata directory=%s voters=%s: the configuration "
            "names this controller only; start this node with the file that it was formatted with "
            "(--config FILE), and the other voters",
            self.config.metadata_directory,
            ",".join(f"{node.id}@{node.host}:{node.port}" for node in nodes) or "none",
        )

    async def _log_waiting(self) -> None:
        """Log that the node is waiting for others: after 5 seconds, then every 30."""
        quorum = self.core.quorum
        await trio.sleep(WAIT_LOG_SECONDS)
        while True:
            nodes = quorum.voter_nodes or quorum.state.config.bootstrap
            addresses = ",".join(f"{node.host}:{node.port}" for node in nodes)
            if quorum.leader().leader_id is None:
                logger.warning("waiting for a leader of the quorum controllers=%s", addresses)
            else:
                logger.info("catching up with the quorum offset=%d", quorum.delivery.end_offset)
            await trio.sleep(6 * WAIT_LOG_SECONDS)

    async def _hand_over(self) -> None:
        """Hand over leaderships while still serving requests, then end all waiting requests."""
        logger.info("stopping node=%d", self.config.node_id)
        with trio.move_on_after(HAND_OVER_SECONDS):
            if self.broker is None or await self.broker.lifecycle.stop():
                self.core.quorum.shut_down()
                await self.core.quorum.wait_successor()
        self.core.net.stop_accepting()
        if self.broker is not None:
            self.broker.groups.resign_all()
            self.broker.transactions.resign_all()
            self.broker.share_states.resign_all()
