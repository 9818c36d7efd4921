"""The steps of the simulation: one function each, chosen by weight, with a machine that they hit.

Rules:

* A step may come between any two others, in particular between two items of a publication.
* A fetch is one step, whose response may be lost. Requests with proposals are delayed, lost,
  reordered, and decided after their senders have given them up.
* A broker that is cut off sends nothing to other nodes and gets no metadata; clients still reach
  it. An answer to what it sent before still arrives.
* :func:`lower_minimum` takes several steps on purpose that seldom coincide.
"""

from collections.abc import Callable
from errno import EIO
from typing import Final

from kwire.codec.messages.alter_partition import AlterPartitionRequest
from kwire.configs.resource_types import TOPIC
from kwire.errors import KafkaError, OffsetOutOfRange, RequestTimedOut
from kwire.log.partition_log import PartitionLog
from kwire.raftmeta.controller.partitions import PREFERRED, decide_alter_partition
from kwire.replica.fetcher import truncation
from kwire.replica.fetcher.followed_partition import FollowedPartition
from kwire.replica.partition import FetchIsolation
from kwire.replica.replicas import check_follower
from simulation.controller import steps as controller_steps
from simulation.isr.broker import NAME, TIME_MS, Machine
from simulation.isr.cluster import Answer, Cluster, Proposals

Step = Callable[[Cluster, Machine], None]
_FETCH_BYTES: Final = 100_000
_MINIMA: Final = ("1", "2", "2", "3")
_SPEEDS: Final = (1.0, 1.0, 1.0, 0.1)


# Clients and followers ----------------------------------------------------------------------


def produce(cluster: Cluster, machine: Machine) -> None:
    """Append a record to the log of a broker that believes that it leads."""
    del machine
    leader = cluster.draw(lambda replicas: replicas.original is not None)
    if leader is not None:
        cluster.value_count += 1
        leader.produce(b"%d" % cluster.value_count)


def delete_records(cluster: Cluster, machine: Machine) -> None:
    """Delete some of the committed records."""
    del machine
    leader = cluster.draw(lambda replicas: replicas.original is not None)
    if leader is not None and leader.original is not None:
        log = leader.original.log
        offset = cluster.random.randint(log.log_start, log.high_watermark)
        cluster.world.note(leader.id, "deletes up to", offset)
        leader.delete_records(offset)


def fetch(cluster: Cluster, machine: Machine) -> None:
    """Let a follower fetch once, from the broker that it takes for the leader."""
    del machine
    follower = cluster.draw(lambda replicas: replicas.copy is not None)
    copy = None if follower is None else follower.copy
    leader = None if copy is None else cluster.replicas(copy.leader_id)
    original = None if leader is None else leader.partition
    if follower is None or copy is None or leader is None or original is None:
        return
    if follower.process.silent or leader.process.silent:
        return
    followed = FollowedPartition(copy, copy.leader_id, copy.leader_epoch)
    if followed.must_sync:
        copy.log.flush_state.flush()
    follower.keep_start(copy.log)
    followed.kept_start = copy.log.log_start
    position = followed.position()
    assert position is not None
    try:
        state = original.check_leader(position.leader_epoch)
        check_follower(state, follower.id, follower.process.epoch, position.leader_epoch)
        result = original.read(
            position.fetch_offset,
            _FETCH_BYTES,
            isolation=FetchIsolation.LOG_END,
            last_fetched_epoch=position.last_fetched_epoch,
        )
    except OffsetOutOfRange:
        _resume_within_range(copy.log, original.log)
        return
    except KafkaError:
        return
    if result.diverging is not None:
        log = copy.log
        log.truncate_to(truncation.target(log.epochs, log.end_offset, *result.diverging))
        return
    leader.service.on_follower_fetched(
        original,
        follower.id,
        offset=position.fetch_offset,
        log_start=position.log_start,
        broker_epoch=follower.process.epoch,
    )
    leader.changes.on_fetched(original, follower.id)
    data = b""
    if result.records is not None and not isinstance(result.records, bytes):
        with result.records as region:
            data = bytes(region.read())
    if cluster.random.random() < 0.85:
        followed.append(data, original.high_watermark, result.log_start, TIME_MS)


