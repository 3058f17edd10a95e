"""Says where the roles of a host serve: on sockets in a folder of the user's own, or at ports of one address."""

from __future__ import annotations

from hybridsync.core.addresses import at_port
from hybridsync.core.errors import AddressError
from hybridsync.runtime.socket_folder import SocketFolder

LOOPBACK = "127.0.0.1"


class RoleAddresses:
    """Holds the addresses of a run's roles on this host.

    Args:
      host: address at whose ports the roles serve; "" for sockets, which no other user can reach. The process group is
        served on a socket in any case, if there is a place for it.
      port: port of the chief; 0 takes a free one.
      num_hosts: number of hosts of the run; on several, everything is at ports of this one's address.

    Attributes:
      host: address for services that support TCP only.

    Raises:
      AddressError: there is no place for sockets, and no host.
    """

    def __init__(self, host: str = "", port: int = 0, *, num_hosts: int = 1) -> None:
        self.host = host or LOOPBACK
        self._port, self._serves_at_ports = port, bool(host)
        self._folder: SocketFolder | None = None
        try:
            self._folder = SocketFolder() if num_hosts == 1 else None
        except AddressError:
            if not host:
                raise
        self._num_services = 0

    def of(self, role: str, role_id: int, restart_count: int) -> str:
        """Return where a process serves; a chief that replaces another one does so at the same socket."""
        is_chief = role == "chief"
        if self._folder is None or self._serves_at_ports:
            return at_port(self.host, self._port if is_chief else 0)
        return self._folder.address(role if is_chief else f"{role}-{role_id}-{restart_count}")

    @property
    def are_sockets(self) -> bool:
        """Return whether the roles serve on sockets."""
        return self._folder is not None and not self._serves_at_ports

    @property
    def has_sockets(self) -> bool:
        """Return whether there is a place for sockets."""
        return self._folder is not None

    def keep_sockets(self) -> bool:
        """Make the folder of the sockets again if it is gone; returns whether it had to be made.

        Raises:
          AddressError: it cannot be made.
        """
        return self._folder is not None and self._folder.keep()

    def next_service(self) -> str:
        """Return where the next service that the workers join is served."""
        self._num_services += 1
        return at_port(self.host) if self._folder is None else self._folder.address(f"group-{self._num_services}")

    def close(self) -> None:
        """Remove the sockets; nothing happens the second time."""
        if self._folder is not None:
            self._folder.remove()
