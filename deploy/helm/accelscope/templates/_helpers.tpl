{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* The release's name, and the chart's unless that is in it. */ -}}
{{- define "accelscope.name" -}}
{{- if contains "accelscope" .Release.Name }}{{ .Release.Name }}{{ else }}{{ printf "%s-accelscope" .Release.Name }}{{ end -}}
{{- end -}}

{{- define "accelscope.selector" -}}
app.kubernetes.io/name: accelscope
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "accelscope.fabricSelector" -}}
app.kubernetes.io/name: accelscope-fabric
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "accelscope.fleetSelector" -}}
app.kubernetes.io/name: accelscope-fleet
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "accelscope.taintSelector" -}}
app.kubernetes.io/name: accelscope-taint
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "accelscope.chartLabels" -}}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "accelscope.labels" -}}
{{ include "accelscope.selector" . }}
{{ include "accelscope.chartLabels" . }}
{{- end -}}

{{- /* Both, the sensors and who reads the fabric. */ -}}
{{- define "accelscope.all" -}}
matchExpressions:
  - key: app.kubernetes.io/name
    operator: In
    values: [accelscope, accelscope-fabric]
  - key: app.kubernetes.io/instance
    operator: In
    values: [{{ .Release.Name }}]
{{- end -}}

{{- define "accelscope.tag" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- /* The image, by its digest or else its tag. */ -}}
{{- define "accelscope.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ include "accelscope.tag" . }}{{ end }}
{{- end -}}

{{- define "accelscope.fabricImage" -}}
{{ .Values.image.repository }}{{ if .Values.fabric.digest }}@{{ .Values.fabric.digest }}{{ else }}:{{ .Values.fabric.tag | default (printf "%s-fabric" (include "accelscope.tag" .)) }}{{ end }}
{{- end -}}

{{- /* Whether the sensor asks the kubelet over HTTPS: also with values from before there was kubelet.token. */ -}}
{{- define "accelscope.kubelet" -}}
{{ if ne (toString .Values.kubelet.token) "false" }}true{{ end }}
{{- end -}}

{{- define "accelscope.config" -}}
{{ toYaml .Values.config }}
{{- end -}}

{{- define "accelscope.nodeEnv" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- if or (include "accelscope.kubelet" .) (not .Values.gpu.releaseOnNodeLabels) }}
- name: NODE_IP # in events, and with a token the address of the kubelet
  valueFrom:
    fieldRef:
      fieldPath: status.hostIP
{{- end }}
{{- end -}}

{{- /* The handler of a probe, at an address of its own: it needs neither TLS nor a password, and other clients do not delay it. */ -}}
{{- define "accelscope.probe" -}}
httpGet:
  host: 127.0.0.1
  path: {{ .path }}
  port: {{ .port }}
{{- end -}}

{{- /* An endpoint of a PodMonitor or ServiceMonitor. */ -}}
{{- define "accelscope.endpoint" -}}
port: metrics
scheme: {{ .scheme }}
honorLabels: true
{{- with .interval }}
interval: {{ . }}
{{- end }}
{{- with .tlsConfig }}
tlsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .basicAuth }}
basicAuth:
  {{- toYaml . | nindent 2 }}
{{- end }}
relabelings:
  - action: replace
    sourceLabels: [__meta_kubernetes_pod_node_name]
    targetLabel: instance
  # These labels of the target name the sensor's pod, and would attribute unattributed series to it.
  - action: labeldrop
    regex: {{ .drop }}
{{- end -}}
