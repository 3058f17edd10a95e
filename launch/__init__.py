"""`python -m launch.COMMAND`: the subcommands of `hybridsync`, from a checkout."""
