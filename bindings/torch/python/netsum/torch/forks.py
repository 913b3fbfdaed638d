"""Children of fork() must not keep a dead rank's connections open.

A DataLoader worker inherits every descriptor of its rank. Were the rank killed, its Gloo connections would live on in the
worker, and the other ranks would wait for their time-out instead of seeing them closed. So a child gives up what was opened
while its rank's groups were built. The numbers stay taken (by /dev/null): nothing that the child opens later can be mistaken
for them by the dead copies of the library in it.
"""

import os
import socket
import stat

_inherited = {}  # descriptor -> inode of the socket that was opened


def network_sockets(port=None):
    """{descriptor: inode} of this process's internet sockets; of those with `port` at one of their ends, if it is given."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISSOCK(status.st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as copy:
                if copy.family in (socket.AF_INET, socket.AF_INET6) and (port is None or port in _ports(copy)):
                    found[descriptor] = status.st_ino
        except OSError:  # closed meanwhile
            continue
    return found


def _ports(connection):
    yield connection.getsockname()[1]
    try:
        yield connection.getpeername()[1]
    except OSError:  # it listens
        return


def keep_from_children(before, store):
    """Marks the sockets that were opened since `before`, an earlier network_sockets(), and those of the store."""
    for descriptor, inode in network_sockets().items():
        if before.get(descriptor) != inode:
            _inherited[descriptor] = inode
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if hasattr(store, "port"):
        _inherited.update(network_sockets(store.port))


def _after_fork_in_child():
    if not _inherited:
        return
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor, inode in _inherited.items():
        try:
            status = os.fstat(descriptor)
            if stat.S_ISSOCK(status.st_mode) and status.st_ino == inode:
                os.dup2(null, descriptor, inheritable=False)
        except OSError:
            continue
    os.close(null)
    _inherited.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
