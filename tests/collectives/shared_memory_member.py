"""A process that takes part in rounds until it is told otherwise: one JSON command a line, one JSON answer a line.

{"phase": number, "members": places}: begin a phase; {"rounds": n}: go through so many, or until a peer is gone. In each
round a member writes the round's number into its region, and reads its peers'.
"""

from __future__ import annotations

import json
import sys

import numpy as np

from hybridsync.collectives.shared_memory.rounds import CONTRIBUTED, REDUCED, Rounds
from hybridsync.collectives.shared_memory.service import join
from hybridsync.collectives.shared_memory.slab import Area
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import PhaseRevoked
from hybridsync.core.plan import PhaseId


def main(address: str, place: int, num_places: int, nbytes: int) -> None:
    joined = join(address, place, place, 10.0)
    area = Area.after_words(joined.file, num_places, nbytes)
    area.reserve(place)
    written = [area.contribution(at).view(np.int64) for at in range(num_places)]
    rounds: Rounds | None = None
    peers: list[int] = []
    print(json.dumps({"joined": place}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if "phase" in command:
            peers = [member for member in command["members"] if member != place]
            phase = PhaseId(command["phase"], 5)
            rounds = Rounds(joined.words, joined.doorbells, place, lambda at: at, phase, command["members"])
            print(json.dumps({"phase": command["phase"]}), flush=True)
            continue
        assert rounds is not None
        number = 0
        try:
            for number in range(1, command["rounds"] + 1):
                written[place][-1] = number
                for stage in (CONTRIBUTED, REDUCED):
                    rounds.reach(number, stage, peers)
                    rounds.await_peers(number, stage, peers)
                    assert stage == REDUCED or all(written[peer][-1] == number for peer in peers)
            print(json.dumps({"rounds": number}), flush=True)
        except PhaseRevoked as revoked:
            print(json.dumps({"revoked": str(revoked), "at": SYSTEM_CLOCK.monotonic()}), flush=True)
            rounds.leave()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
