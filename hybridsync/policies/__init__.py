"""Policies: when to switch, as pure objects that every runtime and the simulator ask alike."""