def _resume_within_range(log: PartitionLog, leaders: PartitionLog) -> None:
    """Recover after the leader has rejected this log's end as outside its own log."""
    if leaders.end_offset < log.end_offset:
        log.truncate_to(leaders.end_offset)
    elif log.end_offset < leaders.log_start:
        log.truncate_fully_at(leaders.log_start)


def flush(cluster: Cluster, machine: Machine) -> None:
    """Sync a broker's log, which is safe from a loss of power then."""
    del cluster
    partition = None if machine.replicas is None else machine.replicas.partition
    if partition is not None:
        partition.log.flush_state.flush()


# Messages -----------------------------------------------------------------------------------


def propose(cluster: Cluster, machine: Machine) -> None:
    """Send a leader's proposals, unless it waits for an answer."""
    del machine
    leader = cluster.draw(lambda replicas: replicas.original is not None)
    if leader is None or leader.in_flight is not None or leader.process.silent:
        return
    request = leader.propose()
    if request is not None:
        cluster.world.note(leader.id, "proposes", *_members(request))
        cluster.requests.append(Proposals(leader, request))


def decide(cluster: Cluster, machine: Machine) -> None:
    """Let the controller decide on any of the requests in flight; the answer may be lost."""
    del machine
    random, requests = cluster.random, cluster.requests
    if not requests:
        return
    proposals = requests.pop(random.randrange(len(requests)))
    response = cluster.world.ask(
        decide_alter_partition, proposals.request, vouched=_members(proposals.request)
    )
    if response is not None and random.random() < 0.9:
        cluster.answers.append(Answer(proposals, response))


def _members(request: AlterPartitionRequest) -> frozenset[int]:
    """Return the members of the proposed ISR."""
    (topic,) = request.topics
    (partition,) = topic.partitions
    return frozenset(member.broker_id for member in partition.new_isr_with_epochs)


def answer(cluster: Cluster, machine: Machine) -> None:
    """Deliver any of the answers in flight, unless its request has been given up."""
    del machine
    if not cluster.answers:
        return
    (sender, request), response = cluster.answers.pop(
        cluster.random.randrange(len(cluster.answers))
    )
    if sender.in_flight is request and cluster.replicas(sender.id) is sender:
        results = [result for topic in response.topics for result in topic.partitions]
        answers = ((result.isr, "error", result.error_code) for result in results)
        cluster.world.note(sender.id, "is answered with", *answers)
        sender.on_answer(response)


def time_out(cluster: Cluster, machine: Machine) -> None:
    """Let a leader give up its request, which the controller may still decide."""
    del machine
    sender = cluster.draw(lambda replicas: replicas.in_flight is not None)
    if sender is not None:
        cluster.world.note(sender.id, "gives up its request")
        sender.on_answer(RequestTimedOut())


def apply_metadata(cluster: Cluster, machine: Machine) -> None:
    """Let a broker go on with its publication, or begin one with any part of what is new."""
    replicas, random = machine.replicas, cluster.random
    if replicas is None:
        return
    new_count = len(cluster.world.log) - replicas.batch_count
    if replicas.is_applying:
        replicas.apply_next()
        while replicas.is_applying and random.random() < 0.7:
            replicas.apply_next()
    elif new_count and not machine.process.silent and random.random() < machine.speed:
        replicas.publish(random.choice((1, new_count)))


def heartbeat(cluster: Cluster, machine: Machine) -> None:
    cluster.heartbeat(machine)


def fence(cluster: Cluster, machine: Machine) -> None:
    """Let the controller fence the brokers whose sessions have ended."""
    del machine
    controller_steps.fence(cluster.world)


# Faults and administrators ------------------------------------------------------------------


def start(cluster: Cluster, machine: Machine) -> None:
    if machine.replicas is None:
        cluster.start(machine)


def stop(cluster: Cluster, machine: Machine) -> None:
    """Stop a broker cleanly without telling the controller."""
    if machine.replicas is not None:
        cluster.stop(machine)


def kill(cluster: Cluster, machine: Machine) -> None:
    cluster.kill(machine)


def lose_power(cluster: Cluster, machine: Machine) -> None:
    cluster.kill(machine, by_power_loss=True)


def shut_down(cluster: Cluster, machine: Machine) -> None:
    """Let a broker ask the controller, with its heartbeats, whether it may stop."""
    del cluster
    if machine.replicas is not None:
        machine.process.stopping = True


