"""The steps of the controller simulation: one function each, chosen by weight.

Brokers start, stop sending heartbeats, crash and shut down; leaders report their ISR, sometimes
with stale epochs; clients create, delete, expand, configure and move topics; disks fail.
"""

from collections.abc import Callable
from typing import Final

from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.allocate_producer_ids import AllocateProducerIdsRequest
from kwire.codec.messages.alter_client_quotas import AlterClientQuotasRequest
from kwire.codec.messages.alter_partition import AlterPartitionRequest
from kwire.codec.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from kwire.codec.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest
from kwire.codec.messages.broker_heartbeat import BrokerHeartbeatRequest
from kwire.codec.messages.broker_registration import BrokerRegistrationRequest
from kwire.codec.messages.create_partitions import CreatePartitionsRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.delete_topics import DeleteTopicsRequest
from kwire.codec.messages.elect_leaders import ElectLeadersRequest
from kwire.codec.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kwire.codec.messages.unregister_broker import UnregisterBrokerRequest
from kwire.codec.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from kwire.configs.resource_types import BROKER, TOPIC
from kwire.raftmeta.controller.brokers import (
    decide_fence_stale,
    decide_heartbeat,
    decide_register_broker,
    decide_unregister_broker,
)
from kwire.raftmeta.controller.client_quotas import decide_alter_quotas
from kwire.raftmeta.controller.configs import DELETE, SET, decide_incremental_alter
from kwire.raftmeta.controller.early_fencing import decide_fence_ended
from kwire.raftmeta.controller.feature_updates import decide_update_features
from kwire.raftmeta.controller.features import SUPPORTED
from kwire.raftmeta.controller.partitions import (
    PREFERRED,
    UNCLEAN,
    decide_alter_partition,
    decide_assign_directories,
    decide_elect_leaders,
    decide_elect_unclean,
    decide_reassign,
    decide_rebalance_leaders,
)
from kwire.raftmeta.controller.process_probe import EndedProcess
from kwire.raftmeta.controller.producer_id_blocks import decide_allocate_producer_ids
from kwire.raftmeta.controller.state import ControllerState, Deciding
from kwire.raftmeta.controller.topics import (
    decide_create_partitions,
    decide_create_topics,
    decide_delete_topics,
)
from kwire.raftmeta.metadata.image import PartitionImage, TopicImage
from kwire.types import NO_LEADER, ZERO_UUID, TopicIdPartition, is_directory
from simulation.controller.checks import ELR, check_unclean_election, demand
from simulation.controller.world import CLUSTER, SimBroker, World, new_directory

TOPICS: Final = ("orders", "a.b", "a_b", "clicks", "logs")
MIN_ISR: Final = "min.insync.replicas"
UNCLEAN_ENABLE: Final = "unclean.leader.election.enable"


# Brokers ------------------------------------------------------------------------------------


def start(world: World, process: SimBroker) -> None:
    """Start a broker's next process."""
    if process.running:
        return
    process.lives += 1
    process.last_epoch = process.epoch if process.epoch >= 0 else process.last_epoch
    process.running, process.silent, process.stopping, process.epoch = True, False, False, -1
    process.offline.clear()
    register(world, process)


def register(world: World, process: SimBroker) -> None:
    """Register a broker that has no epoch yet."""
    feature = BrokerRegistrationRequest.Feature
    request = BrokerRegistrationRequest(
        broker_id=process.id,
        cluster_id=CLUSTER,
        incarnation_id=process.incarnation,
        rack="ab"[process.id % 2],
        log_dirs=process.online_directories(),
        previous_broker_epoch=process.clean_epoch,
        features=[
            feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in SUPPORTED.items()
        ],
    )
    reply = world.ask(decide_register_broker, request)
    if reply is not None:
        process.epoch, process.clean_epoch = reply.broker_epoch, -1
        world.answer_times[process.id] = world.now


def crash(world: World, process: SimBroker) -> None:
    """Kill a broker; its unflushed data is lost."""
    if process.running:
        world.note("crash of", process.id)
        process.running, process.clean_epoch = False, -1
        if world.checks.has_elr:
            world.checks.logs.on_crash(process.id)


