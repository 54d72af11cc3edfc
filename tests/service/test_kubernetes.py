"""The manifests are what Kubernetes takes, and agree with the service's own settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from threadcast.core.settings import Settings
from threadcast.service.settings import ServiceSettings

pytestmark = pytest.mark.system

MANIFESTS = list(yaml.safe_load_all(
    (Path(__file__).parents[2] / "deploy" / "kubernetes" / "threadcast.yml").read_text()
))  # fmt: skip


def manifest(kind: str) -> dict[str, Any]:
    (found,) = [document for document in MANIFESTS if document["kind"] == kind]
    return dict(found)


POD = manifest("Deployment")["spec"]["template"]["spec"]
(SERVICE,) = POD["containers"]


@pytest.mark.parametrize("document", MANIFESTS, ids=lambda document: document["kind"])
def test_kubernetes_takes_each_manifest(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_the_settings_are_settings_of_the_service_and_the_pod_waits_for_its_grace(tmp_path: Path) -> None:
    given = {**manifest("ConfigMap")["data"], "THREADCAST_STORE": "postgresql+psycopg://somebody@host/name"}
    settings = ServiceSettings.from_settings(Settings.read({}, directory=tmp_path, environment=given))
    assert settings.keys == Path("/etc/threadcast/keys.json")
    assert settings.rate_limit == "6000/minute"
    before_s = int(SERVICE["lifecycle"]["preStop"]["exec"]["command"][1])
    assert POD["terminationGracePeriodSeconds"] >= before_s + settings.stops_within_s + 5
    usual = Settings.read({}, directory=tmp_path, environment={})
    assert SERVICE["ports"][0]["containerPort"] == usual["service.port"]


def test_pods_write_only_where_the_service_writes_and_are_nobody() -> None:
    jobs = manifest("CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    for pod in (POD, jobs):
        assert pod["securityContext"]["runAsNonRoot"]
        assert not pod["automountServiceAccountToken"]
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            contained = container["securityContext"]
            assert contained["readOnlyRootFilesystem"]
            assert not contained["allowPrivilegeEscalation"]
            assert contained["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]
            named = {volume["name"] for volume in pod["volumes"]}
            assert {mount["name"] for mount in container["volumeMounts"]} <= named
