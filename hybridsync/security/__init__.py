"""Says who a process of a run is to those on other hosts, and what each may ask of whom."""
