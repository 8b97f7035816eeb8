"""Specs for which API server and operator must agree: (name, spec, the invalid field or None)."""

from __future__ import annotations

from typing import Any

from support.orcadeployments import MINIMAL, merged

Row = tuple[str, dict[str, Any], str | None]

HUB = {"uri": "hf://a/b"}
FILE = MINIMAL["model"]
DRAFTS = {"speculativeTokens": 4}
LONG = "a" * 64


def demo(field: str | None = None, **changes: Any) -> Row:
    """Return a row with fields added to the smallest spec."""
    return "demo", merged(MINIMAL, **changes), field


def worker(field: str | None = None, **settings: Any) -> Row:
    """Return a row with worker settings; `field` is relative to spec.worker."""
    return demo(field and f"spec.worker.{field}", worker=settings)


FIELDS: list[Row] = [
    ("demo", {}, "spec.model"),
    ("demo", {"model": {}}, "spec.model.uri"),
    ("demo", {"model": {"uri": "http://x/y"}}, "spec.model.uri"),
    ("demo", {"model": {"uri": "hf://only"}}, "spec.model.uri"),
    ("demo", {"model": {"uri": "hf://a/b\n"}}, "spec.model.uri"),
    ("demo", {"model": {**FILE, "dtype": "int8"}}, "spec.model.dtype"),
    ("demo", {"model": {**FILE, "quantization": "int3"}}, "spec.model.quantization"),
    ("demo", {"model": {**FILE, "name": ""}}, "spec.model.name"),
    ("demo", {"model": {**FILE, "adapters": [{"name": "a"}]}}, "spec.model.adapters[0].path"),
    ("demo", {"model": {**FILE, "adapters": [{"name": "", "path": "x"}]}}, "spec.model.adapters[0].name"),
    ("demo", {"model": {**FILE, "adapters": [{"name": "a", "path": "x\0"}]}}, "spec.model.adapters[0].path"),
    (
        "demo",
        {"model": {**FILE, "adapters": [{"name": str(count), "path": "x"} for count in range(65)]}},
        "spec.model.adapters",
    ),
    ("demo", {"model": {**FILE, "name": "n" * 513}}, "spec.model.name"),
    ("demo", {"model": {**FILE, "name": "ü" * 512}}, None),
    ("demo", {"model": "file:///m"}, "spec.model"),
    demo("spec.worker.device", worker={"device": "tpu"}),
    demo("spec.replicas", replicas=-1),
    demo("spec.replicas", replicas=1001),
    demo("spec.replicas", replicas="2"),
    demo("spec.replicas", replicas=1.5),
    demo("spec.replicas", replicas=True),
    demo(replicas=2.0),
    demo(replicas=None),
    demo("spec.suspend", suspend="true"),
    demo("spec.parallelism.tensorParallelSize", parallelism={"tensorParallelSize": 0}),
    demo("spec.parallelism", parallelism=[]),
    demo("spec.scheduler.kvSlots", scheduler={"kvSlots": 15}),
    demo(scheduler={"kvSlots": 16}),
    demo("spec.autoscaling.scaleDownDelaySeconds", autoscaling={"scaleDownDelaySeconds": 86401}),
    demo(
        "spec.autoscaling.keda.fallback.replicas",
        autoscaling={"backend": "keda", "keda": {"fallback": {"failureThreshold": 3}}},
    ),
    demo(
        "spec.autoscaling.keda.fallback.behavior",
        autoscaling={
            "backend": "keda",
            "keda": {"fallback": {"failureThreshold": 3, "replicas": 2, "behavior": "dynamic"}},
        },
    ),
    demo(
        "spec.autoscaling.behavior.scaleUp.selectPolicy", autoscaling={"behavior": {"scaleUp": {"selectPolicy": "max"}}}
    ),
    demo(
        "spec.autoscaling.behavior.scaleUp.policies[0].type",
        autoscaling={"behavior": {"scaleUp": {"policies": [{"type": "Pod", "value": 1, "periodSeconds": 15}]}}},
    ),
    demo(
        "spec.autoscaling.behavior.scaleUp.policies[0].value",
        autoscaling={"behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 0, "periodSeconds": 15}]}}},
    ),
    demo(
        "spec.autoscaling.behavior.scaleDown.stabilizationWindowSeconds",
        autoscaling={"behavior": {"scaleDown": {"stabilizationWindowSeconds": 3601}}},
    ),
    demo(
        autoscaling={
            "behavior": {
                "scaleUp": {
                    "tolerance": "0.05",
                    "policies": [{"type": "Percent", "value": 100, "periodSeconds": 1800}],
                },
                "scaleDown": {"selectPolicy": "Disabled"},
            }
        }
    ),
    demo("spec.communication.backend", communication={"backend": "mpi"}),
    demo("spec.communication.env.NCCL_DEBUG", communication={"env": {"NCCL_DEBUG": 1}}),
    demo("spec.communication.env.NCCL_DEBUG", communication={"env": {"NCCL_DEBUG": "x" * 4097}}),
    demo(communication={"env": {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "1", "NCCL_P2P_DIRECT_DISABLE": ""}}),
    demo("spec.drainTimeoutSeconds", drainTimeoutSeconds=0),
    demo("spec.master.apiProcesses", master={"apiProcesses": -1}),
    demo("spec.imagePullSecrets[0].name", imagePullSecrets=[{}]),
    demo("spec.imagePullSecrets[0]", imagePullSecrets=[None]),
    worker("sharedMemorySize", sharedMemorySize="much"),
    demo("spec.tls.mode", tls={"mode": "on"}),
    demo("spec.tls.mode", tls={"mode": False}),  # YAML's value of off without quotes
    demo("spec.tls.secretName", tls={"mode": "secret", "secretName": "Mine"}),
    demo("spec.tls.issuerRef.name", tls={"mode": "certManager", "issuerRef": {}}),
    ("demo", {"model": {**FILE, "kvCacheDtype": "fp8"}}, "spec.model.kvCacheDtype"),
    demo("spec.model.draftPath", model={**FILE, "draftPath": ""}, scheduler=DRAFTS),
    demo("spec.model.draftPath", model={**FILE, "draftPath": "x\0"}, scheduler=DRAFTS),
    demo("spec.model.draftPath", model={**FILE, "draftPath": "x" * 1025}, scheduler=DRAFTS),
]
"""Types, bounds, patterns and required fields of ORCA's own API."""

SECRET = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
TERM = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
MOUNT = {"name": "a", "mountPath": "/a"}
PODS: list[Row] = [
    worker("resources.limits.memory", resources={"limits": {"memory": "lots"}}),
    worker("resources.limits.memory", resources={"limits": {"memory": "-1Gi"}}),
    worker("resources.limits.cpu", resources={"limits": {"cpu": -1}}),
    worker("resources.requests.cpu", resources={"requests": {"cpu": 0.5}}),
    worker("resources.requests.cpu", resources={"requests": {"cpu": ""}}),
    worker("resources.requests.cpu", resources={"requests": {"cpu": "1 "}}),
    worker("resources.limits", resources={"limits": ["cpu"]}),
    worker(resources={"limits": {"memory": "8Gi", "cpu": 4}, "requests": {"cpu": "1500m", "a.b/c": "1e3"}}),
    worker(resources={"requests": {"cpu": "+.5", "hugepages-2Mi": "64Mi", "ephemeral-storage": "1E"}}),
    worker("env[0].name", env=[{"value": "x"}]),
    worker("env[0].name", env=[{"name": "1A", "value": "x"}]),
    worker("env[0].name", env=[{"name": "A B", "value": "x"}]),
    worker("env[0].name", env=[{"name": "A=B", "value": "x"}]),
    worker("env[0].name", env=[{"name": ""}]),
    worker("env[0].name", env=[{"name": "."}]),
    worker("env[0].name", env=[{"name": "..a"}]),
    worker(env=[{"name": ".a", "value": "x"}]),
    worker("volumes[0].hostPath.type", volumes=[{"name": "a", "hostPath": {"path": "/a", "type": "Folder"}}]),
    worker("initContainers[0].restartPolicy", initContainers=[{"name": "a", "restartPolicy": "Sometimes"}]),
    worker(
        "initContainers[0].ports[0].containerPort", initContainers=[{"name": "a", "ports": [{"containerPort": -1}]}]
    ),
    worker(
        "initContainers[0].securityContext.seccompProfile.type",
        initContainers=[{"name": "a", "securityContext": {"seccompProfile": {"type": "None"}}}],
    ),
    worker(
        "initContainers[0].resources.requests.cpu",
        initContainers=[{"name": "a", "resources": {"requests": {"cpu": 0.5}}}],
    ),
    worker("env[0].value", env=[{"name": "A", "value": 1}]),
    worker("env[1]", env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]),
    worker("env", env={"A": "1"}),
    worker("env[0]", env=["A=1"]),
    worker("env[0].valueFrom.secretKeyRef.key", env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s"}}}]),
    worker(env=[{"name": "A.b-c_1", "value": ""}, SECRET, {"name": "B", "value": None}]),
    worker(env=[{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]),
    worker("tolerations[0].operator", tolerations=[{"key": "a", "operator": "Sometimes"}]),
    worker("tolerations[0].effect", tolerations=[{"key": "a", "effect": "NoStart"}]),
    worker("tolerations[0].tolerationSeconds", tolerations=[{"key": "a", "tolerationSeconds": "30"}]),
    worker(
        tolerations=[{"operator": "Exists"}, {"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute"}]
    ),
    worker(tolerations=[{"key": "a", "effect": ""}, {"key": "a", "effect": ""}]),
    worker("volumes[0].name", volumes=[{"nome": "x"}]),
    worker("volumes[0].name", volumes=[{"name": "Not_A_Label", "emptyDir": {}}]),
    worker("volumes[0].name", volumes=[{"name": LONG, "emptyDir": {}}]),
    worker("volumes[1]", volumes=[{"name": "a", "emptyDir": {}}, {"name": "a", "emptyDir": {}}]),
    worker("volumes[0].emptyDir.sizeLimit", volumes=[{"name": "a", "emptyDir": {"sizeLimit": "big"}}]),
    worker("volumes[0].hostPath.path", volumes=[{"name": "a", "hostPath": {"type": "Directory"}}]),
    worker("volumes[0].configMap.items[0].path", volumes=[{"name": "a", "configMap": {"items": [{"key": "k"}]}}]),
    worker(
        "volumes[0].secret.defaultMode", volumes=[{"name": "a", "secret": {"secretName": "s", "defaultMode": "0400"}}]
    ),
    worker(volumes=[{"name": "a", "emptyDir": {"sizeLimit": 1024}}, {"name": "b", "configMap": {"name": "c"}}]),
    worker(volumes=[{"name": "a", "projected": {"sources": [{"secret": {"name": "s"}}]}}]),
    worker("volumeMounts[0].mountPath", volumeMounts=[{"name": "a"}]),
    worker("volumeMounts[0].name", volumeMounts=[{"mountPath": "/a"}]),
    worker("volumeMounts[0].readOnly", volumeMounts=[{**MOUNT, "readOnly": "yes"}]),
    worker("volumeMounts[1]", volumeMounts=[MOUNT, {"name": "b", "mountPath": "/a"}]),
    worker(volumeMounts=[{**MOUNT, "readOnly": True, "mountPropagation": "None"}, {**MOUNT, "mountPath": "/b"}]),
    worker("initContainers[0].name", initContainers=[{"image": "busybox"}]),
    worker("initContainers[1]", initContainers=[{"name": "a", "image": "i"}, {"name": "a", "image": "i"}]),
    worker("initContainers[0].command", initContainers=[{"name": "a", "command": "sh -c true"}]),
    worker("initContainers[0].env[0].name", initContainers=[{"name": "a", "env": [{"name": "1"}]}]),
    worker("initContainers[0].env[1]", initContainers=[{"name": "a", "env": [{"name": "A"}, {"name": "A"}]}]),
    worker(
        "initContainers[0].resources.limits.memory",
        initContainers=[{"name": "a", "resources": {"limits": {"memory": "lots"}}}],
    ),
    worker("initContainers[0].imagePullPolicy", initContainers=[{"name": "a", "imagePullPolicy": "Sometimes"}]),
    worker(
        "initContainers[0].startupProbe.httpGet.port",
        initContainers=[{"name": "a", "startupProbe": {"httpGet": {"path": "/"}}}],
    ),
    worker(
        initContainers=[
            {
                "name": "a",
                "image": "busybox",
                "command": ["sh", "-c", "true"],
                "env": [SECRET],
                "volumeMounts": [MOUNT],
                "securityContext": {"capabilities": {"drop": ["ALL"]}},
                "ports": [{"containerPort": 80}, {"containerPort": 81}],
                "startupProbe": {"httpGet": {"port": "http"}},
                "livenessProbe": {"tcpSocket": {"port": 80}},
            }
        ]
    ),
    worker("affinity.nodeAffinity", affinity={"nodeAffinity": "zone-a"}),
    worker(
        "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms",
        affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}},
    ),
    worker(
        "affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey",
        affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {}}]}},
    ),
    worker(
        "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0]"
        ".operator",
        affinity={
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Is"}]}]
                }
            }
        },
    ),
    worker(
        affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}}}
    ),
    worker("labels.team", labels={"team": "a team"}),
    worker("labels.team", labels={"team": LONG}),
    worker("labels.team", labels={"team": 1}),
    worker("labels.team", labels={"team": "x\n"}),
    worker(labels={"team": "", "example.com/Team_1": "a.b-c_D", "a" * 253 + "/" + "b" * 63: "x"}),
    worker("nodeSelector.gpu", nodeSelector={"gpu": True}),
    worker(nodeSelector={"nvidia.com/gpu.product": "A100-SXM4-80GB"}),
    worker(annotations={"Example.com/note": "any text\nat all", "a": ""}),
    worker("extraArgs[0]", extraArgs=[1]),
    worker("extraArgs[0]", extraArgs=["x" * 1025]),
    worker("podTemplate.spec", podTemplate={"spec": []}),
    worker("podTemplate.metadata.labels.team", podTemplate={"metadata": {"labels": {"team": "a b"}}}),
    worker(podTemplate={}),
    worker(podTemplate={"spec": {"hostNetwork": None, "containers": [{"name": "worker", "future": {"a": [1, None]}}]}}),
    worker("placement.policy", placement={"topologyKey": "rack"}),
    worker("placement.policy", placement={"policy": "pack"}),
    worker("placement.whenUnsatisfiable", placement={"policy": "spread", "whenUnsatisfiable": "Never"}),
    worker(placement={"policy": "colocate", "topologyKey": "rack", "whenUnsatisfiable": "ScheduleAnyway"}),
    demo("spec.monitoring.labels.release", monitoring={"labels": {"release": "-"}}),
    demo("spec.service.labels.a", service={"labels": {"a": "b/c"}}),
]
"""Pod settings: the schemas of the pod API."""

