"""Finds out on which kind of file system a folder lies, by the kernel's table of mounts. Pure."""

from __future__ import annotations

import re

IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs", "proc", "sysfs", "devpts"})
"""Kinds that no other host sees: they are in this machine's memory. Another kind may be shared or not."""


def kind_of(path: str, mounts: str) -> str:
    r"""Return the kind of the file system that holds a path; "" where the table does not say.

    Args:
      path: absolute, without symbolic links.
      mounts: text of /proc/self/mountinfo.

    >>> table = "21 1 8:1 / / rw - ext4 /dev/sda rw\n22 21 0:3 / /my\\040runs rw shared:3 - tmpfs tmpfs rw\n"
    >>> kind_of("/home/me", table), kind_of("/my runs/1", table), kind_of("/my", table)
    ('ext4', 'tmpfs', 'ext4')
    """
    found, longest = "", -1
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        words = before.split()
        if len(words) < 5 or not after:
            continue
        place = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), words[4])
        inside = path == place or path.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= longest:  # of two mounts at one place the later one is seen
            found, longest = after.split()[0], len(place)
    return found
