"""The identity of data directories: formats empty ones, and rejects those of other nodes.

Rules: a directory with a ``meta.properties`` is formatted. Any other directory is formatted at
startup only if this node is the only voter: with several voters, a voter that has lost its log but
still votes can undo decisions of a majority. A node starts without the data directories whose
``meta.properties`` is damaged or cannot be read, as Kafka does, if it can read that of the metadata
log.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import Final, NamedTuple

from kwire.codec.messages.metadata_records import MetadataRecord
from kwire.configs.broker import BrokerConfig
from kwire.configs.declare import ConfigError
from kwire.configs.listeners import Address, parse_address
from kwire.log.disk import Disks, RealDisks
from kwire.log.disk_health import DiskErrorKind, classify
from kwire.log.formats import names
from kwire.log.formats.checkpoints import (
    CorruptFile,
    MetaProperties,
    parse_meta_properties,
    parse_properties,
)
from kwire.raftmeta.raft.voters import ReplicaKey, Voter, VoterEndpoint, VoterSet
from kwire.storage_format.format import DEFAULT_FEATURES, Format, meta_properties, metadata_files
from kwire.types import METADATA_TOPIC, random_uuid, uuid_bytes, uuid_text

_LOG_FILE: Final = re.compile(r"\d{20}\.log")
_ELSEWHERE: Final = "name another directory in log.dirs"
_REMEDIES: Final = {
    errno.EACCES: f"run kwire as the owner of the directory and its files, or {_ELSEWHERE}",
    errno.EPERM: f"run kwire as the owner of the directory and its files, or {_ELSEWHERE}",
    errno.EROFS: f"make the file system writable, or {_ELSEWHERE}",
    errno.ENOSPC: f"make room, or {_ELSEWHERE}",
    errno.EDQUOT: f"make room, or {_ELSEWHERE}",
    errno.ENOTDIR: f"a file has the name of a directory: move it away, or {_ELSEWHERE}",
    errno.EEXIST: f"a file has the name of a directory: move it away, or {_ELSEWHERE}",
    errno.EISDIR: f"a directory has the name of a file: move it away, or {_ELSEWHERE}",
    errno.ENOLCK: f"the file system has no file locks: {_ELSEWHERE}",
    errno.EOPNOTSUPP: f"the file system has no file locks: {_ELSEWHERE}",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the machine's limit of open files",
    errno.EIO: f"look at the disk, or {_ELSEWHERE}",
}
_OF_THE_SETUP: Final = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.ENOTDIR,
        errno.EEXIST,
        errno.EISDIR,
        errno.ENOLCK,
        errno.EOPNOTSUPP,
    }
)
_META_VALUES: Final[tuple[tuple[str, Callable[[str], object], str], ...]] = (
    ("version", int, "number"),
    ("node.id", int, "number"),
    ("broker.id", int, "number"),
    ("directory.id", uuid_bytes, "uuid"),
)
_NO_FAILURES: Final[Mapping[str, OSError]] = {}
_EVERYWHERE: Final = ("", "0.0.0.0", "::", "[::]")
"""The hosts of listeners on all addresses of the machine."""
_HERE: Final = ((0, "localhost"), (4, "127.0.0.1"), (6, "::1"))
"""The machine itself, as :func:`_form` returns it."""
_RESTORE: Final = "restore a copy, or move the directory away to begin with an empty one"

RandomBytes = Callable[[int], bytes]
"""Returns as many random bytes as requested."""


class CannotOpenError(Exception):
    """The data cannot be opened; the message is for the operator."""


def refusal(path: str, error: OSError) -> str:
    """Return a line for the operator: the unusable directory, the reason and the remedy.

    If the reason is a file in the directory, as after a start by another user, the line names it.
    """
    reason = error.strerror or str(error)
    if error.filename and os.path.exists(error.filename):
        name = os.path.relpath(error.filename, path)
        if not name.startswith("."):
            reason = f"{name}: {reason}"
    return with_remedy(f"cannot use the data directory {path}: {reason}", error)


def with_remedy(what: str, error: OSError) -> str:
    """Return the line, followed by a remedy if there is one for the error."""
    remedy = _REMEDIES.get(error.errno or 0)
    return what if remedy is None else f"{what}; {remedy}"


def is_of_a_failing_disk(error: OSError) -> bool:
    """Return whether an error takes a directory offline that is created or locked at a start.

    A lack of space or descriptors, a wrong name and missing rights are not the disk's fault: the
    operator can correct them, so the start is refused.
    """
    return classify(error) is DiskErrorKind.BROKEN and error.errno not in _OF_THE_SETUP


class Identity(NamedTuple):
    """The owner of the directories, once all are formatted."""

    cluster_id: str
    directories: Mapping[str, bytes]
    """Directory ids by path, in the configured order; without the failed directories."""
    failed: Mapping[str, OSError] = _NO_FAILURES
    """The directories whose identity cannot be read, with the reason."""


class Findings(NamedTuple):
    """The state of a node's directories before its start."""

    cluster_id: str | None
    """None for a new cluster."""
    missing: Sequence[str]
    """The directories to be formatted."""
    formatted: Mapping[str, MetaProperties]
    """The identities of the other directories."""
    failed: Mapping[str, OSError]
    """The directories whose identity cannot be read, with the reason; the node runs without them.
    """


