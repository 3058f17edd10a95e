"""When and how to switch: decisions without IO, the same in the real runtimes and the simulator."""
