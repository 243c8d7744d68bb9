"""Every test runs on one thread, with the shapes and types in the signatures of the attention algebra checked."""

from jaxtyping import install_import_hook

import tests.attention.typechecking  # noqa: F401 (the hook names it)

install_import_hook("termwise.attention", "tests.attention.typechecking.check")

import torch  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

torch.set_num_threads(1)

# The same examples every time, on every machine; a slow machine is no failure.
settings.register_profile(
    "fixed", derandomize=True, deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fixed")
