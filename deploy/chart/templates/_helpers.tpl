{{/* The name of all objects: the release's, with `clew` in it. */}}
{{- define "clew.name" -}}
{{- if contains "clew" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-clew{{ end }}
{{- end }}

{{/* Labels that tell the pods of a release from those of others. */}}
{{- define "clew.selector" -}}
app.kubernetes.io/name: clew
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "clew.podLabels" -}}
{{ include "clew.selector" . }}
app.kubernetes.io/version: {{ .Values.versioning.buildId | default (include "clew.tag" .) | quote }}
{{- end }}

{{- define "clew.labels" -}}
{{ include "clew.podLabels" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* The kinds of workers, each with the defaults. */}}
{{- define "clew.workers" -}}
{{- $workers := dict }}
{{- range $kind, $worker := .Values.workers }}
{{- if $worker }}
{{- $_ := set $workers $kind (merge (deepCopy $worker) $.Values.workerDefaults) }}
{{- end }}
{{- end }}
{{- toYaml $workers }}
{{- end }}

{{- define "clew.tag" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* A pod's fields without its containers and volumes. `component` tells its kind. */}}
{{- define "clew.pod" -}}
serviceAccountName: {{ include "clew.name" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "clew.selector" .root | nindent 8 }}
        app.kubernetes.io/component: {{ .component }}
{{- with .root.Values.pod }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Fields of every container. */}}
{{- define "clew.container" -}}
image: "{{ .Values.image.repository }}:{{ include "clew.tag" . }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/* A variable's value as a text. Helm would write a large number as 1e+06. */}}
{{- define "clew.value" -}}
{{ kindIs "string" . | ternary . (toJson .) | quote }}
{{- end }}

{{/* The variables of every container, beside the ConfigMap's. */}}
{{- define "clew.variables" -}}
- name: CLEW_METRICS_ADDRESS
  value: 0.0.0.0:9464
{{- end }}

{{- define "clew.mounts" -}}
- name: tmp
  mountPath: /tmp
{{- if .Values.temporal.tls.secret }}
- name: temporal-tls
  mountPath: /etc/clew/temporal
  readOnly: true
{{- end }}
{{- if .Values.caConfigMap }}
- name: ca
  mountPath: /etc/clew/ca
  readOnly: true
{{- end }}
{{- end }}

{{- define "clew.volumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: 256Mi
{{- with .Values.temporal.tls.secret }}
- name: temporal-tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- with .Values.caConfigMap }}
- name: ca
  configMap:
    name: {{ . }}
{{- end }}
{{- end }}

{{- define "clew.backlog" -}}
- type: temporal
  name: {{ .name }}
  metadata:
    endpoint: {{ .root.Values.temporal.address | quote }}
    namespace: {{ .root.Values.temporal.namespace | quote }}
    taskQueue: {{ .queue }}
    queueTypes: {{ .types }}
    targetQueueSize: {{ .root.Values.autoscaling.backlog | quote }}
    {{- with .root.Values.temporal.tls.serverName }}
    tlsServerName: {{ . }}
    {{- end }}
  {{- if or .root.Values.temporal.apiKey .root.Values.temporal.tls.secret }}
  authenticationRef:
    name: {{ include "clew.name" .root }}-temporal
  {{- end }}
{{- end }}

{{/* How fast an autoscaler takes away what drains for minutes. */}}
{{- define "clew.slowly" -}}
scaleDown:
  stabilizationWindowSeconds: 900
  policies:
    - type: Pods
      value: 1
      periodSeconds: 300
{{- end }}
