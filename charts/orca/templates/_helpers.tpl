{{- define "orca.name" -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "orca.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "orca.name" .) }}
{{- end }}

{{/* Releases of one name in several namespaces have a ClusterRole each; no name of either contains a colon. */}}
{{- define "orca.nodesRole" -}}
{{ .Release.Namespace }}:{{ include "orca.name" . }}:nodes
{{- end }}

{{- define "orca.selector" -}}
app.kubernetes.io/name: orca-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "orca.labels" -}}
{{ include "orca.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/*
The owner of an existing CRD that does not belong to this release, as a phrase; empty otherwise. Helm refuses to import
another owner's object, so the chart does not render the CRD then. `helm template` has no cluster and renders the CRD.
*/}}
{{- define "orca.foreignCrd" -}}
{{- with lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "orcadeployments.orca-serving.io" }}
{{- $annotations := .metadata.annotations | default dict }}
{{- $owner := printf "%s/%s" (get $annotations "meta.helm.sh/release-namespace") (get $annotations "meta.helm.sh/release-name") }}
{{- if eq $owner "/" }}kubectl{{ else if ne $owner (printf "%s/%s" $.Release.Namespace $.Release.Name) }}the release {{ $owner }}{{ end }}
{{- end }}
{{- end }}

{{/*
The user's tolerations, and those that evict the operator from a lost node as early as the pods of OrcaDeployments, unless the
user's cover the taint: Kubernetes' own wait for 300 s, in which nobody would replace the pods of OrcaDeployments on the node.
*/}}
{{- define "orca.tolerations" -}}
{{- range $key := list "node.kubernetes.io/not-ready" "node.kubernetes.io/unreachable" }}
{{- $covered := false }}
{{- range $.Values.tolerations }}
{{- if and (has (.key | default "") (list "" $key)) (has (.effect | default "") (list "" "NoExecute")) }}
{{- $covered = true }}
{{- end }}
{{- end }}
{{- if not $covered }}
- {key: {{ $key }}, operator: Exists, effect: NoExecute, tolerationSeconds: 30}
{{- end }}
{{- end }}
{{- with .Values.tolerations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
Permissions of the operator. For an OrcaDeployment d it writes only the Secrets d-admin and d-tls-{ca,master,worker}, and also
reads the Secret tls.secretName or those of cert-manager. RBAC cannot restrict the operator to these names, which depend on the
OrcaDeployments.
*/}}
{{- define "orca.rules" -}}
- apiGroups: [orca-serving.io]
  resources: [orcadeployments]
  verbs: [get, list, watch]
- apiGroups: [orca-serving.io]
  resources: [orcadeployments/status]
  verbs: [patch]
- apiGroups: [orca-serving.io]
  resources: [orcadeployments/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [services, configmaps, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, delete]
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [get, list, create, patch]
- apiGroups: [apps]
  resources: [deployments, statefulsets, controllerrevisions]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [keda.sh]
  resources: [scaledobjects]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [cert-manager.io]
  resources: [certificates]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
