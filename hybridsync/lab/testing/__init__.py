"""Drawn schedules and the checks that must hold, for our tests and for authors of protocols."""
