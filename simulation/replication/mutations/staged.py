"""Mistakes that only staged faults reveal; the simulation must catch them."""

from typing import Final, NoReturn

from kwire.coordinator.runtime import CoordinatorRuntime
from kwire.errors import KafkaError
from kwire.log import fetched_batches
from kwire.log import manager as log_manager
from kwire.log.directories.queue_writer import QueueWriter
from kwire.raftmeta.commits import PendingCommits
from kwire.raftmeta.controller import partitions
from kwire.raftmeta.metadata.image import BrokerImage, PartitionImage
from kwire.replica.leader import PartitionLeader
from kwire.replica.partition import Partition
from simulation.raft.mutations import Mutation

_lead = Partition.lead


def _accept_any_epoch(*_: object) -> None:
    """Accept every batch that has the right offset."""


def _is_last_known(partition: PartitionImage, broker: BrokerImage, _: bytes) -> bool:
    return partition.last_known_elr == (broker.id,)


def _retry_never(*_: object) -> None:
    """Do not retry the writes of queued batches after an error."""


def _create_elsewhere(*_: object) -> None:
    """Create a log for every replica, even if its old log may be in a failed directory."""


async def _refuse_at_once(coordinator: object, shard: object, error: KafkaError) -> NoReturn:
    raise error


def _lead_anew(partition: Partition, leader: PartitionLeader, now: float) -> None:
    _lead(partition, leader, now)
    partition.verifications._ongoing.clear()


def _fail_nothing(commits: PendingCommits, epoch: int | None) -> None:
    """Keep the commits of a lost leadership, so that another leader's records complete them."""


MUTATIONS: Final = (
    Mutation(
        "append-later-epochs",
        "a follower appends batches of a later epoch than the one it fetches in",
        ((fetched_batches, "check_epoch", _accept_any_epoch),),
        (23, 25),
        stage="read-late",
    ),
    Mutation(
        "replaced-disk-leads",
        "the last in-sync replica leads although its disk was replaced",
        ((partitions, "_has_lost_log", _is_last_known),),
        (1, 33),
        stage="return-without-log",
    ),
    Mutation(
        "queued-writes-wait-for-the-next-append",
        "what found no room on a slow disk is written only when more records come",
        ((QueueWriter, "_retry_later", _retry_never),),
        (22,),
        stage="fill-slow-disk",
    ),
    Mutation(
        "empty-log-beside-an-unread-directory",
        "a replica gets an empty log while its own may be in a directory that failed",
        ((log_manager, "_refuse_unread", _create_elsewhere),),
        (1,),
        stage="return-without-log",
    ),
    Mutation(
        "refusals-before-the-commit",
        "coordinators refuse producers for good because of records that are not replicated",
        ((CoordinatorRuntime, "_refuse", _refuse_at_once),),
        (59,),
        stage="fence-in-vain",
    ),
    Mutation(
        "verifications-end-with-the-epoch",
        "a leader that leads on in the next epoch discards the verifications under way",
        ((Partition, "lead", _lead_anew),),
        (56,),
        stage="move-during-verification",
    ),
    Mutation(
        "commits-outlive-leadership",
        "a decision of a lost leadership succeeds when others' records are committed instead",
        ((PendingCommits, "fail_unless", _fail_nothing),),
        (48,),
        stage="lose-decisions",
    ),
)
