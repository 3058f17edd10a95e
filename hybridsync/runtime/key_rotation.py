"""Gives the roles of a run new keys when they are due, wherever they run, and ends the sessions of revoked hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hybridsync.runtime.host_messages import GiveKeys, Key
from hybridsync.runtime.placement import Placement
from hybridsync.runtime.run_hosts import RunHosts
from hybridsync.runtime.run_keys import RunKeys
from hybridsync.runtime.running_role import RunningRole


def rotate_if_due(
    keys: RunKeys,
    hosts: RunHosts,
    running: Mapping[Key, RunningRole],
    placement: Placement,
    say: Callable[[str], None],
) -> None:
    """Look whether new keys are due, and give them to every role, and to those that are being started with older ones.

    A revoked host's session ends first, so that nothing new reaches it. The user is told of certificates that end soon.
    """
    for line in keys.expiring():
        say(line)
    is_due, revoked = keys.look()
    for host in revoked:
        hosts.refuse(host, f"the certificate of host {host} was revoked")
    if is_due:
        places = {key: role.host for key, role in running.items()} | placement.starting_at()
        for key, host in places.items():
            hosts.give_keys(host, GiveKeys(*key, keys.of(*key)))
        say(f"{len(places)} roles were given a new token and new certificates")
