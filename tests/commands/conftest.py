"""What tests of the commands share."""

from collections.abc import Iterator

import pytest

from tests.learner.groups import keeping


@pytest.fixture(scope="module")
def kept_ranks(ray_cluster: None) -> Iterator[None]:
    """Supervised learners of a file share the processes of their ranks, one learner after the other."""
    with keeping("learner.supervised_group.Ranks"):
        yield
