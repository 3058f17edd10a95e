"""An unsuited jaxlib is refused with an error that names the missing part."""

from __future__ import annotations

import pytest

from hybridsync.core import jax_internals
from hybridsync.core.errors import HybridSyncError


def test_a_jaxlib_without_what_is_needed_is_refused_by_name() -> None:
    with pytest.raises(HybridSyncError, match=r"jaxlib [\d.]+ does not offer jaxlib\._jax .*has no no_such_thing"):
        jax_internals.private("jaxlib._jax", "get_distributed_runtime_service", "no_such_thing")
    with pytest.raises(HybridSyncError, match=r"does not offer jaxlib\._gone"):
        jax_internals.private("jaxlib._gone", "anything")
    (make,) = jax_internals.private("jaxlib._jax", "get_distributed_runtime_service")
    with pytest.raises(HybridSyncError, match="does not offer the service"):
        jax_internals.construct("the service", make, "127.0.0.1:0", 1, renamed=1)
