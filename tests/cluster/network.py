"""The network of a cluster: each node has its own address, and links between them can be cut.

With root's rights on Linux, each node is in a network namespace, and all are on one bridge, whose own address is that
of PostgreSQL and the clients. Otherwise the nodes have loopback addresses, and no link can be cut.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NAMESPACES = Path("/run/netns")
_PREFIX = "rdr"


@dataclass(frozen=True)
class Network:
    """Addresses, and for each node the namespace that it is in (None: no namespaces)."""

    host: str
    nodes: tuple[str, ...]
    name: str | None = None

    @property
    def can_cut(self) -> bool:
        """Whether links can be cut."""
        return self.name is not None

    @property
    def allowed(self) -> str:
        """The addresses that PostgreSQL lets in."""
        return f"{self.host.rpartition('.')[0]}.0/24"

    def inside(self, node: int) -> list[str]:
        """Return the words before a command that runs at a node's address."""
        return [_found("ip"), "netns", "exec", self._namespace(node)] if self.name else []

    @contextlib.contextmanager
    def nodes_apart(self) -> Iterator[None]:
        """Cut the links between the nodes; each still reaches PostgreSQL and the clients."""
        try:
            self._isolate("on")
            yield
        finally:
            self._isolate("off")

    @contextlib.contextmanager
    def node_alone(self, node: int) -> Iterator[None]:
        """Cut a node from everyone."""
        _ip("link", "set", self._link(node), "down")
        try:
            yield
        finally:
            _ip("link", "set", self._link(node), "up")

    def _isolate(self, whether: str) -> None:
        for node in range(len(self.nodes)):
            subprocess.run(
                [_found("bridge"), "link", "set", "dev", self._link(node), "isolated", whether],
                check=True,
                capture_output=True,
            )

    def _namespace(self, node: int) -> str:
        return f"{self.name}-{node + 1}"

    def _link(self, node: int) -> str:
        return f"{self.name}v{node + 1}"

    def make(self) -> None:
        """Make the bridge, the namespaces and the links."""
        _ip("link", "add", str(self.name), "type", "bridge")
        _ip("addr", "add", f"{self.host}/24", "dev", str(self.name))
        _ip("link", "set", str(self.name), "up")
        for node, address in enumerate(self.nodes):
            space, link = self._namespace(node), self._link(node)
            _ip("netns", "add", space)
            _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", link, "master", str(self.name), "up")
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _ip("-n", space, "link", "set", device, "up")

    def remove(self) -> None:
        """Remove them."""
        for node in range(len(self.nodes)):
            _quietly("netns", "del", self._namespace(node))
        _quietly("link", "del", str(self.name))


@contextlib.contextmanager
def made_network(nodes: int) -> Iterator[Network]:
    """Make a network for so many nodes, and remove it at the end."""
    if not _may_make_namespaces():
        print(
            "No network namespaces here (they need root and `ip`): loopback addresses, and no link is cut.", flush=True
        )
        yield Network("127.0.0.1", tuple(f"127.0.0.{11 + node}" for node in range(nodes)))
        return
    _sweep()
    subnet = f"10.213.{os.getpid() % 256}"
    network = Network(f"{subnet}.1", tuple(f"{subnet}.{11 + node}" for node in range(nodes)), f"{_PREFIX}{os.getpid()}")
    try:
        network.make()
        yield network
    finally:
        network.remove()


def _may_make_namespaces() -> bool:
    return os.geteuid() == 0 and shutil.which("ip") is not None and _quietly("link", "show", "type", "veth")


def _sweep() -> None:
    """Remove what a killed process left behind."""
    for space in _NAMESPACES.glob(f"{_PREFIX}*-*"):
        owner = space.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            _quietly("netns", "del", space.name)
            _quietly("link", "del", f"{_PREFIX}{owner}")


def _found(program: str) -> str:
    return shutil.which(program) or program


def _ip(*words: str) -> None:
    subprocess.run([_found("ip"), *words], check=True, capture_output=True)


def _quietly(*words: str) -> bool:
    return subprocess.run([_found("ip"), *words], check=False, capture_output=True).returncode == 0
