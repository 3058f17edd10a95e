"""Replay, the second oracle: a run's apply log, computed again, must give the bits that the run saved.

`logged_run` reads what the run left, `phases` computes one phase on one device, `members` one of the process runtime in
processes like the run's own, `verdict` puts them together and compares.
"""
