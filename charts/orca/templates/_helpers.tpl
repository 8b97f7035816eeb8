{{- define "orca.name" -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "orca.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "orca.name" .) }}
{{- end }}

{{- define "orca.selector" -}}
app.kubernetes.io/name: orca-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "orca.labels" -}}
{{ include "orca.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* What the operator may do. Of Secrets it handles only d-admin, which RBAC cannot say: names are not known ahead. */}}
{{- define "orca.rules" -}}
- apiGroups: [orca-serving.io]
  resources: [orcadeployments]
  verbs: [get, list, watch]
- apiGroups: [orca-serving.io]
  resources: [orcadeployments/status]
  verbs: [get, patch, update]
- apiGroups: [orca-serving.io]
  resources: [orcadeployments/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [services, configmaps, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
- apiGroups: [apps]
  resources: [deployments, statefulsets, controllerrevisions]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
