"""Package the framework with the files of `configs/` in it as `hybridsync.recipes`; see pyproject.toml for the rest."""

from setuptools import find_packages, setup

RECIPES = ["hybridsync.recipes", "hybridsync.recipes.scenarios"]

setup(
    packages=[*find_packages(include=["hybridsync", "hybridsync.*"]), *RECIPES],
    package_dir={"hybridsync.recipes": "configs"},
    # An entry of sys.path. By default it would be a finder that comes after sys.path: where a clone's folder is called
    # hybridsync, a script beside it would import that folder.
    options={"editable_wheel": {"mode": "compat"}},
)