def stop_alone(world: World, process: SimBroker) -> None:
    """Shut a broker down cleanly without informing the controller."""
    if process.running and process.epoch >= 0:
        world.note("stop of", process.id)
        process.running, process.clean_epoch = False, process.epoch


def heartbeat(world: World, process: SimBroker) -> None:
    """Send a broker's heartbeat; register it instead if it has no epoch."""
    if not process.running or process.silent:
        return
    if process.epoch < 0:
        register(world, process)
        return
    last_offset = world.state.next_offset - 1
    behind = world.random.randrange(8) if world.random.random() < 0.2 else 0
    request = BrokerHeartbeatRequest(
        broker_id=process.id,
        broker_epoch=process.epoch,
        current_metadata_offset=max(last_offset - behind, -1),
        want_fence=False,
        want_shut_down=process.stopping,
        offline_log_dirs=sorted(process.offline),
    )
    world.reported_offsets[process.id] = request.current_metadata_offset
    existing = world.state.image.brokers.get(process.id)
    reply = world.ask(decide_heartbeat, request)
    if reply is not None or world.under_way is not None:
        world.answer_times[process.id] = world.now
    if reply is not None and reply.should_shut_down:
        if existing is not None and not existing.fenced:
            world.checks.check_stop(process.id, world.reported_offsets)
        process.running, process.clean_epoch = False, process.epoch


def fail_directory(world: World, process: SimBroker) -> None:
    """Fail one of a broker's directories; its next heartbeat reports that."""
    if process.running and len(process.online_directories()) > 1:
        process.offline.add(world.random.choice(process.online_directories()))


def replace_disk(world: World, process: SimBroker) -> None:
    """Kill a broker and replace one of its disks: the replicas in that directory become empty."""
    crash(world, process)
    process.clean_epoch = -1
    number = world.random.randrange(len(process.directories))
    world.note("replaced disk of", process.id)
    world.checks.logs.on_disk_replaced(world.checks.image, process.id, process.directories[number])
    process.directories[number] = new_directory(process.id, world.random)
    process.missing.pop(number, None)


def hide_directory(world: World, process: SimBroker) -> None:
    """Stop a broker, and let an empty directory take the place of one of its directories.

    Its disk is not mounted. :func:`restore_directory` may bring it back.
    """
    (crash if world.random.random() < 0.5 else stop_alone)(world, process)
    number = world.random.randrange(len(process.directories))
    if process.running or number in process.missing:
        return
    world.note("hidden directory of", process.id)
    process.missing[number] = process.directories[number]
    world.checks.logs.on_directory_hidden(
        world.checks.image, process.id, process.directories[number]
    )
    process.directories[number] = new_directory(process.id, world.random)


def restore_directory(world: World, process: SimBroker) -> None:
    """Kill a broker, and bring its missing directories back."""
    if not process.missing:
        return
    crash(world, process)
    process.clean_epoch = -1
    world.note("restored directories of", process.id)
    for number, directory in process.missing.items():
        world.checks.logs.on_disk_replaced(
            world.checks.image, process.id, process.directories[number]
        )
        process.directories[number] = directory
        world.checks.logs.on_directory_restored(process.id, directory)
    process.missing.clear()


def assign(world: World, process: SimBroker) -> None:
    """Report the directory of one of a broker's replicas."""
    place = _draw_partition(world, lambda p: process.id in p.replicas)
    if place is None or not world.is_alive(process.id):
        return
    if world.partition(place).directory(process.id) not in process.online_directories():
        return  # Replicas cannot be moved out of a failed directory.
    report_directory(world, process, place, world.random.choice(process.directories))