BAD_VARIABLES = ("", "A", "NCCL_", "NCCL_DEBUG\n", "LD_PRELOAD", "PYTHONPATH", "NCCL_NET_PLUGIN", "NCCL_DEBUG_FILE")
BAD_KEYS = ("", "a b", "-a", "a/b/c", "/a", "a/", f"{LONG}", "a" * 254 + "/b", "a_b/c")


def map_rows(path: str, value: Any, bad: tuple[str, ...]) -> list[Row]:
    """Return rows that each break only the rule on the keys of one map."""
    *parents, last = path.split(".")
    rows = []
    for key in bad:
        changes: dict[str, Any] = {last: {key: value}}
        for name in reversed(parents):
            changes = {name: changes}
        rows.append(demo(f"spec.{path}", **changes))
    return rows


RULES: list[Row] = [
    ("demo", MINIMAL, None),
    ("a" * 36, MINIMAL, None),
    ("a" * 37, MINIMAL, "metadata.name"),
    ("a.b", MINIMAL, "metadata.name"),
    ("1a", MINIMAL, "metadata.name"),
    ("a-", MINIMAL, "metadata.name"),
    ("demo", {"model": {"uri": "pvc://claim/../x"}}, "spec.model.uri"),
    ("demo", {"model": {"uri": "pvc://claim/x"}}, None),
    ("demo", {"model": {"uri": "oci://example.com:5000/team/model:v1/a/b"}}, None),
    ("demo", {"model": {"uri": "oci://model"}}, None),
    ("demo", {"model": {"uri": f"oci://model:v1@sha256:{'0' * 64}/x"}}, None),
    ("demo", {"model": {"uri": "oci://example.com/Model"}}, "spec.model.uri"),
    ("demo", {"model": {"uri": "oci://example.com/model/"}}, "spec.model.uri"),
    ("demo", {"model": {"uri": "oci://model@sha256:0"}}, "spec.model.uri"),
    ("demo", {"model": {"uri": "s3://a-bucket.x"}}, None),
    ("demo", {"model": {"uri": "s3://bucket/a/b/"}}, None),
    ("demo", {"model": {"uri": "s3://Bucket/a"}}, "spec.model.uri"),
    ("demo", {"model": {"uri": "s3:///a"}}, "spec.model.uri"),
    ("demo", {"model": {**FILE, "cache": {"sizeLimit": "1Gi"}}}, "spec.model.cache"),
    ("demo", {"model": {**HUB, "cache": {"sizeLimit": "1Gi"}}}, None),
    ("demo", {"model": {**FILE, "revision": "main"}}, "spec.model.revision"),
    ("demo", {"model": {**HUB, "revision": "main"}}, None),
    ("demo", {"model": {**FILE, "secretRef": {"name": "x"}}}, "spec.model.secretRef"),
    ("demo", {"model": {"uri": "s3://bucket/a", "secretRef": {"name": "x"}, "cache": {"claimName": "c"}}}, None),
    ("demo", {"model": {**HUB, "secretRef": {"name": "x"}}}, None),
    demo("spec.scheduler.tokenBudget", scheduler={"maxBatchSize": 32, "tokenBudget": 31}),
    demo("spec.scheduler.tokenBudget", scheduler={"maxBatchSize": 2049}),
    demo(scheduler={"maxBatchSize": 32, "tokenBudget": 32}),
    demo("spec.autoscaling.minReplicas", autoscaling={"minReplicas": 3, "maxReplicas": 2}),
    demo("spec.autoscaling.minReplicas", autoscaling={"minReplicas": 3}),
    demo(autoscaling={"minReplicas": 2, "maxReplicas": 2}),
    demo("spec.autoscaling.keda", autoscaling={"keda": {}}),
    demo(autoscaling={"backend": "keda", "keda": {}}),
    demo(autoscaling={"backend": "keda", "minReplicas": 0, "keda": {"idleReplicaCount": 1}}),
    demo("spec.rolloutStrategy.maxSurge", rolloutStrategy={"maxSurge": 0, "maxUnavailable": 0}),
    demo(rolloutStrategy={"maxSurge": 1, "maxUnavailable": 0}),
    demo(rolloutStrategy={"type": "Recreate", "maxSurge": 0}),
    demo("spec.rolloutStrategy.maxSurge", rolloutStrategy={"type": "RollingUpdate", "maxSurge": "0%"}),
    demo("spec.startupTimeoutSeconds", startupTimeoutSeconds=1801),
    demo(startupTimeoutSeconds=1801, progressDeadlineSeconds=1801),
    demo("spec.communication.rdmaResource", communication={"backend": "gloo", "rdmaResource": "a/b"}),
    demo(communication={"rdmaResource": "a/b"}),
    demo("spec.model.dtype", model={**FILE, "dtype": "float16"}, communication={"backend": "gloo"}),
    demo(model={**FILE, "dtype": "float16"}),
    demo("spec.model.quantization", model={**FILE, "quantization": "int8"}),
    demo(model={**FILE, "quantization": "int8"}, communication={"backend": "gloo"}),
    demo(model={**FILE, "quantization": "none"}),
    demo("spec.tls.secretName", tls={"mode": "secret"}),
    demo("spec.tls.secretName", tls={"secretName": "mine"}),
    demo("spec.tls.secretName", tls={"mode": "selfSigned", "secretName": "mine"}),
    demo(tls={"mode": "secret", "secretName": "mine.pods", "enabled": False}),
    demo("spec.tls.issuerRef", tls={"mode": "certManager"}),
    demo("spec.tls.issuerRef", tls={"issuerRef": {"name": "ours"}}),
    demo(tls={"mode": "certManager", "issuerRef": {"name": "ours", "kind": "ClusterIssuer"}}),
    demo("spec.tls.enabled", tls={"mode": "off", "enabled": True}),
    demo("spec.tls.enabled", tls={"mode": "secret", "secretName": "mine", "enabled": True}),
    demo(tls={"mode": "selfSigned", "enabled": True}),
    demo(tls={"mode": "off", "enabled": False}),
    demo(tls={"enabled": True}),
    *(
        demo("spec.master.extraArgs", master={"extraArgs": args})
        for args in (["--port", "1"], ["--admi=paged"], ["-tp"])
    ),
    demo(master={"extraArgs": ["--max-queue-tokens", "1000", "--root-path=/a=b", "-1", "port"]}),
    demo("spec.worker.extraArgs", worker={"extraArgs": ["a", "--listen=x"]}),
    demo("spec.worker.extraArgs", worker={"extraArgs": ["--"]}),
    demo(worker={"extraArgs": ["--log-level=debug", "--no-spare-rank"]}),
    *map_rows("worker.labels", "x", (*BAD_KEYS, "A.com/b")),
    *map_rows("master.labels", "x", ("a b",)),
    *map_rows("worker.nodeSelector", "x", ("a b",)),
    *map_rows("master.nodeSelector", "x", ("a b",)),
    *map_rows("service.labels", "x", ("a b",)),
    *(demo("spec.communication.env", communication={"env": {name: "1"}}) for name in BAD_VARIABLES),
    *map_rows("monitoring.labels", "x", ("a b",)),
    *map_rows("worker.annotations", "x", BAD_KEYS),
    *map_rows("master.annotations", "x", ("a b",)),
    *map_rows("service.annotations", "x", ("a b",)),
    *map_rows("worker.resources.limits", "1", ("memroy", "", "a b", "nvidia.com/", "hugepages-")),
    *map_rows("worker.resources.requests", 1, ("gpu",)),
    *map_rows("master.resources.limits", "1Gi", ("mem",)),
    *map_rows("master.resources.requests", 2, ("CPU",)),
    demo("spec.model.kvCacheDtype", model={**FILE, "kvCacheDtype": "int8"}),
    demo(model={**FILE, "kvCacheDtype": "int8"}, communication={"backend": "gloo"}),
    demo(model={**FILE, "kvCacheDtype": "auto"}),
    demo("spec.master.extraArgs", master={"extraArgs": ["--kv-cache-dtype=int8"]}),
    demo("spec.model.adapters", model={**FILE, "adapters": [{"name": "a", "path": "x"}] * 2}),
    demo("spec.model.adapters", model={**FILE, "adapters": [{"name": "demo", "path": "x"}]}),
    demo("spec.model.adapters", model={**FILE, "name": "a", "adapters": [{"name": "a", "path": "x"}]}),
    demo("spec.model.adapters", model={**HUB, "adapters": [{"name": "a", "path": "x"}]}),
    demo(model={**HUB, "adapters": [{"name": "a", "path": "/x"}]}),
    demo(model={**FILE, "name": "m", "adapters": [{"name": "demo", "path": "x"}, {"name": "b", "path": "/y"}]}),
    demo("spec.model.quantization", model={**FILE, "quantization": "w8a8"}),
    demo(model={**FILE, "quantization": "w8a8"}, communication={"backend": "gloo"}),
    demo(master={"extraArgs": ["--all-reduce", "symmetric"]}),
    demo(worker={"device": "cuda"}, communication={"backend": "gloo"}),
    demo(worker={"device": "cuda"}, parallelism={"tensorParallelSize": 2}),
    demo(worker={"device": "cpu"}, communication={"backend": "gloo"}, parallelism={"tensorParallelSize": 2}),
    demo("spec.worker.device", worker={"device": "cpu"}),
    demo(
        "spec.parallelism.tensorParallelSize",
        worker={"device": "cuda"},
        communication={"backend": "gloo"},
        parallelism={"tensorParallelSize": 2},
    ),
    demo(worker={"device": "cuda"}, communication={"backend": "gloo"}, model={**FILE, "dtype": "float16"}),
    demo(
        "spec.model.quantization",
        worker={"device": "cuda"},
        communication={"backend": "gloo"},
        model={**FILE, "quantization": "int8"},
    ),
    demo(
        "spec.model.kvCacheDtype",
        worker={"device": "cuda"},
        communication={"backend": "gloo"},
        model={**FILE, "kvCacheDtype": "int8"},
    ),
    demo(model={**FILE, "draftPath": "draft"}, scheduler=DRAFTS),
    demo(model={**HUB, "draftPath": "/draft"}, scheduler=DRAFTS),
    demo("spec.model.draftPath", model={**HUB, "draftPath": "draft"}, scheduler=DRAFTS),
    demo("spec.model.draftPath", model={"uri": "s3://bucket/a", "draftPath": "draft"}, scheduler=DRAFTS),
    demo("spec.model.draftPath", model={**FILE, "draftPath": "draft"}),
    demo("spec.model.draftPath", model={**FILE, "draftPath": "draft"}, scheduler={"speculativeTokens": 0}),
    demo("spec.master.extraArgs", master={"extraArgs": ["--speculative-model=/draft"]}),
    demo("spec.master.journal.claimName", master={"apiProcesses": 1, "journal": {"claimName": "c"}}),
    demo(master={"apiProcesses": 0, "journal": {"claimName": "c"}}),
    demo(master={"apiProcesses": 2, "journal": {"resumeWindowSeconds": 5}}),
    demo(master={"apiProcesses": 2, "journal": {"claimName": "c", "enabled": False}}),
    demo("spec.tls.secretName", tls={"mode": "secret", "secretName": "demo-tls-master"}),
    demo("spec.tls.secretName", tls={"mode": "secret", "secretName": "demo-issued-master"}),
    demo(tls={"mode": "secret", "secretName": "demo-tls-worker"}),
    ("other", {"model": FILE, "tls": {"mode": "secret", "secretName": "demo-tls-master"}}, None),
]
"""Rules beyond a schema: each has a row that breaks only this rule."""

TABLE: list[Row] = RULES + FIELDS + PODS
