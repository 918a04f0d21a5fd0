"""Two identities, each limited to its own folders by the conditions of deploy/terraform.

Runs where `KBQ_TEST_GCP_STAGING` names the module's staging area. The suite's own credentials see that it is so.
"""

from __future__ import annotations

import os

import pytest

from kbq_assets.adapters.gcs import open_gcs_store
from kbq_assets.adapters.google.auth import GoogleAccess
from kbq_assets.core.config.roles import Role
from kbq_assets_tests.google.folders import wrong_folders
from kbq_assets_tests.google.project.place import Place

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("role", Role)
def test_an_identity_writes_in_its_own_folders_alone(gcp: Place, corner: str, role: Role) -> None:
    place, credentials = os.environ["KBQ_TEST_GCP_STAGING"], os.environ[f"KBQ_TEST_GCP_{role.upper()}"]
    theirs = open_gcs_store(place, GoogleAccess(credentials, gcp.gcs.endpoint))
    assert wrong_folders(role, theirs, open_gcs_store(place, gcp.gcs), corner) == []
