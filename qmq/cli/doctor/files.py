"""What is wrong with the files of a node, and with the machine that it runs on, or is to run on.

The data directory is written to, by one temporary file that measures its disk. Nothing else changes. All of it blocks.
"""

import errno
import os
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final

from qmq.address import Address
from qmq.config import NodeSettings, PeersFile, load
from qmq.config.certificates import expiry_of
from qmq.config.limits import DESCRIPTORS_KEPT
from qmq.config.load import named_peers
from qmq.errors import ConfigError
from qmq.sessions.clients.memory_budget import available_bytes

from ..config import check_files
from ..options import overrides
from ..output import byte_size, counted
from .findings import FREE_BYTES_MIN, FSYNC_SECONDS_SLOW, DoctorFinding
from .processes import process_at

EXPIRES_SOON_SECONDS: Final = 30 * 86_400
FSYNCS: Final = 16

NETWORK_FILES: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "ceph", "fuse.glusterfs", "9p"})
VOLATILE_FILES: Final = frozenset({"tmpfs", "ramfs"})


def findings_of_files(
    config_file: Path | None, peers_file: Path | None, node_name: str | None, data: Path | None
) -> list[DoctorFinding]:
    """What is wrong, beginning with the files: if these have errors, nothing else is looked at."""
    where = "configuration"
    try:
        notes = check_files(config_file, peers_file or named_peers(config_file), node_name, overrides(data))
    except ConfigError as error:
        return [
            DoctorFinding("error", where, line, "Correct the file (docs/configuration.md).")
            for line in error.diagnostics
        ]
    found = [DoctorFinding("warning", where, note, "") for note in notes]
    try:
        settings, peers = load(config_file, peers_file, node_name, overrides(data))
    except ConfigError:
        advice = "Name the node with --node to check its addresses, disk and limits, too."
        return [
            *found,
            DoctorFinding("info", where, "the files are for all nodes: this machine was not checked", advice),
        ]
    return [
        *found,
        *_certificates(settings),
        *_addresses(settings, peers, config_file),
        *_disk(settings),
        *_limits(settings),
    ]


def _certificates(settings: NodeSettings) -> Iterator[DoctorFinding]:
    of_links = [settings.mesh.tls] if settings.mesh.tls is not None else []
    for tls in {one.certificate: one for one in (*of_links, *(one.tls for one in settings.listeners)) if one}.values():
        days = (expiry_of(tls) - time.time()) / 86_400
        if days * 86_400 <= EXPIRES_SOON_SECONDS:
            advice = "Renew it (qmq cert renew), then reload the node (SIGHUP)."
            yield DoctorFinding("warning", str(tls.certificate), f"expires in {days:.0f} days", advice)


def _addresses(settings: NodeSettings, peers: PeersFile | None, config_file: Path | None) -> Iterator[DoctorFinding]:
    """Addresses where the node cannot listen. Those that this very node has now are none."""
    own = peers.peer(settings.name) if peers is not None else None
    wanted = [one.address for one in settings.listeners] + ([own.mesh] if own is not None else [])
    for address in wanted:
        error = _refusal(address)
        if error is None:
            continue
        holder = process_at(address.port) if error.errno == errno.EADDRINUSE else None
        if holder is not None and holder.serves(config_file, settings.name):
            continue
        why, advice = error.strerror or str(error), "Change the address, or add it to this machine."
        if error.errno == errno.EADDRINUSE:
            named = "`ss -ltnp` names it" if holder is None else f"process {holder.id}, {holder.words[0]}"
            why, advice = "another process listens there", f"Stop that process ({named}), or change the port."
        elif error.errno == errno.EACCES:
            why, advice = "not allowed", "Ports below 1024 need CAP_NET_BIND_SERVICE: use a larger one."
        yield DoctorFinding("error", str(address), f"the node cannot listen: {why}", advice)


def _refusal(address: Address) -> OSError | None:
    """Why a node cannot listen at this address; None if it can."""
    try:
        family, _, _, _, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        socket.create_server(place[:2], family=family).close()
    except OSError as error:
        return error
    return None


def _disk(settings: NodeSettings) -> Iterator[DoctorFinding]:
    if settings.directory is None:
        return
    data = settings.directory.absolute()
    place = next(one for one in (data, *data.parents) if one.exists())
    if not is_writable(place):
        yield DoctorFinding(
            "error", str(place), "the node cannot write there", "Give the directory to the user of the node."
        )
        return
    kind = file_system_of(place, Path("/proc/self/mounts").read_text("utf-8", "replace"))
    if kind in NETWORK_FILES:
        advice = "Use a local disk: confirmed messages are only as safe as the fsync of this file system."
        yield DoctorFinding("warning", str(place), f"is on a network file system ({kind})", advice)
    if kind in VOLATILE_FILES:
        yield DoctorFinding(
            "warning", str(place), f"is in memory ({kind})", "Use a disk: all of it ends with the machine."
        )
    free, reserve = shutil.disk_usage(place).free, settings.storage.disk_reserve_bytes
    if free <= reserve:
        advice = "Free disk space, or lower storage.disk_reserve_bytes."
        yield DoctorFinding("error", str(place), f"has {byte_size(free)} free: SENDs are refused", advice)
    elif free < FREE_BYTES_MIN:
        yield DoctorFinding("warning", str(place), f"has {byte_size(free)} free", "Free disk space before queues grow.")
    seconds = fsync_seconds(place)
    if seconds > FSYNC_SECONDS_SLOW and settings.storage.sync == "always":
        advice = "Receipts wait for it: use a faster disk, or storage.sync (docs/configuration.md)."
        yield DoctorFinding(
            "warning", str(place), f"an fsync takes {seconds * 1000:.0f} ms (median of {FSYNCS})", advice
        )


def is_writable(place: Path) -> bool:
    """Whether this process can make files in it."""
    return place.is_dir() and os.access(place, os.W_OK | os.X_OK)


def file_system_of(place: Path, mounts: str) -> str:
    """The type of the file system that holds `place`, by the lines of /proc/mounts (proc_mounts(5)); "" if unknown."""
    found = ("", "")
    for line in mounts.splitlines():
        _, point, kind, *_ = *line.split(" "), "", "", ""
        point = point.encode("latin-1", "replace").decode("unicode_escape", "replace")
        # Of two mounts at one place the later one counts.
        if place.is_relative_to(point or "/") and len(point) >= len(found[0]):
            found = (point, kind)
    return found[1]


def fsync_seconds(folder: Path) -> float:
    """How long an fsync of 4 KiB takes in this folder: the median of FSYNCS."""
    taken = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(FSYNCS):
            file.write(bytes(4096))
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            taken.append(time.perf_counter() - began)
    return median(taken)


def _limits(settings: NodeSettings) -> Iterator[DoctorFinding]:
    wanted = settings.limits.connections_max
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < wanted + DESCRIPTORS_KEPT:
        room = counted(max(1, hard - DESCRIPTORS_KEPT), "connection")
        advice = "Raise LimitNOFILE of the unit (`ulimit -Hn` of a shell), or lower limits.connections_max."
        yield DoctorFinding(
            "warning", "limits.connections_max", f"is {wanted}, and open files leave room for {room}", advice
        )
    memory = available_bytes()
    bytes_max = settings.limits.memory_bytes_max or 0
    if bytes_max > memory * 8 // 10:
        advice = "Leave a fifth for the process itself and the system."
        message = f"is {byte_size(bytes_max)}, and the machine has {byte_size(memory)}"
        yield DoctorFinding("warning", "limits.memory_bytes_max", message, advice)