def assign_lost(world: World, process: SimBroker) -> None:
    """Report new directories, as a broker does, for replicas whose directory it does not have."""
    if not process.running or process.silent or process.epoch < 0:
        return
    for place in world.partitions_where(lambda p: process.id in p.replicas):
        directory = world.partition(place).directory(process.id)
        if directory not in process.directories:
            if is_directory(directory):
                world.checks.logs.on_log_lost(place, process.id)
            before = world.partition(place)
            report_directory(world, process, place, process.online_directories()[0])
            if is_directory(directory):
                world.checks.check_place_is_kept(place, before, world.partition(place))


def report_directory(
    world: World, process: SimBroker, place: TopicIdPartition, directory: bytes
) -> None:
    """Report the directory of one replica."""
    data = AssignReplicasToDirsRequest.DirectoryData
    partition = data.TopicData.PartitionData(partition_index=place[1])
    topic = data.TopicData(topic_id=place[0], partitions=[partition])
    request = AssignReplicasToDirsRequest(
        broker_id=process.id,
        broker_epoch=process.epoch,
        directories=[data(id=directory, topics=[topic])],
    )
    world.ask(decide_assign_directories, request, once=True)


def unregister(world: World, process: SimBroker) -> None:
    """Unregister a broker that is down, as an operator would."""
    if not process.running:
        request = UnregisterBrokerRequest(broker_id=process.id)
        world.ask(decide_unregister_broker, request, once=True)


def producer_ids(world: World, process: SimBroker) -> None:
    if world.is_alive(process.id):
        request = AllocateProducerIdsRequest(broker_id=process.id, broker_epoch=process.epoch)
        world.ask(decide_allocate_producer_ids, request)


# Leaders ------------------------------------------------------------------------------------


def _draw_partition(
    world: World, where: Callable[[PartitionImage], bool]
) -> TopicIdPartition | None:
    places = world.partitions_where(where)
    return world.random.choice(places) if places else None


def _draw_topic(world: World) -> TopicImage | None:
    name = world.random.choice(TOPICS)
    return world.state.image.topic(name)


def alter_isr(world: World, process: SimBroker) -> None:
    """Report a leader's ISR, mostly with current epochs."""
    place = _draw_partition(world, lambda p: p.leader == process.id)
    if place is None or not world.is_alive(process.id):
        return
    partition = world.partition(place)
    chosen = [b for b in partition.replicas if b == process.id or world.random.random() < 0.7]
    report_isr(world, place, chosen, old=world.random.random() < 0.1)


def claim_isr(world: World, process: SimBroker) -> None:
    """Let a leader add a replica that must not join the ISR: inactive or of an old incarnation.

    The leader does not know yet that the replica's broker was fenced or restarted.
    """
    place = _draw_partition(
        world, lambda p: p.leader == process.id and set(p.isr) < set(p.replicas)
    )
    if place is None or not world.is_alive(process.id):
        return
    before = world.partition(place)
    joins = world.random.choice([b for b in before.replicas if b not in before.isr])
    other = world.brokers[joins]
    registered = world.state.image.brokers.get(joins)
    serves = registered is not None and registered.is_active
    epoch = other.last_epoch if serves else (-1 if registered is None else registered.epoch)
    if before.recovering or (serves and registered is not None and epoch in (-1, registered.epoch)):
        return
    part = AlterPartitionRequest.TopicData.PartitionData
    epochs = {b: world.brokers[b].epoch for b in before.isr} | {joins: epoch}
    data = part(
        partition_index=place[1],
        leader_epoch=before.leader_epoch,
        partition_epoch=before.partition_epoch,
        new_isr_with_epochs=[
            part.BrokerState(broker_id=b, broker_epoch=of) for b, of in epochs.items()
        ],
    )
    request = AlterPartitionRequest(
        broker_id=process.id,
        broker_epoch=process.epoch,
        topics=[AlterPartitionRequest.TopicData(topic_id=place[0], partitions=[data])],
    )
    world.ask(decide_alter_partition, request, vouched=frozenset(before.isr) | {joins})
    after = world.partition(place)
    problem = "joined fenced, or with the epoch of an earlier incarnation:"
    demand(joins not in after.isr, joins, problem, before, "->", after)