def examine(
    config: BrokerConfig,
    configured_id: str | None,
    disks: Disks,
    known_failures: Mapping[str, OSError] = _NO_FAILURES,
) -> Findings:
    """Return the state of the directories; those of ``known_failures`` are not read again.

    Changes nothing. Raises CannotOpenError or ConfigError with the reason why the node cannot
    start.
    """
    paths = all_directories(config)
    _check_distinct(config, disks)
    metas, failed = _read_metas(config, paths, disks, known_failures)
    formatted = {path: meta for path, meta in metas.items() if meta is not None}
    missing = [path for path, meta in metas.items() if meta is None]
    metadata = os.path.abspath(config.metadata_directory)
    for path in missing:
        if holds_logs(path, disks):
            raise CannotOpenError(f"{path} holds data but lost its meta.properties; {_RESTORE}")
        if path == metadata and formatted:
            raise CannotOpenError(
                f"{path}, the directory of the metadata log, is not formatted, but "
                f"{next(iter(formatted))} is; mount its disk, or format it with "
                "`kwire format --ignore-formatted`"
            )
    if formatted:
        if metadata in formatted and is_alone(config) and not has_metadata_log(metadata, disks):
            raise CannotOpenError(
                f"{metadata} lost its metadata log {METADATA_TOPIC}-0, and no other node has a "
                f"copy; {_RESTORE}"
            )
        cluster_id = check(config, formatted, configured_id)
        return Findings(cluster_id, missing, formatted, failed)
    for path, error in failed.items():  # It may hold the data of a cluster.
        raise CannotOpenError(refusal(path, error)) from error
    if not is_single_voter(config):
        how = "`kwire format --cluster-id ID --config FILE` with the cluster's id"
        if config.is_controller and not config.voters:
            how += (
                ", and --initial-controllers in a cluster that begins, --no-initial-controllers "
                "in one that runs"
            )
        raise CannotOpenError(
            f"{config.metadata_directory} is empty and this node is not the single voter: mount "
            f"its disk, or run {how}"
        )
    if configured_id is not None:
        check_cluster_id(configured_id)
    return Findings(configured_id, missing, formatted, failed)


def identify(
    config: BrokerConfig,
    cluster_id: str | None,
    disks: Disks,
    random_bytes: RandomBytes,
    known_failures: Mapping[str, OSError] = _NO_FAILURES,
) -> Identity:
    """Return the node's identity; format directories if allowed; raise as :func:`examine` does."""
    findings = examine(config, cluster_id, disks, known_failures)
    cluster_id = findings.cluster_id or uuid_text(random_uuid(random_bytes))
    ids = {path: directory_id(path, meta) for path, meta in findings.formatted.items()}
    for path in findings.missing:
        new_id = random_uuid(random_bytes)
        voters = standalone(config, new_id) if not config.voters else None
        format_directory(config, path, cluster_id, new_id, voters, disks=disks)
        ids[path] = new_id
    ordered = {path: ids[path] for path in all_directories(config) if path in ids}
    return Identity(cluster_id, ordered, findings.failed)


