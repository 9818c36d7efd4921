"""The checks of simulated clusters: which metadata they take for durable."""

from kwire.log.formats import names
from kwire.raftmeta.storage.names import METADATA_DIRECTORY
from simulation.disk import SimDisk
from simulation.replication.metadata_checks import durable_end
from tests.support.log.batches import encode


def test_tail_that_a_loss_of_power_filled_with_zeros_is_not_durable() -> None:
    disk = SimDisk()
    disk.make_directory(METADATA_DIRECTORY)
    file = disk.open(f"{METADATA_DIRECTORY}/{0:020}{names.LOG}", create=True)
    file.write([encode([b"a", b"b", b"c"]), bytes(100)], 0)
    file.sync()
    disk.sync_directory(METADATA_DIRECTORY)
    disk.sync_directory()
    assert durable_end(disk) == 3
