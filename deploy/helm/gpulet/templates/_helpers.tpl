{{/* Names and labels. */}}
{{- define "gpulet.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "gpulet.fullname" -}}
{{- $name := include "gpulet.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "gpulet.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{- define "gpulet.serviceAccount" -}}
{{- default (include "gpulet.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "gpulet.image" -}}
{{- printf "%s:%s" .Values.image.repository (toString (default .Chart.AppVersion .Values.image.tag)) -}}
{{- end -}}

{{/* Selector labels of a component's Pods ("" is the agent): (list . "scheduler"). */}}
{{- define "gpulet.selector" -}}
{{- $root := index . 0 -}}{{- $part := index . 1 -}}
app.kubernetes.io/name: {{ include "gpulet.name" $root }}{{ with $part }}-{{ . }}{{ end }}
{{- if $root.Values.chartLabels }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- end }}
{{- end -}}

{{/* Labels of a component's object. */}}
{{- define "gpulet.labels" -}}
{{- $root := index . 0 -}}
{{- include "gpulet.selector" . }}
{{- if $root.Values.chartLabels }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end }}
{{- end -}}

{{/*
The agent's configs as JSON: key → config, merged with the values; an empty one if there is none. The operator's own
ConfigMap is looked up, which `helm template` cannot do; its content is then unknown.
*/}}
{{- define "gpulet.overlay" -}}
{{- $overlay := dict -}}
{{- with .Values.gpulet }}{{ $_ := set $overlay "gpulet" (deepCopy .) }}{{ end -}}
{{- $gfd := dict -}}
{{- if kindIs "bool" .Values.gfd.noTimestamp }}{{ $_ := set $gfd "noTimestamp" .Values.gfd.noTimestamp }}{{ end -}}
{{- if kindIs "string" .Values.gfd.sleepInterval }}{{ $_ := set $gfd "sleepInterval" .Values.gfd.sleepInterval -}}
{{- else if not (kindIs "invalid" .Values.gfd.sleepInterval) }}{{ $_ := set $gfd "sleepInterval" (printf "%vs" .Values.gfd.sleepInterval) }}{{ end -}}
{{- with $gfd }}{{ $_ := set $overlay "flags" (dict "gfd" .) }}{{ end -}}
{{- toJson $overlay -}}
{{- end -}}

{{- define "gpulet.configs" -}}
{{- $overlay := include "gpulet.overlay" . | fromJson -}}
{{- $texts := .Values.config.map | default dict -}}
{{- if .Values.config.name -}}
{{- $texts = (lookup "v1" "ConfigMap" (include "gpulet.namespace" .) .Values.config.name).data | default dict -}}
{{- end -}}
{{- $configs := dict -}}
{{- range $key, $text := $texts -}}
{{- $config := fromYaml $text -}}
{{- if hasKey $config "Error" }}{{ fail (printf "config.map.%s is no YAML: %s" $key $config.Error) }}{{ end -}}
{{- $_ := set $configs $key (mergeOverwrite (deepCopy $overlay) $config) -}}
{{- end -}}
{{- if not $configs }}{{ $_ := set $configs "default" $overlay }}{{ end -}}
{{- toJson $configs -}}
{{- end -}}

{{/* "true" if any config enables this setting of `gpulet:`: (list . "faults.eviction.enabled" DEFAULT). */}}
{{- define "gpulet.wants" -}}
{{- $path := splitList "." (index . 1) -}}{{- $default := index . 2 -}}{{- $found := false -}}
{{- range $key, $config := include "gpulet.configs" (index . 0) | fromJson -}}
{{- $at := $config.gpulet | default dict -}}
{{- range initial $path }}{{ $at = get $at . | default dict }}{{ end -}}
{{- $value := $default -}}
{{- if hasKey $at (last $path) }}{{ $value = get $at (last $path) }}{{ end -}}
{{- if $value }}{{ $found = true }}{{ end -}}
{{- end -}}
{{- if $found }}true{{ end -}}
{{- end -}}

{{/* "true" if any config does this with a container above its memory limit: (list . "kill"). */}}
{{- define "gpulet.onExceeded" -}}
{{- $action := index . 1 -}}{{- $found := false -}}
{{- range $key, $config := include "gpulet.configs" (index . 0) | fromJson -}}
{{- if eq $action (dig "fraction" "onExceeded" "none" ($config.gpulet | default dict)) }}{{ $found = true }}{{ end -}}
{{- end -}}
{{- if $found }}true{{ end -}}
{{- end -}}

{{/* "true" if labels may be written to that output: "node" or "node-feature". */}}
{{- define "gpulet.labelsTo" -}}
{{- $output := index . 1 -}}{{- $found := false -}}
{{- range $key, $config := include "gpulet.configs" (index . 0) | fromJson -}}
{{- $outputs := dig "labels" "outputs" (list "node") ($config.gpulet | default dict) -}}
{{- if kindIs "string" $outputs }}{{ $outputs = list $outputs }}{{ end -}}
{{- if has $output $outputs }}{{ $found = true }}{{ end -}}
{{- end -}}
{{- if $found }}true{{ end -}}
{{- end -}}

{{- define "gpulet.taints" -}}
{{- $found := false -}}
{{- range $key, $config := include "gpulet.configs" . | fromJson -}}
{{- range dig "faults" "taints" (dict) ($config.gpulet | default dict) }}{{ if ne . "none" }}{{ $found = true }}{{ end }}{{ end -}}
{{- end -}}
{{- if $found }}true{{ end -}}
{{- end -}}

{{/* The startup taints of the configs, as a list of keys in JSON. */}}
{{- define "gpulet.startupTaints" -}}
{{- $keys := list -}}
{{- range $key, $config := include "gpulet.configs" . | fromJson -}}
{{- with dig "startupTaint" "" ($config.gpulet | default dict) }}{{ $keys = append $keys . }}{{ end -}}
{{- end -}}
{{- uniq $keys | toJson -}}
{{- end -}}

{{/* The annotations, beside the default one, by which the configs request a reboot, as a list of keys in JSON. */}}
{{- define "gpulet.rebootAnnotations" -}}
{{- $keys := list -}}
{{- range $key, $config := include "gpulet.configs" . | fromJson -}}
{{- $own := $config.gpulet | default dict -}}
{{- $repair := $own.repair | default dict -}}
{{- $request := $repair.rebootRequest | default dict -}}
{{- if eq (toString $request.enabled) "true" -}}
{{- with $request.annotation }}{{ if ne "gpulet.io/reboot-required" . }}{{ $keys = append $keys . }}{{ end }}{{ end -}}
{{- end -}}
{{- end -}}
{{- uniq $keys | toJson -}}
{{- end -}}

{{/* Whether the agent runs MPS daemons. */}}
{{- define "gpulet.mps" -}}
{{- $found := false -}}
{{- range $key, $config := include "gpulet.configs" . | fromJson -}}
{{- if dig "mps" false ($config.sharing | default dict) }}{{ $found = true }}{{ end -}}
{{- if eq (toString (dig "dra" "featureGates" "MPSSupport" false ($config.gpulet | default dict))) "true" }}{{ $found = true }}{{ end -}}
{{- range dig "partition" (list) ($config.gpulet | default dict) -}}
{{- if or (hasKey . "mps") (eq (toString (get . "sharing")) "mps") }}{{ $found = true }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if kindIs "bool" .Values.mps.enabled }}{{ $found = .Values.mps.enabled }}{{ end -}}
{{- if $found }}true{{ end -}}
{{- end -}}

{{/*
"true" if NVIDIA's container runtime starts the agent's container, by its runtime class or as the engine's default: NVIDIA's own
plugin needs that too, unless devices are passed on by CDI.
*/}}
{{- define "gpulet.nvidiaRuntime" -}}
{{- if or .Values.runtimeClassName (regexMatch "envvar|volume-mounts" (toString .Values.deviceListStrategy)) }}true{{ end -}}
{{- end -}}

{{/*
How the agent reaches /dev/nvidia*: docs/SECURITY.md. Without NVIDIA's runtime nothing but a privileged container has access: no Pod
can request CDI devices for itself.
*/}}
{{- define "gpulet.privileged" -}}
{{- if kindIs "bool" .Values.privileged -}}
{{- if .Values.privileged }}true{{ end -}}
{{- else if or (include "gpulet.mps" .) (not (include "gpulet.nvidiaRuntime" .)) -}}
true
{{- end -}}
{{- end -}}

{{/*
"true" if a variable or flag of the agent is set beside the chart's own, where the values do not tell what it is: (list . "DEVICE_LIST_STRATEGY").
*/}}
{{- define "gpulet.given" -}}
{{- $v := (index . 0).Values -}}{{- $name := index . 1 -}}
{{- $flag := printf "--%s" ($name | lower | replace "_" "-") -}}
{{- $given := list $v.devicePlugin.containers.main.env $v.extraEnv $v.extraArgs $v.pools | toJson -}}
{{- if or (contains $name $given) (contains $flag $given) }}true{{ end -}}
{{- end -}}

{{/*
What each mount of the agent is for: docs/SECURITY.md. "true" if containers get devices by CDI: the agent then writes specs and their
hook, which the engine runs as root. The variable precedes the config files.
*/}}
{{- define "gpulet.cdi" -}}
{{- if or .Values.dra.enabled (contains "cdi" (toString (default "cdi-cri" .Values.deviceListStrategy))) (include "gpulet.given" (list . "DEVICE_LIST_STRATEGY")) }}true{{ end -}}
{{- end -}}

{{/* "true" if Pods are known by UID: processes of the host are attributed to Pods, or metrics have the label pod_uid. */}}
{{- define "gpulet.podUIDs" -}}
{{- if or (include "gpulet.hostPID" .) (include "gpulet.wants" (list . "metrics.podUID" false)) (include "gpulet.given" (list . "POD_UID")) }}true{{ end -}}
{{- end -}}

{{/* "true" if the Pods use the host's network. */}}
{{- define "gpulet.hostNetwork" -}}
{{- if or .Values.devicePlugin.enableHostNetwork .Values.gfd.enableHostNetwork .Values.mps.enableHostNetwork }}true{{ end -}}
{{- end -}}

{{/* `updateStrategy`; with dra.gaplessUpdate the new Pod of a node starts before the old one ends. */}}
{{- define "gpulet.updateStrategy" -}}
{{- $strategy := deepCopy (.Values.updateStrategy | default dict) -}}
{{- $rolling := $strategy.rollingUpdate | default dict -}}
{{- $gapless := .Values.dra.gaplessUpdate -}}
{{- if kindIs "invalid" $gapless }}{{ $gapless = not (include "gpulet.hostNetwork" .) }}{{ end -}}
{{- if and .Values.dra.enabled $gapless (eq (default "RollingUpdate" $strategy.type) "RollingUpdate") (not (hasKey $rolling "maxSurge")) -}}
{{- $_ := set $strategy "rollingUpdate" (dict "maxSurge" (default 1 $rolling.maxUnavailable) "maxUnavailable" 0) -}}
{{- end -}}
{{- with $strategy }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{/* "true" if the agent sees the PIDs of the host. */}}
{{- define "gpulet.hostPID" -}}
{{- if or .Values.hostPID (and (include "gpulet.mps" .) .Values.mps.enableHostPID) }}true{{ end -}}
{{- end -}}

{{/*
The directories of the driver root that the agent sees, as a list in JSON: "/" is all of it. NVIDIA's runtime adds the driver's libraries
to the container, so without CDI and MPS none is needed there.
*/}}
{{- define "gpulet.driverRootPaths" -}}
{{- if not (kindIs "invalid" .Values.driverRootPaths) -}}
{{- toJson .Values.driverRootPaths -}}
{{- else if and (include "gpulet.nvidiaRuntime" .) (not (include "gpulet.privileged" .)) (not (include "gpulet.cdi" .)) (not .Values.nvidiaDriverRoot) -}}
[]
{{- else -}}
["/"]
{{- end -}}
{{- end -}}

{{/* What the configs need of MIG: "" nothing, "monitor" for MIG devices, "manage" where layouts are applied too. */}}
{{- define "gpulet.mig" -}}
{{- $monitor := false -}}{{- $manage := false -}}
{{- range $key, $config := include "gpulet.configs" . | fromJson -}}
{{- $own := $config.gpulet | default dict -}}
{{- $mig := $own.mig | default dict -}}
{{- $strategy := dig "migStrategy" ($.Values.migStrategy | default "none") ($config.flags | default dict) -}}
{{- $wanted := or (ne (toString ($strategy | default "none")) "none") $mig.manage $mig.configFile -}}
{{- range $own.partition | default list }}{{ if hasKey . "mig" }}{{ $wanted = true }}{{ end }}{{ end -}}
{{- if $wanted }}{{ $monitor = true }}{{ end -}}
{{- if and $wanted (ne (toString $mig.manage) "false") }}{{ $manage = true }}{{ end -}}
{{- end -}}
{{- if $manage }}manage{{ else if $monitor }}monitor{{ end -}}
{{- end -}}

{{/* The capabilities of the agent as a list in JSON; docs/SECURITY.md has the reason of each. */}}
{{- define "gpulet.capabilities" -}}
{{- $mig := include "gpulet.mig" . -}}
{{- $all := .Values.capabilities -}}
{{- if include "gpulet.privileged" . -}}
{{- $all = append $all "SYSLOG" -}}
{{- if include "gpulet.wants" (list . "createDeviceNodes" true) }}{{ $all = append $all "MKNOD" }}{{ end -}}
{{- if or (eq $mig "manage") (include "gpulet.wants" (list . "fraction.driverLimits" false)) (include "gpulet.wants" (list . "repair.reset.enabled" false)) (include "gpulet.wants" (list . "power.rules" false)) }}{{ $all = append $all "SYS_ADMIN" }}{{ end -}}
{{- else if $mig -}}
{{- if include "gpulet.wants" (list . "createDeviceNodes" true) }}{{ $all = append $all "MKNOD" }}{{ end -}}
{{- $all = append $all "SYS_ADMIN" -}}
{{- else if include "gpulet.wants" (list . "power.rules" false) -}}
{{- $all = append $all "SYS_ADMIN" -}}
{{- end -}}
{{- if include "gpulet.onExceeded" (list . "kill") }}{{ $all = append $all "KILL" }}{{ end -}}
{{- uniq $all | toJson -}}
{{- end -}}

{{/* A permission: by rbac, or if the configs need it: (list . "eviction" NEEDED). */}}
{{- define "gpulet.right" -}}
{{- $value := get (index . 0).Values.rbac (index . 1) -}}
{{- if kindIs "bool" $value }}{{ if $value }}true{{ end }}{{ else if index . 2 }}true{{ end -}}
{{- end -}}

{{- define "gpulet.crds" -}}
{{- if kindIs "bool" .Values.crds.install }}{{ if .Values.crds.install }}true{{ end }}{{ else if .Values.scheduler.enabled }}true{{ end -}}
{{- end -}}

{{- define "gpulet.configMap" -}}
{{- if .Values.config.name -}}
{{- .Values.config.name -}}
{{- else if or .Values.config.map (include "gpulet.overlay" . | fromJson) -}}
{{- printf "%s-configs" (include "gpulet.fullname" .) -}}
{{- end -}}
{{- end -}}