def _read_metas(
    config: BrokerConfig,
    paths: Sequence[str],
    disks: Disks,
    known_failures: Mapping[str, OSError],
) -> tuple[dict[str, MetaProperties | None], dict[str, OSError]]:
    """Return the identities of the directories, and why those of some cannot be read.

    Raises CannotOpenError if the node cannot run without one of these.
    """
    metas, failed = dict[str, MetaProperties | None](), dict(known_failures)
    metadata = os.path.abspath(config.metadata_directory)
    for path in paths:
        if path in failed:
            continue
        try:
            metas[path] = read_meta(path, disks)
        except CannotOpenError as refused:
            error = refused.__cause__
            if path == metadata or not isinstance(error, OSError):
                raise
            is_broken = classify(error) is DiskErrorKind.BROKEN
            if not is_broken and error.errno not in _OF_THE_SETUP:
                raise
            failed[path] = error
    if config.is_broker and all(os.path.abspath(p) in failed for p in config.data_directories):
        path, error = next(iter(failed.items()))
        raise CannotOpenError(refusal(path, error)) from error
    return metas, failed


def _check_distinct(config: BrokerConfig, disks: Disks) -> None:
    """Reject two names for the same directory: the node would wait for its own lock."""
    by_target: dict[str, str] = {}
    for path in config.data_directories:
        other = by_target.setdefault(disks.resolve(path), path)
        if other != path:
            raise ConfigError(
                f"log.dirs names one directory twice: {path} and {other} are the same; "
                "remove one of them"
            )
    metadata = config.metadata_directory
    other = by_target.get(disks.resolve(metadata), metadata)
    if os.path.abspath(other) != os.path.abspath(metadata):
        raise ConfigError(
            f"metadata.log.dir and log.dirs name one directory in two ways: {metadata} and {other} "
            f"are the same; write metadata.log.dir={other}"
        )


def holds_logs(path: str, disks: Disks) -> bool:
    """Return whether a directory holds log segments of any partition.

    Folders that cannot be a partition's are not looked into: only root may read the `lost+found` of
    a new file system.
    """
    disk = disks.open(path)
    try:
        folders = [name for name in disk.folders() if "-" in name]
        return any(_LOG_FILE.fullmatch(e.name) for folder in folders for e in disk.entries(folder))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise CannotOpenError(refusal(path, error)) from error


def has_metadata_log(path: str, disks: Disks) -> bool:
    """Return whether a directory holds the metadata log; raise CannotOpenError if unreadable."""
    try:
        disks.open(path).entries(f"{METADATA_TOPIC}-0")
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise CannotOpenError(refusal(path, error)) from error
    return True


def is_alone(config: BrokerConfig) -> bool:
    """Return whether this node has the only copy of the metadata, in a quorum that it formatted."""
    return not config.voters and is_single_voter(config)


def check_cluster_id(text: str) -> None:
    """Reject a cluster id that other tools would not accept."""
    try:
        uuid_bytes(text)
    except ValueError:
        raise ConfigError(
            f"cluster id {text!r} is not a uuid in 22 characters of base64; "
            "`kwire random-uuid` prints a new one"
        ) from None


def all_directories(config: BrokerConfig) -> list[str]:
    """Return the data directories, and the metadata log's directory if it is a separate one."""
    try:
        paths = [os.path.abspath(path) for path in config.data_directories]
    except FileNotFoundError as error:
        raise CannotOpenError(
            "the current directory was deleted, and log.dirs is relative to it; change to another "
            "directory, or name log.dirs in full"
        ) from error
    metadata = os.path.abspath(config.metadata_directory)
    return paths if metadata in paths else [*paths, metadata]


