{{- define "kbq.labels" -}}
app.kubernetes.io/name: kbq
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "kbq.selector" -}}
app.kubernetes.io/name: kbq
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kbq.image" -}}
{{ required "image.repository: build and push deploy/docker/Dockerfile" .Values.image.repository }}:{{ required "image.tag: a version, not latest" .Values.image.tag }}
{{- end }}

{{- define "kbq.security" -}}
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
fsGroup: 1000
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "kbq.environment" -}}
- {name: KBQ_HOME, value: /home/kbq/home}
- name: KBQ_DAGSTER_POSTGRES_URL
  value: env:DAGSTER_POSTGRES_URL
- name: DAGSTER_POSTGRES_URL
  valueFrom:
    secretKeyRef:
      name: {{ required "postgres.secret: the Secret with Postgres' address" .Values.postgres.secret }}
      key: {{ .Values.postgres.key }}
{{- if .Values.topics.configMap }}
- name: KBQ_SOURCE_TOPICS
  value: "{{ .Values.topics.path }}/{{ .Values.topics.file }}"
{{- end }}
{{- range $name, $value := .Values.environment }}
{{- /* 0 is a value, and Helm has every number as a float: 2e+07. */}}
{{- if not (or (kindIs "invalid" $value) (eq (toString $value) "")) }}
- name: {{ $name }}
  {{- if and (kindIs "float64" $value) (eq (toString (floor $value)) (toString $value)) }}
  value: {{ int64 $value | quote }}
  {{- else }}
  value: {{ $value | quote }}
  {{- end }}
{{- end }}
{{- end }}
{{- range $name, $from := .Values.secrets }}
- name: {{ $name }}
  valueFrom:
    secretKeyRef:
      name: {{ $from.secret }}
      key: {{ $from.key }}
{{- end }}
{{- end }}

{{- define "kbq.volumes" -}}
- name: tmp
  emptyDir: {}
{{- if .Values.topics.configMap }}
- name: topics
  configMap:
    name: {{ .Values.topics.configMap }}
{{- end }}
{{- with .Values.volumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "kbq.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: home, mountPath: /home/kbq/home}
{{- if .Values.topics.configMap }}
- name: topics
  mountPath: {{ .Values.topics.path | quote }}
  readOnly: true
{{- end }}
{{- with .Values.volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "kbq.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
{{- end }}
