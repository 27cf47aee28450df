{{- define "durable-gateway.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains .Chart.Name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "durable-gateway.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "durable-gateway.labels" -}}
{{ include "durable-gateway.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "durable-gateway.secretName" -}}
{{- .Values.existingSecret | default (include "durable-gateway.fullname" .) }}
{{- end }}

{{- define "durable-gateway.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "durable-gateway.fullname" .) }}
{{- end }}

{{- /* "true" if the members find each other in Redis, empty if by DNS or without a fleet. */ -}}
{{- define "durable-gateway.membersByRedis" -}}
{{- if and .Values.fleet.enabled .Values.redis.url .Values.redis.members }}true{{ end }}
{{- end }}

{{- /* "true" if the members find each other by the headless service. */ -}}
{{- define "durable-gateway.membersByDns" -}}
{{- if and .Values.fleet.enabled (not (include "durable-gateway.membersByRedis" .)) }}true{{ end }}
{{- end }}

{{- /* Half of the memory limit: indexes, buffers and Python come on top of tapes. */ -}}
{{- define "durable-gateway.cacheBytes" -}}
{{- $limit := dig "limits" "memory" "" .Values.resources }}
{{- if .Values.cacheBytes }}
{{- .Values.cacheBytes }}
{{- else if $limit }}
{{- $number := regexFind "^[0-9]+" $limit | int64 }}
{{- if hasSuffix "Gi" $limit }}{{ $number = mul $number 1024 }}{{ end }}
{{- printf "%dMiB" (div $number 2) }}
{{- else }}
{{- fail "set resources.limits.memory, or cacheBytes" }}
{{- end }}
{{- end }}

{{- /* Mistakes that the schema cannot see. */ -}}
{{- define "durable-gateway.validate" -}}
{{- if not (or .Values.origin (contains "[[route]]" .Values.config)) }}
{{- fail "set origin to the URL of your origin, or config to TOML with [[route]] tables" }}
{{- end }}
{{- range list "server" "limits" "fleet" }}
{{- if regexMatch (printf "(?m)^\\s*\\[\\s*%s\\s*\\]" .) $.Values.config }}
{{- fail (printf "config: the chart writes [%s]: set its keys by extraEnv, as DURABLE_GATEWAY_%s__KEY" . (upper .)) }}
{{- end }}
{{- end }}
{{- if and .Values.redis.url (not .Values.fleet.enabled) }}
{{- fail "redis.url needs fleet.enabled" }}
{{- end }}
{{- if and .Values.redis.passwordSecret.name (not .Values.redis.url) }}
{{- fail "redis.passwordSecret needs redis.url" }}
{{- end }}
{{- if and .Values.redis.caSecret.name (not (hasPrefix "rediss://" .Values.redis.url)) }}
{{- fail "redis.caSecret needs redis.url with rediss://" }}
{{- end }}
{{- if and .Values.tls.redirectHttp (not .Values.tls.secretName) }}
{{- fail "tls.redirectHttp needs tls.secretName" }}
{{- end }}
{{- if and .Values.existingSecret (or .Values.adminToken .Values.fleet.secret) }}
{{- fail "existingSecret has the token and the secret: leave adminToken and fleet.secret empty" }}
{{- end }}
{{- end }}
