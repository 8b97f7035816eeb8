"""The chart's four commands (install, upgrade, test, uninstall), beside a CRD of every origin."""

from __future__ import annotations

from pathlib import Path

from support.kubernetes import Kubernetes, Namespace, demo_spec, helm, images

CHART = str(Path(__file__).parents[2] / "charts" / "orca")
CRD = "orcadeployments.orca-serving.io"
RELEASE_NAME = "meta.helm.sh/release-name"
RELEASE_NAMESPACE = "meta.helm.sh/release-namespace"
MANAGED_BY = "app.kubernetes.io/managed-by"


def release(command: str, name: str, namespace: str, *values: str) -> str:
    """Run helm install or upgrade of the chart and return its output, NOTES included."""
    common = ("--namespace", namespace, *images(), "--wait", "--timeout", "120s")
    return helm(command, name, CHART, *common, *(word for value in values for word in ("--set", value))).stdout


def crd_uid(cluster: Kubernetes) -> str:
    return cluster.kubectl("get", "crd", CRD, "-o", "jsonpath={.metadata.uid}")


def test_a_release_beside_a_crd_of_kubectl(cluster: Kubernetes, operator: str, namespace: Namespace):
    """`kubectl apply -f crds/` and then `helm install`, as the README offers both; then the hand-over of the NOTES.

    The CRD of the operator's release is made to look as kubectl leaves it: without the marks of helm.
    """
    cluster.kubectl("annotate", "crd", CRD, f"{RELEASE_NAME}-", f"{RELEASE_NAMESPACE}-")
    cluster.kubectl("label", "crd", CRD, f"{MANAGED_BY}-")
    uid = crd_uid(cluster)
    rules = f"crds.celRules={str(cluster.has_cel).lower()}"
    try:
        namespace.deploy(demo_spec(suspend=True))
        notes = release("install", "second", namespace.name, rules)
        assert "was installed by kubectl" in notes
        hand_over = [
            line.split()[1:] for line in notes.splitlines() if line.startswith("   kubectl ") and f"crd {CRD}" in line
        ]
        assert hand_over[0][-2:] == [f"{RELEASE_NAME}=second", f"{RELEASE_NAMESPACE}={namespace.name}"]
        assert "Succeeded" in helm("test", "second", "--namespace", namespace.name).stdout

        pods = ("deployment", "second")
        assert "annotations" not in namespace.get(*pods)["spec"]["template"]["metadata"]
        for command in hand_over:
            cluster.kubectl(*command)
        notes = release("upgrade", "second", namespace.name, rules, "podAnnotations.team=a")
        assert CRD not in notes
        assert CRD in helm("get", "manifest", "second", "--namespace", namespace.name).stdout
        assert namespace.get(*pods)["spec"]["template"]["metadata"]["annotations"] == {"team": "a"}
        assert "Succeeded" in helm("test", "second", "--namespace", namespace.name).stdout

        helm("uninstall", "second", "--namespace", namespace.name)
        assert "NotFound" in namespace.kubectl("get", *pods, check=False)
        assert crd_uid(cluster) == uid, "the CRD and the deployments of its kind stay"
        assert namespace.get("orca", "demo")["spec"]["suspend"] is True
    finally:
        owner = (f"{RELEASE_NAME}=orca", f"{RELEASE_NAMESPACE}={operator}")
        cluster.kubectl("annotate", "--overwrite", "crd", CRD, *owner)
        cluster.kubectl("label", "--overwrite", "crd", CRD, f"{MANAGED_BY}=Helm")


def test_a_release_that_brings_its_crd(cluster: Kubernetes, operator: str, namespace: Namespace):
    """An upgrade reaches the release's own CRD; the CRD outlives the release, and a later release takes it up again."""
    uid = crd_uid(cluster)
    values = ("clusterWide=true", f"crds.celRules={str(cluster.has_cel).lower()}")
    notes = release("upgrade", "orca", operator, *values)
    assert CRD not in notes, "nothing is to be said of a CRD that the release owns"
    assert CRD in helm("get", "manifest", "orca", "--namespace", operator).stdout
    namespace.deploy(demo_spec(suspend=True))
    helm("uninstall", "orca", "--namespace", operator)
    assert crd_uid(cluster) == uid
    assert namespace.get("orca", "demo")["spec"]["suspend"] is True
    release("install", "orca", operator, *values)
    assert crd_uid(cluster) == uid
    namespace.wait_reason("Suspended", 60)


def test_a_release_beside_another_releases_crd(cluster: Kubernetes, operator: str, namespace: Namespace):
    notes = release("install", "second", namespace.name, f"crds.celRules={str(cluster.has_cel).lower()}")
    assert f"was installed by the release {operator}/orca" in notes
    assert CRD not in helm("get", "manifest", "second", "--namespace", namespace.name).stdout
    helm("uninstall", "second", "--namespace", namespace.name)
    crd_uid(cluster)