def report_isr(
    world: World, place: TopicIdPartition, replicas: list[int], *, old: bool = False
) -> None:
    """Send the leader's AlterPartition request with those of ``replicas`` that are alive.

    With ``old``, the request has stale epochs. A recovering leader reports only itself.
    """
    before = world.partition(place)
    isr = [b for b in replicas if world.is_alive(b)]
    if before.recovering:
        isr = [before.leader]
    part = AlterPartitionRequest.TopicData.PartitionData
    brokers = world.brokers
    data = part(
        partition_index=place[1],
        leader_epoch=before.leader_epoch - (old and world.random.random() < 0.5),
        partition_epoch=before.partition_epoch - old,
        new_isr_with_epochs=[
            part.BrokerState(broker_id=b, broker_epoch=brokers[b].epoch) for b in isr
        ],
    )
    request = AlterPartitionRequest(
        broker_id=before.leader,
        broker_epoch=brokers[before.leader].epoch,
        topics=[AlterPartitionRequest.TopicData(topic_id=place[0], partitions=[data])],
    )
    world.ask(decide_alter_partition, request, once=True, vouched=frozenset(isr))
    after = world.partition(place)
    demand(not old or after == before, "an ISR with stale epochs was accepted", before, "->", after)


# Topics -------------------------------------------------------------------------------------


def create(world: World, process: SimBroker) -> None:
    del process
    random, creatable = world.random, CreateTopicsRequest.CreatableTopic
    configs = []
    if random.random() < 0.2:
        value = random.choice(_BOOLS)
        configs.append(creatable.CreatableTopicConfig(name=UNCLEAN_ENABLE, value=value))
    topic = creatable(
        name=random.choice(TOPICS),
        num_partitions=random.randrange(1, 4),
        replication_factor=random.randrange(1, 4),
        configs=configs,
    )
    world.ask(decide_create_topics, CreateTopicsRequest(topics=[topic]), once=True)


_BOOLS: Final = ("true", "false", "false")


def delete(world: World, process: SimBroker) -> None:
    del process
    topic = _draw_topic(world)
    if topic is not None and world.random.random() < 0.3:
        state = DeleteTopicsRequest.DeleteTopicState(name=topic.name, topic_id=ZERO_UUID)
        request = DeleteTopicsRequest(topics=[state], timeout_ms=1000)
        world.ask(decide_delete_topics, request, once=True)


def grow(world: World, process: SimBroker) -> None:
    del process
    topic = _draw_topic(world)
    if topic is not None and len(topic.partitions) < 5:
        growth = CreatePartitionsRequest.CreatePartitionsTopic(
            name=topic.name, count=len(topic.partitions) + 1, assignments=None
        )
        request = CreatePartitionsRequest(topics=[growth], timeout_ms=1000, validate_only=False)
        world.ask(decide_create_partitions, request, once=True)


def configure(world: World, process: SimBroker) -> None:
    """Alter a setting of a topic, of the cluster default or, rarely, of the controller's node."""
    del process
    random = world.random
    setting = random.choice((MIN_ISR, UNCLEAN_ENABLE))
    value = random.choice(_BOOLS if setting == UNCLEAN_ENABLE else ("1", "2", "2", "3"))
    resource = random.choice(
        ((TOPIC, random.choice(TOPICS)), (BROKER, ""), (BROKER, ""), (BROKER, "1"))
    )
    alter_config(world, resource, setting, random.choice((value, value, None)))


def alter_config(world: World, of: tuple[int, str], setting: str, value: str | None) -> None:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    change = resource.AlterableConfig(
        name=setting, config_operation=DELETE if value is None else SET, value=value
    )
    altered = resource(resource_type=of[0], resource_name=of[1], configs=[change])
    request = IncrementalAlterConfigsRequest(resources=[altered], validate_only=False)
    world.ask(decide_incremental_alter, request, once=of[0] == TOPIC)


