"""The rendered objects: golden YAML (`--update-golden` writes it), valid for Kubernetes 1.36, restricted pods."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from orca_contract.message import read
from orca_contract.topology import Topology
from orca_operator import names
from orca_operator.actions import Apply
from orca_operator.manifests import access, boot
from orca_operator.observe import Observed
from orca_operator.plan import plan
from support.orcadeployments import MINIMAL, UID, context, example, merged, view
from support.pod_security import CONTROLS, violations

GOLDEN = Path(__file__).parent / "golden"
EXAMPLES = ("demo-cpu", "gpt2-gpu", "llama-70b", "orca-175b")
EVERYTHING = {
    **MINIMAL,
    "model": {"uri": "hf://a/b", "revision": "v1", "secretRef": {"name": "token"}, "cache": {"sizeLimit": "1Gi"}},
    "parallelism": {"pipelineParallelSize": 2, "tensorParallelSize": 2},
    "replicas": 3,
    "communication": {"rdmaResource": "rdma/hca", "socketInterface": "eth0", "env": {"NCCL_DEBUG": "INFO"}},
    "imagePullSecrets": [{"name": "registry"}],
    "service": {"type": "LoadBalancer", "annotations": {"a": "b"}, "labels": {"c": "d"}},
    "auth": {"apiKeySecretRef": {"name": "keys", "key": "list"}},
    "podDisruptionBudget": {"enabled": True},
    "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
    "master": {"apiProcesses": 2, "priorityClassName": "high", "env": [{"name": "POD_IP", "value": "mine"}]},
    "worker": {
        "image": "my/worker:1",
        "resources": {"requests": {"cpu": 4}, "limits": {"memory": "8Gi"}},
        "nodeSelector": {"gpu": "a100"},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}}},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "runtimeClassName": "nvidia",
        "volumes": [{"name": "extra", "emptyDir": {}}],
        "volumeMounts": [{"name": "extra", "mountPath": "/extra"}],
        "initContainers": [{"name": "mine", "image": "busybox", "securityContext": {
            "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}],
        "labels": {"team": "x"},
        "annotations": {"sidecar.istio.io/inject": "true"},
    },
}  # fmt: skip


def manifests(spec: dict, name: str = "demo") -> list[dict]:
    return [action.manifest for action in plan(context(spec, name), view(Observed())) if isinstance(action, Apply)]


@pytest.mark.parametrize(("spec", "count"), [(MINIMAL, None), (EVERYTHING, 2)], ids=["minimal", "all"])
def test_the_master_is_told_of_its_api_processes(spec, count):
    (boot,) = (found for found in manifests(spec) if "master.yaml" in found.get("data", {}))
    assert yaml.safe_load(boot["data"]["master.yaml"]).get("api-processes") == count


@pytest.mark.parametrize(
    ("master", "source", "window"),
    [
        ({}, {"emptyDir": {"sizeLimit": "512Mi"}}, "300"),
        ({"journal": {"resumeWindowSeconds": 5}}, {"emptyDir": {"sizeLimit": "512Mi"}}, "5"),
        ({"journal": {"claimName": "c"}}, {"persistentVolumeClaim": {"claimName": "c"}}, "300"),
        ({"apiProcesses": 1, "journal": {"resumeWindowSeconds": 5}}, None, None),
        ({"journal": {"claimName": "c", "enabled": False}}, None, None),
    ],
)
def test_the_master_has_a_journal_that_survives_its_container_or_its_pod(master, source, window):
    (deployment,) = (found for found in manifests(merged(MINIMAL, master=master)) if found["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    volumes = {volume.pop("name"): volume for volume in pod["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert volumes.get("orca-journal") == source
    assert ("orca-journal" in mounts) == ("--journal" in container["args"]) == (source is not None)
    assert ("fsGroup" in pod["securityContext"]) == ("persistentVolumeClaim" in (source or {}))
    if source is not None:
        options = dict(zip(container["args"], container["args"][1:], strict=False))
        shared = source.keys() == {"persistentVolumeClaim"}  # by the masters of two revisions during a rollout
        folder = f"requests-{context(merged(MINIMAL, master=master)).revision}" if shared else "requests"
        assert (options["--journal"], options["--resume-window"]) == (f"{mounts['orca-journal']}/{folder}", window)


def test_a_master_with_a_collector_names_itself_in_its_spans():
    """Kubernetes expands $(POD_NAME), which the container has before it, and a variable in the URL."""

    def container(master: dict) -> dict:
        (deployment,) = (found for found in manifests(merged(MINIMAL, master=master)) if found["kind"] == "Deployment")
        (found,) = deployment["spec"]["template"]["spec"]["containers"]
        return found

    url = "http://$(HOST_IP):4317"
    own = [{"name": "OTEL_SERVICE_NAME", "value": "mine"}]
    traced = container({"otlpTracesEndpoint": url, "env": own})
    options = dict(zip(traced["args"], traced["args"][1:], strict=False))
    assert options["--otlp-traces-endpoint"] == url
    order = [entry["name"] for entry in traced["env"]]
    values = {entry["name"]: entry.get("value") for entry in traced["env"]}
    assert order.index("POD_NAME") < order.index("OTEL_RESOURCE_ATTRIBUTES")
    revision = context(merged(MINIMAL, master={"otlpTracesEndpoint": url, "env": own})).revision
    assert values["OTEL_RESOURCE_ATTRIBUTES"] == (
        f"k8s.namespace.name=default,k8s.deployment.name=demo-{revision}-master,"
        "k8s.pod.name=$(POD_NAME),k8s.pod.uid=$(POD_UID)"
    )
    assert values["OTEL_SERVICE_NAME"] == "mine"
    assert {entry["name"]: entry.get("value") for entry in container({"otlpTracesEndpoint": url})["env"]}[
        "OTEL_SERVICE_NAME"
    ] == "demo"
    plain = container({})
    assert "--otlp-traces-endpoint" not in plain["args"]
    assert not [entry for entry in plain["env"] if entry["name"].startswith("OTEL_")]


@pytest.mark.parametrize(
    ("backend", "resources", "there"),
    [
        ("gloo", {}, True),  # the default request counts as one
        ("gloo", {"requests": {"memory": "2Gi"}}, True),
        ("gloo", {"limits": {"cpu": "1"}}, True),
        ("gloo", {"requests": {"memory": "2Gi"}, "limits": {"memory": "4Gi"}}, False),
        ("nccl", {"requests": {"memory": "2Gi"}}, False),
    ],
)
def test_a_cpu_worker_without_a_memory_limit_knows_its_request(backend, resources, there):
    spec = merged(MINIMAL, communication={"backend": backend}, worker={"resources": resources})
    (worker,) = (found for found in manifests(spec) if found["kind"] == "StatefulSet")
    (container,) = worker["spec"]["template"]["spec"]["containers"]
    found = [entry for entry in container["env"] if entry["name"] == "ORCA_MEMORY_REQUEST"]
    field = {"containerName": "worker", "resource": "requests.memory", "divisor": "1"}
    assert found == [{"name": "ORCA_MEMORY_REQUEST", "valueFrom": {"resourceFieldRef": field}}] * there


@pytest.mark.parametrize(
    ("backend", "device", "on_gpus"),
    [
        ("gloo", None, False),
        ("gloo", "cpu", False),
        ("gloo", "cuda", True),
        ("nccl", None, True),
        ("nccl", "cuda", True),
    ],
)
def test_only_workers_on_gpus_get_some(backend, device, on_gpus):
    spec = merged(MINIMAL, communication={"backend": backend}, worker={"device": device} if device else {})
    (worker,) = (found for found in manifests(spec) if found["kind"] == "StatefulSet")
    pod = worker["spec"]["template"]["spec"]
    assert (pod["containers"][0]["resources"].get("limits", {}).get("nvidia.com/gpu") == "1") == on_gpus
    assert any(each.get("key") == "nvidia.com/gpu" for each in pod.get("tolerations", [])) == on_gpus
    (boot,) = (found for found in manifests(spec) if found["kind"] == "ConfigMap" and "topology.json" in found["data"])
    written = json.loads(boot["data"]["topology.json"])["communication"]
    assert written.get("device") == device, "masters of older versions know no device"
    assert Topology.model_validate_json(boot["data"]["topology.json"]).communication.workers_device == (
        "cuda" if on_gpus else "cpu"
    )


@pytest.mark.parametrize(
    ("uri", "draft_path", "path"),
    [
        ("file:///models/demo", None, None),
        ("file:///models/demo", "draft", "/models/demo/draft"),
        ("file:///models/demo", "/drafts/a", "/drafts/a"),
        ("pvc://claim/llama", "draft", "/models/volume/llama/draft"),
        ("hf://a/b", "/drafts/a", "/drafts/a"),
    ],
)
def test_the_topology_has_the_draft_model_by_its_path_in_the_pods(uri, draft_path, path):
    model = {"uri": uri} | ({"draftPath": draft_path} if draft_path else {})
    (boot,) = (
        found
        for found in manifests(merged(MINIMAL, model=model, scheduler={"speculativeTokens": 4}))
        if "topology.json" in found.get("data", {})
    )
    written = json.loads(boot["data"]["topology.json"])["model"]
    assert written.get("draftPath") == path, "masters of older versions know no draft model"
    assert yaml.safe_load(boot["data"]["master.yaml"])["speculative-tokens"] == 4


def pod_specs(spec: dict) -> list[dict]:
    return [
        manifest["spec"]["template"]["spec"]
        for manifest in manifests(spec)
        if manifest["kind"] in ("Deployment", "StatefulSet")
    ]


@pytest.mark.parametrize("name", EXAMPLES)
def test_golden(name, golden):
    resource = example(name)
    objects = manifests(resource["spec"], resource["metadata"]["name"])
    golden(GOLDEN / f"{name}.yaml", yaml.safe_dump_all(objects, sort_keys=True, width=120))


@pytest.mark.parametrize("spec", [*(example(name)["spec"] for name in EXAMPLES), EVERYTHING], ids=[*EXAMPLES, "all"])
def test_valid_for_a_current_cluster(spec):
    checked = 0
    for manifest in manifests(spec):
        if manifest["kind"] != "PodMonitor":  # its schema is the Prometheus operator's
            kubernetes_validate.validate(manifest, "1.36", strict=True)
            checked += 1
    assert checked >= 8


@pytest.mark.parametrize("spec", [*(example(name)["spec"] for name in EXAMPLES), EVERYTHING], ids=[*EXAMPLES, "all"])
def test_pods_meet_the_restricted_level(spec):
    rdma = "rdmaResource" in spec.get("communication", {})
    for pod in pod_specs(spec):
        is_worker = pod["containers"][0]["name"] == names.WORKER
        assert violations(pod) == (["Capabilities"] if rdma and is_worker else [])


def test_only_the_engine_of_a_worker_with_rdma_may_lock_memory():
    pods = pod_specs(EVERYTHING)
    added = {
        container["name"]: container["securityContext"]["capabilities"]
        for pod in pods
        for container in [*pod["initContainers"], *pod["containers"]]
    }
    none = {"drop": ["ALL"]}
    assert added == {
        "mine": none,
        "fetch-model": none,
        "master": none,
        "worker": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
    }


BREACHES = {
    "HostProcess": lambda pod: pod["securityContext"].update(windowsOptions={"hostProcess": True}),
    "Host namespaces": lambda pod: pod.update(hostIPC=True),
    "Privileged containers": lambda pod: pod["containers"][0]["securityContext"].update(privileged=True),
    "Capabilities": lambda pod: pod["containers"][0]["securityContext"]["capabilities"].update(add=["SYS_ADMIN"]),
    "HostPath volumes": lambda pod: pod["volumes"].append({"name": "x", "hostPath": {"path": "/"}}),
    "Host ports": lambda pod: pod["containers"][0]["ports"][0].update(hostPort=80),
    "Host probes and lifecycle hooks": lambda pod: pod["containers"][0]["livenessProbe"]["httpGet"].update(host="a"),
    "AppArmor": lambda pod: pod["securityContext"].update(appArmorProfile={"type": "Unconfined"}),
    "SELinux": lambda pod: pod["securityContext"].update(seLinuxOptions={"user": "root"}),
    "/proc mount type": lambda pod: pod["containers"][0]["securityContext"].update(procMount="Unmasked"),
    "Sysctls": lambda pod: pod["securityContext"].update(sysctls=[{"name": "kernel.msgmax", "value": "1"}]),
    "Volume types": lambda pod: pod["volumes"].append({"name": "x", "nfs": {"server": "a", "path": "/"}}),
    "Privilege escalation": lambda pod: pod["containers"][0]["securityContext"].pop("allowPrivilegeEscalation"),
    "Running as non-root": lambda pod: pod["securityContext"].pop("runAsNonRoot"),
    "Running as non-root user": lambda pod: pod["securityContext"].update(runAsUser=0),
    "Seccomp": lambda pod: pod["securityContext"].pop("seccompProfile"),
}


@pytest.mark.parametrize("control", CONTROLS)
def test_the_check_of_the_restricted_level_notices(control):
    pod = copy.deepcopy(pod_specs(example("demo-cpu")["spec"])[0])
    BREACHES[control](pod)
    assert control in violations(pod)


def test_one_master_and_one_stateful_set_per_partition():
    for partitions in (1, 2, 3, 7):
        found = manifests(merged(MINIMAL, parallelism={"pipelineParallelSize": partitions}, replicas=2))
        kinds = [manifest["kind"] for manifest in found]
        assert kinds.count("Deployment") == 1
        assert kinds.count("StatefulSet") == partitions
        (deployment,) = (manifest for manifest in found if manifest["kind"] == "Deployment")
        assert deployment["spec"]["replicas"] == 1
        assert all(m["spec"]["replicas"] == 2 for m in found if m["kind"] == "StatefulSet")


def test_everything_is_owned_and_labelled():
    for manifest in [*manifests(EVERYTHING), access.admin_secret(context(EVERYTHING), "token")]:
        (owner,) = manifest["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == (
            "OrcaDeployment",
            "demo",
            UID,
            True,
        )
        labels = manifest["metadata"]["labels"]
        assert labels[names.DEPLOYMENT_LABEL] == "demo"
        assert labels[names.MANAGED_BY_LABEL] == "orca-operator"
        assert labels[names.PART_OF_LABEL] == "orca"
        assert names.VERSION_LABEL not in labels, "two operators of different versions would write it in turn"


def pod_labels(spec: dict) -> dict[str, dict[str, str]]:
    """Return the labels of the pods by role."""
    templates = [manifest["spec"]["template"]["metadata"]["labels"] for manifest in manifests(spec)
                 if manifest["kind"] in ("Deployment", "StatefulSet")]  # fmt: skip
    return {labels[names.ROLE_LABEL]: labels for labels in templates}


def test_endpoint_pickers_read_vllms_metrics_from_masters_unless_the_user_says_otherwise():
    labels = pod_labels(MINIMAL)
    assert labels["master"].items() >= names.ENGINE_TYPE.items()
    assert not set(labels["worker"]) & set(names.ENGINE_TYPE), "workers serve no API"
    own = {"llm-d.ai/engine-type": "orca", "pool": "demo"}
    labels = pod_labels(merged(MINIMAL, master={"labels": own}))
    assert labels["master"].items() >= (names.ENGINE_TYPE | own).items()


def test_selectors_of_services_and_policies_do_not_contain_the_revision():
    for manifest in manifests(EVERYTHING):
        spec = manifest.get("spec", {})
        if manifest["kind"] == "Service":
            assert names.REVISION_LABEL not in spec["selector"]
        elif manifest["kind"] in ("NetworkPolicy", "PodDisruptionBudget"):
            assert names.REVISION_LABEL not in str(spec)
        elif manifest["kind"] in ("Deployment", "StatefulSet"):
            assert names.REVISION_LABEL in spec["selector"]["matchLabels"]
            assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


def test_the_users_pod_settings_win():
    deployment, first, *_ = sorted(
        (m for m in manifests(EVERYTHING) if m["kind"] in ("Deployment", "StatefulSet")), key=lambda m: m["kind"]
    )
    master = deployment["spec"]["template"]["spec"]
    assert [entry for entry in master["containers"][0]["env"] if entry["name"] == "POD_IP"] == [
        {"name": "POD_IP", "value": "mine"}
    ]
    assert master["priorityClassName"] == "high"
    template = first["spec"]["template"]
    pod, (container,) = template["spec"], template["spec"]["containers"]
    assert container["image"] == "my/worker:1"
    assert container["resources"]["limits"] == {"memory": "8Gi", "nvidia.com/gpu": "2", "rdma/hca": "1"}
    assert container["resources"]["requests"] == {"cpu": "4", "nvidia.com/gpu": "2", "rdma/hca": "1"}
    assert {"key": "spot", "operator": "Exists"} in pod["tolerations"]
    assert any(toleration["key"] == "nvidia.com/gpu" for toleration in pod["tolerations"])
    assert [entry["name"] for entry in pod["initContainers"]] == ["mine", "fetch-model"]
    assert pod["runtimeClassName"] == "nvidia"
    assert pod["nodeSelector"] == {"gpu": "a100"}
    assert template["metadata"]["annotations"]["sidecar.istio.io/inject"] == "true"
    assert template["metadata"]["labels"]["team"] == "x"
    assert pod["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    ("uri", "image", "path"),
    [
        ("oci://model", "model", ""),
        ("oci://example.com:5000/team/model/v1", "example.com:5000/team/model/v1", ""),
        ("oci://localhost:5000/model:v1/a/b", "localhost:5000/model:v1", "/a/b"),
        ("oci://model:v1", "model:v1", ""),
        ("oci://model:5000/a", "model:5000/a", ""),
        (f"oci://a/b@sha256:{'0' * 64}/", f"a/b@sha256:{'0' * 64}", "/"),
        (f"oci://a/b:v1@sha256:{'0' * 64}/x", f"a/b:v1@sha256:{'0' * 64}", "/x"),
    ],
)
def test_an_image_with_the_model_is_a_volume_of_every_pod(uri, image, path):
    spec = merged(MINIMAL, model={"uri": uri}, imagePullPolicy="Always", imagePullSecrets=[{"name": "registry"}])
    objects = manifests(spec)
    assert boot.topology(context(spec), 1).model.path == f"/models/volume{path}"
    for workload in (each for each in objects if each["kind"] in ("Deployment", "StatefulSet")):
        kubernetes_validate.validate(workload, "1.36", strict=True)
        pod = workload["spec"]["template"]["spec"]
        assert {"name": "model", "image": {"reference": image, "pullPolicy": "Always"}} in pod["volumes"]
        assert {"name": "model", "mountPath": "/models/volume", "readOnly": True} in pod["containers"][0][
            "volumeMounts"
        ]
        assert "initContainers" not in pod
        assert pod["imagePullSecrets"] == [{"name": "registry"}]


def test_every_pod_fetches_only_its_part():
    shares = []
    for manifest in manifests(EVERYTHING):
        if manifest["kind"] in ("Deployment", "StatefulSet"):
            fetch = manifest["spec"]["template"]["spec"]["initContainers"][-1]
            assert fetch["args"][:6] == ["fetch", "hf://a/b", "--revision", "v1", "--into", "/models/cache/a--b/v1"]
            assert {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "token"}}} in fetch[
                "env"
            ]
            shares.append(fetch["args"][6:])
    assert shares == [["--partition", "0/2"], ["--partition", "1/2"], ["--without-weights"]]


@pytest.mark.parametrize("cache", [None, {"sizeLimit": "1Gi"}, {"claimName": "models"}])
def test_only_pods_with_a_claim_have_a_group(cache):
    """Every user may write to an emptyDir, and OpenShift refuses groups outside the namespace's range."""
    spec = merged(MINIMAL, model={"uri": "hf://a/b"} | ({"cache": cache} if cache else {}))
    for pod in pod_specs(spec):
        assert ("fsGroup" in pod["securityContext"]) == (cache == {"claimName": "models"})


