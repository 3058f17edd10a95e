"""Command lines over the framework: flags only."""