def lower_minimum(world: World, process: SimBroker) -> None:
    """Lower min.insync.replicas from 2 to 1, let the leader commit alone, and crash it.

    Followers that had left the ISR do not have the records committed afterwards.
    """
    place = _draw_partition(world, lambda p: p.leader == process.id and len(p.isr) > 1)
    if place is None or not world.is_alive(process.id):
        return
    topic = (TOPIC, world.state.image.topics[place[0]].name)
    alter_config(world, topic, MIN_ISR, "2")
    report_isr(world, place, [process.id])
    alter_config(world, topic, MIN_ISR, "1")
    world.checks.on_data(world.is_alive)
    crash(world, process)
    for _ in range(4):
        pass_time(world, process)
        world.now += 1


def quota(world: World, process: SimBroker) -> None:
    kind = AlterClientQuotasRequest.EntryData
    value = float(world.random.randrange(1, 3))
    entry = kind(
        entity=[kind.EntityData(entity_type="user", entity_name=f"u{process.id}")],
        ops=[kind.OpData(key="producer_byte_rate", value=value, remove=value == 1)],
    )
    request = AlterClientQuotasRequest(entries=[entry], validate_only=False)
    world.ask(decide_alter_quotas, request, once=True)


def reassign(world: World, process: SimBroker) -> None:
    """Reassign a partition to random brokers, or cancel its reassignment."""
    place = _draw_partition(world, lambda p: bool(p.replicas))
    if place is None:
        return
    before = world.partition(place)
    brokers = sorted(world.state.image.brokers)
    target: list[int] | None = None
    if brokers and (not before.is_reassigning or world.random.random() < 0.6):
        target = world.random.sample(brokers, world.random.randrange(1, min(len(brokers), 3) + 1))
    request_reassignment(world, place, target)


def request_reassignment(world: World, place: TopicIdPartition, target: list[int] | None) -> None:
    """Request the replicas of a partition as an administrator; None cancels a reassignment."""
    before = world.partition(place)
    replicas = [b for b in before.replicas if b not in before.adding] if target is None else target
    targets, previous_target = world.checks.targets, world.checks.targets.get(place)
    targets[place] = tuple(replicas)
    kind = AlterPartitionReassignmentsRequest.ReassignableTopic
    partition = kind.ReassignablePartition(partition_index=place[1], replicas=target)
    topic = kind(name=world.state.image.topics[place[0]].name, partitions=[partition])
    request = AlterPartitionReassignmentsRequest(topics=[topic])
    world.ask(decide_reassign, request, once=True)
    after = world.partition(place)
    if after.is_reassigning and after == before and previous_target is not None:
        targets[place] = previous_target  # The controller rejected the request.
    elif not after.is_reassigning:
        targets.pop(place, None)


def elect(world: World, process: SimBroker) -> None:
    """Request an election for a topic's partitions: mostly preferred, sometimes unclean."""
    del process
    topic = _draw_topic(world)
    if topic is None or not topic.partitions:
        return
    kind = UNCLEAN if world.random.random() < 0.3 else PREFERRED
    request_election(world, topic, sorted(topic.partitions), kind)


def request_election(world: World, topic: TopicImage, numbers: list[int], kind: int) -> None:
    """Request an election as an operator, and check its result."""
    checks = world.checks
    if kind == UNCLEAN:
        checks.requested_elections.update((topic.id, number) for number in numbers)
    named = ElectLeadersRequest.TopicPartitions(topic=topic.name, partitions=numbers)
    request = ElectLeadersRequest(election_type=kind, topic_partitions=[named], timeout_ms=1000)
    brokers = world.state.image.brokers
    world.ask(decide_elect_leaders, request, once=True)
    after = world.state.image.topics[topic.id]
    if kind == UNCLEAN:
        for number in numbers:
            old, new = topic.partitions[number], after.partitions[number]
            check_unclean_election(brokers, old, new)