def fail_directory(cluster: Cluster, machine: Machine) -> None:
    """Fail a broker's disk until the broker is restarted; a heartbeat reports it."""
    if machine.replicas is not None and machine.disk.failed is None:
        cluster.world.note(machine.id, "cannot use its disk")
        machine.disk.fail(OSError(EIO, "failed"))
        machine.replicas.directory.note_failure()
        machine.process.offline.update(machine.process.directories)
        cluster.heartbeat(machine)


def configure(cluster: Cluster, machine: Machine) -> None:
    """Change the topic's min.insync.replicas."""
    del machine
    _set_minimum(cluster, cluster.random.choice(_MINIMA))


def reassign(cluster: Cluster, machine: Machine) -> None:
    """Move some replicas, or cancel a reassignment."""
    del machine
    random = cluster.random
    is_cancelled = cluster.partition.is_reassigning and random.random() < 0.3
    target = (
        None if is_cancelled else random.sample(list(cluster.machines), random.choice((2, 3, 3)))
    )
    controller_steps.request_reassignment(cluster.world, cluster.place, target)


def elect(cluster: Cluster, machine: Machine) -> None:
    """Request the election of the preferred leader."""
    del machine
    topic = cluster.world.state.image.topics[cluster.place[0]]
    controller_steps.request_election(cluster.world, topic, [0], PREFERRED)


def fail_over(cluster: Cluster, machine: Machine) -> None:
    del machine
    cluster.world.fail_over()


def slow_down(cluster: Cluster, machine: Machine) -> None:
    """Let a broker lag behind the metadata from now on, or no longer."""
    machine.speed = cluster.random.choice(_SPEEDS)


def cut_off(cluster: Cluster, machine: Machine) -> None:
    """Cut a broker off from all other nodes, but not from clients, or reconnect it."""
    machine.process.silent = cluster.random.random() < 0.4
    cluster.world.note(machine.id, "is cut off" if machine.process.silent else "is connected")


def lower_minimum(cluster: Cluster, machine: Machine) -> None:
    """Let a leader apply its end and a lower min.insync.replicas in one publication.

    Its followers stop before they have its last record, and come back as eligible replicas while it
    is cut off. The chain seldom happens by itself.
    """
    del machine
    partition, machines = cluster.partition, cluster.machines
    leader = cluster.replicas(partition.leader)
    if leader is None or leader.is_applying or len(partition.isr) < 2:
        return
    cluster.world.note(leader.id, "will be replaced")
    others = [machines[member] for member in partition.isr if member != leader.id]
    _set_minimum(cluster, "2")
    cluster.catch_up(machines[leader.id])
    produce(cluster, machines[leader.id])
    for other in others:
        cluster.stop(other)
    _let_sessions_end(cluster)
    if cluster.replicas(leader.id) is not leader:
        return
    cluster.catch_up(machines[leader.id])
    leader.process.silent = True
    for other in others:
        start(cluster, other)
    _let_sessions_end(cluster)
    _set_minimum(cluster, "1")
    leader.process.silent = False
    leader.publish(len(cluster.world.log))


def _let_sessions_end(cluster: Cluster) -> None:
    """Let time pass until the brokers without heartbeats are fenced."""
    for _ in range(4):
        cluster.world.now += 3
        for machine in cluster.machines.values():
            cluster.heartbeat(machine)
        controller_steps.fence(cluster.world)


def _set_minimum(cluster: Cluster, value: str) -> None:
    controller_steps.alter_config(cluster.world, (TOPIC, NAME), controller_steps.MIN_ISR, value)


STEPS: Final[tuple[tuple[int, Step], ...]] = (
    (150, produce),
    (500, fetch),
    (20, flush),
    (10, delete_records),
    (150, propose),
    (200, decide),
    (200, answer),
    (30, time_out),
    (500, apply_metadata),
    (200, heartbeat),
    (20, fence),
    (40, configure),
    (3, kill),
    (2, lose_power),
    (6, stop),
    (2, shut_down),
    (100, start),
    (2, fail_directory),
    (5, reassign),
    (10, elect),
    (2, fail_over),
    (5, slow_down),
    (20, cut_off),
    (6, lower_minimum),
)
