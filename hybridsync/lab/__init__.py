"""Tools around training runs: simulate, test, replay, tune and report. A training run loads none of them."""