def elr(world: World, process: SimBroker) -> None:
    """Enable eligible leader replicas (ELR), if they are not enabled yet."""
    del process
    if world.state.image.features.get(ELR, 0):
        return
    update = UpdateFeaturesRequest.FeatureUpdateKey(
        feature=ELR, max_version_level=1, upgrade_type=1
    )

    def decide(
        state: ControllerState, request: UpdateFeaturesRequest
    ) -> Deciding[UpdateFeaturesResponse]:
        return decide_update_features(
            state, request, kraft_version=0, check_kraft_version=lambda level: None
        )

    world.ask(decide, UpdateFeaturesRequest(feature_updates=[update]))


# The controller's own -----------------------------------------------------------------------


def fence(world: World) -> None:
    """Fence every broker whose session expired; no unfenced broker may be silent for 9 s."""
    while world.ask(decide_fence_stale, None):
        pass
    for broker in world.state.image.brokers.values():
        silence_s = world.now - world.answer_times[broker.id]
        demand(broker.fenced or silence_s < 9, broker.id, "is not fenced, silent for", silence_s)


def balance(world: World, process: SimBroker) -> None:
    del process
    world.ask(decide_rebalance_leaders, None, once=True)
    world.ask(decide_elect_unclean, None, once=world.slices > 2)  # Else it does the next slice.


def pass_time(world: World, process: SimBroker) -> None:
    """Let up to three seconds pass, and send heartbeats of most brokers."""
    del process
    world.now += 3 * world.random.random()
    for broker in world.brokers.values():
        if world.random.random() < 0.9:
            heartbeat(world, broker)
    fence(world)


def toggle_silence(world: World, process: SimBroker) -> None:
    process.silent = not process.silent
    world.note(process.id, "silent" if process.silent else "no longer silent")


def fence_one(world: World, process: SimBroker) -> None:
    del process
    world.ask(decide_fence_stale, None)


def end_early(world: World, process: SimBroker) -> None:
    """Fence a broker because its process has ended; sometimes this report is wrong."""
    if process.running and world.random.random() < 0.8:
        return
    existing = world.state.image.brokers.get(process.id)
    epoch = process.epoch if existing is None else existing.epoch
    proof = EndedProcess(process.id, epoch, world.now - 0.1 * world.random.random())
    world.ask(decide_fence_ended, proof)


def several(world: World, process: SimBroker) -> None:
    """Send two to five requests whose decisions are pending at the same time."""
    del process
    brokers = list(world.brokers.values())

    def request() -> None:
        step = world.random.choice(AT_ONCE)
        step(world, world.random.choice(brokers))

    world.several([request] * world.random.randrange(2, 6))


AT_ONCE: Final[tuple[Callable[[World, SimBroker], None], ...]] = (
    create,
    create,
    delete,
    grow,
    configure,
    quota,
    elect,
    balance,
    producer_ids,
    producer_ids,
    fence_one,
    end_early,
    heartbeat,
)
"""Steps that may be taken while other decisions are pending."""


def begin_stop(world: World, process: SimBroker) -> None:
    process.stopping = process.running and process.epoch >= 0


STEPS: Final[tuple[tuple[int, Callable[[World, SimBroker], None]], ...]] = (
    (30, pass_time),
    (30, alter_isr),
    (12, start),
    (5, crash),
    (2, stop_alone),
    (4, begin_stop),
    (5, toggle_silence),
    (3, fail_directory),
    (2, replace_disk),
    (2, hide_directory),
    (2, restore_directory),
    (5, assign),
    (5, assign_lost),
    (1, unregister),
    (2, producer_ids),
    (8, create),
    (3, delete),
    (3, grow),
    (6, configure),
    (2, lower_minimum),
    (2, quota),
    (8, reassign),
    (4, elect),
    (4, balance),
    (5, several),
    (4, claim_isr),
    (6, end_early),
)


def bootstrap(world: World, *, eligible: bool) -> None:
    """Write the first records of the cluster."""
    world.write(
        [r.FeatureLevelRecord(name="metadata.version", feature_level=30)],
        "bootstrap",
    )
    if eligible:
        elr(world, world.brokers[1])


def leaderless(world: World) -> list[TopicIdPartition]:
    """Return the partitions without a leader."""
    return world.partitions_where(lambda p: p.leader == NO_LEADER)