@pytest.mark.parametrize(
    ("volume", "has_group"),
    [
        ({"persistentVolumeClaim": {"claimName": "batches"}}, True),
        ({"ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}}, True),
        ({"secret": {"secretName": "s", "defaultMode": 0o400}}, True),
        ({"secret": {"secretName": "s", "defaultMode": 0o444}}, False),
        ({"secret": {"secretName": "s"}}, False),
        ({"configMap": {"name": "c"}}, False),
        ({"emptyDir": {}}, False),
    ],
)
@pytest.mark.parametrize("in_template", [False, True])
def test_pods_with_a_download_keep_the_group_that_the_users_volumes_need(volume, has_group, in_template):
    """Earlier versions gave the group to all of these pods; without it the next revision could not use the volume."""
    volumes = [{"name": "mine"} | volume]
    settings = {"podTemplate": {"spec": {"volumes": volumes}}} if in_template else {"volumes": volumes}
    spec = merged(MINIMAL, model={"uri": "hf://a/b"}, master=settings)
    workers, master = pod_specs(spec)
    assert volumes[0] in master["volumes"]
    assert ("fsGroup" in master["securityContext"]) == has_group
    assert "fsGroup" not in workers["securityContext"]


def test_a_download_has_the_mounts_that_its_variables_name():
    """Such as the certificates of a private authority: without them every download fails."""
    volume = {"name": "authorities", "configMap": {"name": "authorities"}}
    mount = {"name": "authorities", "mountPath": "/etc/authorities", "readOnly": True}
    settings = {
        "env": [{"name": "SSL_CERT_FILE", "value": "/etc/authorities/ca.crt"}],
        "volumes": [volume],
        "volumeMounts": [mount],
    }
    spec = merged(MINIMAL, model={"uri": "hf://a/b"}, master=settings, worker=settings)
    for pod in pod_specs(spec):
        assert volume in pod["volumes"]
        for container in (*pod["containers"], *pod["initContainers"]):
            assert settings["env"][0] in container["env"]
            assert mount in container["volumeMounts"], container["name"]


def test_a_download_has_the_variables_of_its_mounts_paths():
    """The kubelet starts no container with a subPathExpr whose variable the container does not have."""
    mount = {"name": "mine", "mountPath": "/mine", "subPathExpr": "$(POD_NAME)-$(POD_UID)-$(POD_IP)"}
    settings = {"volumes": [{"name": "mine", "emptyDir": {}}], "volumeMounts": [mount]}
    settings |= {"env": [{"name": "POD_IP", "value": "user"}]}
    for pod in pod_specs(merged(MINIMAL, model={"uri": "hf://a/b"}, master=settings, worker=settings)):
        for container in (*pod["containers"], *pod["initContainers"]):
            assert mount in container["volumeMounts"]
            named = [variable["name"] for variable in container["env"]]
            assert {"POD_NAME", "POD_UID", "POD_IP"} <= set(named), container["name"]
            assert len(named) == len(set(named))


def test_a_download_has_no_mount_within_its_volume():
    """A container runtime makes the folders above such a mount as root, and the download could not write to them."""
    mounts = [{"name": "mine", "mountPath": path} for path in ("/models/cache/a--b/main/lora", "/models/cached")]
    settings = {"volumes": [{"name": "mine", "emptyDir": {}}], "volumeMounts": mounts}
    for pod in pod_specs(merged(MINIMAL, model={"uri": "hf://a/b"}, master=settings, worker=settings)):
        (container,), (fetch,) = pod["containers"], pod["initContainers"]
        assert [mount in container["volumeMounts"] for mount in mounts] == [True, True]
        assert [mount in fetch["volumeMounts"] for mount in mounts] == [False, True]


@pytest.mark.parametrize(
    ("propagation", "of_download"),
    [(None, None), ("None", "None"), ("HostToContainer", "HostToContainer"), ("Bidirectional", "HostToContainer")],
)
def test_a_download_passes_no_mounts_on_to_the_host(propagation, of_download):
    """The API server refuses a pod with such a mount in a container that is not privileged, as a worker may be."""
    mount = {"name": "mine", "mountPath": "/mine"} | ({"mountPropagation": propagation} if propagation else {})
    settings = {"volumes": [{"name": "mine", "hostPath": {"path": "/mine"}}], "volumeMounts": [mount]}
    for pod in pod_specs(merged(MINIMAL, model={"uri": "hf://a/b"}, master=settings, worker=settings)):
        (container,), (fetch,) = pod["containers"], pod["initContainers"]
        assert mount in container["volumeMounts"]
        mounted = {entry["mountPath"]: entry for entry in fetch["volumeMounts"]}["/mine"]
        assert mounted.get("mountPropagation") == of_download


@pytest.mark.parametrize("secret", [None, {"name": "bucket"}])
def test_a_model_in_a_bucket_is_downloaded_like_one_of_a_hub(secret):
    endpoint = {"name": "AWS_ENDPOINT_URL", "value": "http://minio.models:9000"}
    model = {"uri": "s3://models/team/llama/"} | ({"secretRef": secret} if secret else {})
    spec = merged(
        MINIMAL,
        model=model,
        parallelism={"pipelineParallelSize": 2},
        master={"env": [endpoint]},
        worker={"env": [endpoint]},
    )
    path, options = "/models/cache/s3/models/team/llama/", []
    assert boot.topology(context(spec), 1).model.path == path
    for pod in pod_specs(spec):
        (fetch,) = pod["initContainers"]
        assert fetch["args"][:4] == ["fetch", "s3://models/team/llama/", "--into", path]
        assert [variable for variable in fetch["env"] if "value" in variable] == [endpoint]
        assert fetch.get("envFrom") == ([{"secretRef": {"name": "bucket"}}] if secret else None)
        assert {"name": "model", "emptyDir": {}} in pod["volumes"]
        options.append(fetch["args"][4:])
    assert options == [["--partition", "0/2"], ["--partition", "1/2"], ["--without-weights"]]


@pytest.mark.parametrize("spec", [MINIMAL, EVERYTHING], ids=["least", "all"])
def test_a_master_reads_what_the_operator_writes_and_reports_it_back_alike(spec):
    """Else the operator would send its topology again and again."""
    for written in (
        boot.topology(context(spec), 2),
        boot.scheduler_knobs(context(spec), boot.kept_files(context(spec))),
    ):
        understood, unknown = read(type(written), json.dumps(written.wire()).encode())
        assert (understood, unknown) == (written, frozenset())
    assert boot.topology(context(spec), 2).refusal() == ""


def test_no_budget_for_a_single_pipeline():
    spec = merged(EVERYTHING, replicas=1)
    assert "PodDisruptionBudget" not in [manifest["kind"] for manifest in manifests(spec)]