def read_meta(path: str, disks: Disks) -> MetaProperties | None:
    """Return the identity stored in a directory; None if it is not formatted."""
    try:
        data = disks.open(path).read(names.META_PROPERTIES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CannotOpenError(refusal(path, error)) from error
    try:
        return parse_meta_properties(data)
    except CorruptFile as error:
        what = f"{_defect(data) or error}; {_RESTORE}"
        # As a disk error, the damage takes the directory offline if the node can run without it.
        raise CannotOpenError(f"{path}: {what}") from OSError(errno.EBADMSG, what)


def _defect(data: bytes) -> str | None:
    """Return the defect of a damaged ``meta.properties``; None if only a line is missing."""
    name = names.META_PROPERTIES
    if not data.strip():
        return f"{name} is empty"
    try:
        texts = parse_properties(data.decode())
    except ValueError:
        return f"{name} is damaged: it is not text"
    if "version" not in texts:
        return f"{name} lacks version"
    for key, reads, kind in _META_VALUES:
        try:
            if key in texts:
                reads(texts[key])
        except ValueError:
            return f"{name} is damaged: {key}={texts[key]} is not a {kind}"
    return None


def directory_id(path: str, meta: MetaProperties) -> bytes:
    """Return a directory's id; raises CannotOpenError if it has none."""
    if meta.directory_id is None:
        raise CannotOpenError(f"{path}/{names.META_PROPERTIES} has no directory.id; {_RESTORE}")
    return meta.directory_id


def check(
    config: BrokerConfig, formatted: Mapping[str, MetaProperties], configured_id: str | None
) -> str:
    """Return the cluster id of all directories; reject those of another node or cluster."""
    cluster_id = configured_id or next(iter(formatted.values())).cluster_id
    by_id: dict[bytes, str] = {}
    for path, meta in formatted.items():
        if meta.node_id != config.node_id:
            raise CannotOpenError(
                f"{path} belongs to node.id {meta.node_id}, not {config.node_id}; "
                f"set node.id, or {_ELSEWHERE}"
            )
        if meta.cluster_id != cluster_id:
            raise CannotOpenError(
                f"{path} belongs to cluster {meta.cluster_id}, not {cluster_id}; "
                f"use that cluster's id, or {_ELSEWHERE}"
            )
        if meta.directory_id is None:
            continue
        other = by_id.setdefault(meta.directory_id, path)
        if other != path:
            raise CannotOpenError(
                f"{path} has the directory.id of {other}: one is a copy of the other, or both are "
                "one directory; remove one of them from log.dirs"
            )
    return cluster_id


def is_single_voter(config: BrokerConfig) -> bool:
    """Return whether this node is the only voter of the metadata quorum."""
    if not config.is_controller:
        return False
    if config.voters:
        return set(config.voters) == {config.node_id}
    addresses = {Address(e.host, e.port) for e in config.controller_endpoints}
    servers = config.bootstrap_servers
    return set(servers) <= addresses or (len(servers) == 1 and _may_be_own(config, servers[0]))


def _may_be_own(config: BrokerConfig, server: Address) -> bool:
    """Return whether an address may be that of this node's controller under another name.

    The first controller of a quorum may be the only bootstrap server of the others, usually with
    their port. Nothing is resolved here: a name and an address may belong together.
    """
    advertised = {e.name: e.host for e in config.advertised_endpoints}
    hosts = [
        advertised.get(e.name, e.host)
        for e in config.controller_endpoints
        if e.port in (server.port, 0)
    ]
    named = {*(e.host for e in config.endpoints), *advertised.values()}
    if server.host in named or _form(server.host) in _HERE:
        return bool(hosts)
    return any(_may_be_equal(host, server.host) for host in hosts)


def _may_be_equal(listening: str, host: str) -> bool:
    """Return whether a host may be the one on which a listener listens."""
    (version, own), (other_version, other) = _form(listening), _form(host)
    return listening in _EVERYWHERE or version != other_version or own == other


def _form(host: str) -> tuple[int, str]:
    """Return the version of an IP address, 0 for a name, and the host in a form to compare."""
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return 0, host.split(".", maxsplit=1)[0].lower()
    return address.version, str(address)


def standalone(config: BrokerConfig, directory: bytes) -> VoterSet:
    """Return the voter set of a dynamic quorum that has only this node."""
    endpoints = tuple(
        VoterEndpoint(e.name, e.host or "localhost", e.port) for e in config.controller_endpoints
    )
    return VoterSet.of([Voter(ReplicaKey(config.node_id, directory), endpoints)])


def parse_initial_controllers(config: BrokerConfig, text: str) -> VoterSet:
    """Parse ``ID@HOST:PORT:DIRECTORY,…``: a dynamic quorum's first voters, including this node."""
    listener = config.controller_listener_names[0].upper()
    voters: list[Voter] = []
    for entry in text.split(","):
        node, _, rest = entry.strip().partition("@")
        address, _, directory = rest.rpartition(":")
        try:
            host, port = parse_address("--initial-controllers", address)
            key = ReplicaKey(int(node), uuid_bytes(directory))
        except ValueError as error:
            raise ConfigError(
                f"--initial-controllers: {entry!r} is not ID@HOST:PORT:DIRECTORY ({error})"
            ) from None
        if node in {str(voter.id) for voter in voters}:
            raise ConfigError(f"--initial-controllers names node {node} more than once; remove one")
        voters.append(Voter(key, (VoterEndpoint(listener, host, port),)))
    if config.node_id not in {voter.id for voter in voters}:
        raise ConfigError(
            f"--initial-controllers does not name this node, {config.node_id}; "
            f"add {config.node_id}@HOST:PORT:DIRECTORY"
        )
    return VoterSet.of(voters)


def first_voters(
    config: BrokerConfig, how: str | None, random_bytes: RandomBytes
) -> tuple[bytes, VoterSet | None]:
    """Return the metadata directory's id, and the voters with which to format it, or None.

    ``how`` is "standalone", "none", a list of initial controllers, or None if not given.
    """
    if config.voters or not config.is_controller:
        if how not in (None, "none"):
            raise ConfigError(
                "the configuration already lists the voters; leave out "
                "--standalone and --initial-controllers"
            )
        return random_uuid(random_bytes), None
    if how is None and not is_single_voter(config):
        raise ConfigError(
            "controller.quorum.voters is not set on this controller; add --standalone, "
            "--initial-controllers or --no-initial-controllers"
        )
    if how == "none":
        return random_uuid(random_bytes), None
    if how in (None, "standalone"):
        new_id = random_uuid(random_bytes)
        return new_id, standalone(config, new_id)
    voters = parse_initial_controllers(config, how)
    return voters.key_of(config.node_id).directory_id, voters


def format_directory(
    config: BrokerConfig,
    path: str,
    cluster_id: str,
    new_id: bytes,
    voters: VoterSet | None,
    features: Mapping[str, int] = DEFAULT_FEATURES,
    extra: tuple[MetadataRecord, ...] = (),
    *,
    disks: Disks,
) -> None:
    """Write a new directory's files; ``meta.properties`` comes last and marks it as formatted.

    ``extra``: further records of a new cluster.
    """
    parameters = Format(
        cluster_id=cluster_id,
        node_id=config.node_id,
        voters=voters,
        features=features,
        extra=extra,
    )
    disk = disks.open(path)
    try:
        disk.make_directory("")
        if path == os.path.abspath(config.metadata_directory):
            disk.make_directory(f"{METADATA_TOPIC}-0")
            for name, data in metadata_files(parameters, 0).items():
                disk.replace(name, data, sync=True)
        disk.replace(names.META_PROPERTIES, meta_properties(parameters, new_id), sync=True)
    except OSError as error:
        raise CannotOpenError(refusal(path, error)) from error


def format_node(
    config: BrokerConfig,
    cluster_id: str,
    ignore_formatted: bool,
    *,
    how: str | None = None,
    features: Mapping[str, int] = DEFAULT_FEATURES,
    extra: tuple[MetadataRecord, ...] = (),
    random_bytes: RandomBytes = os.urandom,
) -> Iterator[str]:
    """Format and report every unformatted directory, as Kafka's storage tool does.

    ``extra`` are further records of a new cluster, such as credentials.
    Raises CannotOpenError if a formatted directory belongs to another node or cluster.
    """
    check_cluster_id(cluster_id)
    disks = RealDisks()
    paths = all_directories(config)
    _check_distinct(config, disks)
    formatted = {path: meta for path in paths if (meta := read_meta(path, disks)) is not None}
    if formatted and not ignore_formatted:
        raise ConfigError(
            f"{next(iter(formatted))} is already formatted; "
            "--ignore-formatted leaves such directories alone"
        )
    check(config, formatted, cluster_id)
    if len(formatted) == len(paths):
        yield "all directories are formatted already"
        return
    metadata, voters = first_voters(config, how, random_bytes)
    for path in paths:
        if path not in formatted:
            is_metadata = path == os.path.abspath(config.metadata_directory)
            own = metadata if is_metadata else random_uuid(random_bytes)
            format_directory(config, path, cluster_id, own, voters, features, extra, disks=disks)
            yield f"formatted {path} for node {config.node_id} of cluster {cluster_id}"
