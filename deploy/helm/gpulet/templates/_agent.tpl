{{/*
The agent's environment variables, with NVIDIA's names. Those of devicePlugin.containers.main.env, extraEnv and the pool
override the chart's own. (dict "root" . "pool" POOL)
*/}}
{{- define "gpulet.env" -}}
{{- $ := .root -}}{{- $v := .root.Values -}}
{{- $privileged := include "gpulet.privileged" $ -}}{{- $mig := include "gpulet.mig" $ -}}
{{- /* void: the container starts before the driver is there, whatever the runtime. */ -}}
{{- $env := list
  (dict "name" "NODE_NAME" "valueFrom" (dict "fieldRef" (dict "fieldPath" "spec.nodeName")))
  (dict "name" "NVIDIA_VISIBLE_DEVICES" "value" (ternary "void" "all" (and (ne $privileged "") (eq (include "gpulet.nvidiaRuntime" $) ""))))
  (dict "name" "NVIDIA_DRIVER_CAPABILITIES" "value" (default "utility" $v.nvidiaDriverCapabilities))
  (dict "name" "FAIL_ON_INIT_ERROR" "value" (toString (default false $v.failOnInitError)))
  (dict "name" "DEVICE_LIST_STRATEGY" "value" (default "cdi-cri" $v.deviceListStrategy)) -}}
{{- if and $mig (not $privileged) }}{{ $env = append $env (dict "name" "NVIDIA_MIG_MONITOR_DEVICES" "value" "all") }}{{ end -}}
{{- if and (eq $mig "manage") (not $privileged) }}{{ $env = append $env (dict "name" "NVIDIA_MIG_CONFIG_DEVICES" "value" "all") }}{{ end -}}
{{- if and $privileged (not (include "gpulet.mps" $)) (not $v.securityContext) -}}
{{- $env = append $env (dict "name" "GPULET_KEEP_CAPABILITIES" "value" (include "gpulet.capabilities" $ | fromJsonArray | join ",")) -}}
{{- end -}}
{{- range $name, $value := dict
  "MIG_STRATEGY" $v.migStrategy "PASS_DEVICE_SPECS" $v.compatWithCPUManager "DEVICE_ID_STRATEGY" $v.deviceIDStrategy
  "NVIDIA_DRIVER_ROOT" $v.nvidiaDriverRoot "NVIDIA_DEV_ROOT" $v.nvidiaDevRoot "GDRCOPY_ENABLED" $v.gdrcopyEnabled
  "GDS_ENABLED" $v.gdsEnabled "MOFED_ENABLED" $v.mofedEnabled "DEVICE_DISCOVERY_STRATEGY" $v.deviceDiscoveryStrategy
  "CDI_FEATURE_FLAGS" $v.cdi.featureFlags "NVIDIA_CDI_HOOK_PATH" $v.cdi.nvidiaHookPath -}}
{{- if not (kindIs "invalid" $value) }}{{ $env = append $env (dict "name" $name "value" (toString $value)) }}{{ end -}}
{{- end -}}
{{- if not $v.cdi.nvidiaHookPath }}{{ $env = append $env (dict "name" "GPULET_CDI_HOOK_DIR" "value" $v.cdi.hookDir) }}{{ end -}}
{{- /* The driver's library is then below the container's own root. */ -}}
{{- if not (include "gpulet.driverRootPaths" $ | fromJsonArray) }}{{ $env = append $env (dict "name" "DRIVER_ROOT_CTR_PATH" "value" "/") }}{{ end -}}
{{- if include "gpulet.mps" $ }}{{ $env = append $env (dict "name" "MPS_ROOT" "value" $v.mps.root) }}{{ end -}}
{{- if include "gpulet.configMap" $ -}}
{{- $env = concat $env (list
  (dict "name" "CONFIG_FILE_SRCDIR" "value" "/available-configs")
  (dict "name" "DEFAULT_CONFIG" "value" (default $v.config.default .pool.config))
  (dict "name" "FALLBACK_STRATEGIES" "value" (join "," $v.config.fallbackStrategies))) -}}
{{- end -}}
{{- if ne $v.kubeletRoot "/var/lib/kubelet" }}{{ $env = append $env (dict "name" "GPULET_KUBELET_DIR" "value" $v.kubeletRoot) }}{{ end -}}
{{- if $v.dra.enabled -}}
{{- $env = concat $env (list
  (dict "name" "GPULET_DRA" "value" "true")
  (dict "name" "POD_UID" "valueFrom" (dict "fieldRef" (dict "fieldPath" "metadata.uid")))) -}}
{{- end -}}
{{- if not $v.devicePlugin.enabled }}{{ $env = append $env (dict "name" "KUBELET_SOCKET" "value" "") }}{{ end -}}
{{- if eq (toString $v.gfd.enabled) "false" }}{{ $env = append $env (dict "name" "GPULET_LABELS" "value" "none") }}{{ end -}}
{{- if ge (int (default 0 $v.logVerbosity)) 4 }}{{ $env = append $env (dict "name" "GPULET_LOG_LEVEL" "value" "debug") }}{{ end -}}
{{- if ne (int $v.port) 9400 }}{{ $env = append $env (dict "name" "GPULET_LISTEN" "value" (printf "0.0.0.0:%d" (int $v.port))) }}{{ end -}}
{{- if or $v.webConfig.secretName $v.webConfig.configMapName }}{{ $env = append $env (dict "name" "GPULET_WEB_CONFIG_FILE" "value" "/web/web-config.yaml") }}{{ end -}}
{{- if ne $v.cdi.specDir "/var/run/cdi" }}{{ $env = append $env (dict "name" "GPULET_CDI_SPEC_DIR" "value" $v.cdi.specDir) }}{{ end -}}
{{- $given := dict -}}
{{- range concat ($v.devicePlugin.containers.main.env | default list) $v.extraEnv (.pool.extraEnv | default list) }}{{ $_ := set $given .name . }}{{ end -}}
{{- $all := list -}}
{{- range $env -}}
{{- if hasKey $given .name }}{{ $all = append $all (get $given .name) }}{{ $_ := unset $given .name }}{{ else }}{{ $all = append $all . }}{{ end -}}
{{- end -}}
{{- range $name, $entry := $given }}{{ $all = append $all $entry }}{{ end -}}
{{- toYaml $all -}}
{{- end -}}

{{/* `affinity`; outside pools it also excludes the nodes of pools. */}}
{{- define "gpulet.affinity" -}}
{{- $affinity := deepCopy (.root.Values.affinity | default dict) -}}
{{- if and .root.Values.pools (not .pool) -}}
{{- $not := list -}}
{{- range $name, $pool := .root.Values.pools }}{{ range $key, $value := $pool.nodeSelector }}
{{- $not = append $not (dict "key" $key "operator" "NotIn" "values" (list $value)) -}}
{{- end }}{{ end -}}
{{- $terms := dig "nodeAffinity" "requiredDuringSchedulingIgnoredDuringExecution" "nodeSelectorTerms" (list (dict)) $affinity -}}
{{- $all := list -}}
{{- range $terms }}{{ $all = append $all (merge (dict "matchExpressions" (concat (get . "matchExpressions" | default list) $not)) .) }}{{ end -}}
{{- $affinity = mergeOverwrite $affinity (dict "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $all))) -}}
{{- end -}}
{{- with $affinity }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{/* The DaemonSet of the agent: (dict "root" . "name" NAME "pool" POOL). */}}
{{- define "gpulet.daemonset" -}}
{{- $ := .root -}}{{- $v := .root.Values -}}{{- $pool := .pool -}}
{{- $mps := include "gpulet.mps" $ -}}{{- $cdi := include "gpulet.cdi" $ -}}
{{- $driverRoot := trimSuffix "/" (default "/" $v.nvidiaDriverRoot) -}}{{- $driverRootPaths := include "gpulet.driverRootPaths" $ | fromJsonArray -}}
{{- $podLogs := include "gpulet.podUIDs" $ -}}
{{- /* Device nodes are created with CAP_MKNOD. A read-only mount does not limit what may be read from or written to a device. */ -}}
{{- $writesDev := or $mps $v.securityContext (has "MKNOD" (include "gpulet.capabilities" $ | fromJsonArray)) -}}
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: {{ .name }}
  namespace: {{ include "gpulet.namespace" $ }}
  labels:
    {{- include "gpulet.labels" (list $ "") | nindent 4 }}
spec:
  selector:
    matchLabels:
      {{- if $v.selectorLabelsOverride }}
      {{- toYaml $v.selectorLabelsOverride | nindent 6 }}
      {{- else }}
      {{- include "gpulet.selector" (list $ "") | nindent 6 }}
      {{- end }}
      {{- if $v.componentSelectorLabels.enabled }}
      app.kubernetes.io/component: agent
      {{- end }}
      {{- with .poolName }}
      gpulet.io/pool: {{ . }}
      {{- end }}
  {{- with include "gpulet.updateStrategy" $ }}
  updateStrategy:
    {{- . | nindent 4 }}
  {{- end }}
  minReadySeconds: {{ $v.minReadySeconds }}
  template:
    metadata:
      labels:
        {{- $labels := include "gpulet.selector" (list $ "") | fromYaml }}
        {{- if $v.componentSelectorLabels.enabled }}{{ $_ := set $labels "app.kubernetes.io/component" "agent" }}{{ end }}
        {{- with .poolName }}{{ $_ := set $labels "gpulet.io/pool" . }}{{ end }}
        {{- toYaml (mergeOverwrite $labels $v.podLabels $v.selectorLabelsOverride) | nindent 8 }}
      {{- $annotations := deepCopy $v.podAnnotations }}
      {{- if $v.scrapeAnnotations }}{{ $annotations = merge $annotations (dict "prometheus.io/scrape" "true" "prometheus.io/port" (toString $v.port)) }}{{ end }}
      {{- with $annotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      serviceAccountName: {{ include "gpulet.serviceAccount" $ }}
      automountServiceAccountToken: true
      {{- with $v.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $v.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with $v.runtimeClassName }}
      runtimeClassName: {{ . }}
      {{- end }}
      terminationGracePeriodSeconds: {{ $v.terminationGracePeriodSeconds }}
      {{- if include "gpulet.hostPID" $ }}
      # The driver reports host PIDs. Without this, a GPU shared by several Pods has one series for all of them; nothing else
      # changes. docs/SECURITY.md lists what it permits.
      hostPID: true
      {{- end }}
      {{- if include "gpulet.hostNetwork" $ }}
      hostNetwork: true
      dnsPolicy: ClusterFirstWithHostNet
      {{- end }}
      {{- with $v.podSecurityContext }}
      securityContext:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- $startup := list }}
      {{- range include "gpulet.startupTaints" $ | fromJsonArray }}{{ $startup = append $startup (dict "key" . "operator" "Exists") }}{{ end }}
      {{- with concat ($v.tolerations | default list) ($pool.tolerations | default list) $startup }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with mergeOverwrite (deepCopy ($v.nodeSelector | default dict)) ($pool.nodeSelector | default dict) }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with include "gpulet.affinity" (dict "root" $ "pool" $pool) }}
      affinity:
        {{- . | nindent 8 }}
      {{- end }}
      containers:
        - name: gpulet
          image: {{ include "gpulet.image" $ }}
          imagePullPolicy: {{ $v.image.pullPolicy }}
          args:
            - agent
            {{- with concat $v.extraArgs ($pool.extraArgs | default list) }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          env:
            {{- include "gpulet.env" (dict "root" $ "pool" $pool) | nindent 12 }}
          {{- with $v.extraEnvFrom }}
          envFrom:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          terminationMessagePath: /tmp/termination-log # its default is below /dev, which is the host's
          ports:
            - name: http
              containerPort: {{ $v.port }}
          {{- range $name, $path := dict "startupProbe" "/healthz" "livenessProbe" "/healthz" "readinessProbe" "/readyz" }}
          {{- with get $v $name }}
          {{ $name }}:
            {{- toYaml (merge (deepCopy .) (dict "httpGet" (dict "path" $path "port" "http"))) | nindent 12 }}
          {{- end }}
          {{- end }}
          {{- with $pool.resources | default $v.devicePlugin.resources | default $v.resources }}
          {{- $resources := deepCopy . }}
          {{- /* Its checks run in this container. */ -}}
          {{- if and (eq "128Mi" (toString (dig "limits" "memory" "" $resources))) (include "gpulet.wants" (list $ "preflight.enabled" false)) }}
          {{- $_ := set $resources.limits "memory" "1Gi" }}
          {{- end }}
          resources:
            {{- toYaml $resources | nindent 12 }}
          {{- end }}
          securityContext:
            {{- if $v.securityContext }}
            {{- toYaml $v.securityContext | nindent 12 }}
            {{- else if include "gpulet.privileged" $ }}
            {{- if $mps }}
            privileged: true # for the driver's device nodes, and to propagate the mount in the MPS root
            {{- else }}
            privileged: true # for the driver's device nodes; the agent gives up the capabilities
            {{- end }}
            readOnlyRootFilesystem: true
            {{- else }}
            readOnlyRootFilesystem: true
            allowPrivilegeEscalation: false
            seccompProfile:
              type: RuntimeDefault
            capabilities:
              drop: [ALL]
              add: # the listener child needs SETUID and SETGID to give up root
                {{- include "gpulet.capabilities" $ | fromJsonArray | toYaml | nindent 16 }}
            {{- end }}
          volumeMounts:
            - name: device-plugins
              mountPath: {{ $v.kubeletRoot }}/device-plugins
            - name: pod-resources
              mountPath: {{ $v.kubeletRoot }}/pod-resources
              readOnly: true # to connect to the socket
            {{- if $v.dra.enabled }}
            - name: plugins # the socket that claims are prepared over
              mountPath: {{ $v.kubeletRoot }}/plugins
            - name: plugins-registry # the socket that the kubelet finds it by
              mountPath: {{ $v.kubeletRoot }}/plugins_registry
            {{- end }}
            {{- range $index, $path := $driverRootPaths }}
            - name: driver-root{{ if ne $path "/" }}-{{ $index }}{{ end }}
              mountPath: /driver-root{{ if ne $path "/" }}{{ $path }}{{ end }}
              readOnly: true
              mountPropagation: HostToContainer # to see a driver installed later
            {{- end }}
            {{- if $cdi }}
            - name: cdi
              mountPath: {{ $v.cdi.specDir }}
            - name: hook # same path as on the host, as in CDI specs; also the persisted state
              mountPath: {{ $v.cdi.hookDir }}
            {{- end }}
            {{- if not (and $cdi (eq $v.stateDir $v.cdi.hookDir)) }}
            - name: state
              mountPath: /var/lib/gpulet
            {{- end }}
            - name: run # sockets for `gpulet health`, here and on the host
              mountPath: /run/gpulet
            {{- if $podLogs }}
            - name: pod-logs # directory names map Pods to UIDs; no file is read
              mountPath: /var/log/pods
              readOnly: true
            {{- end }}
            - name: dev
              mountPath: /dev
              {{- if not $writesDev }}
              readOnly: true # no device node is created
              {{- end }}
            - name: sys
              mountPath: /sys
              readOnly: true
            {{- if $mps }}
            - name: mps-root # holds the mount of a tmpfs for the clients' /dev/shm
              mountPath: {{ $v.mps.root }}
              mountPropagation: Bidirectional
            {{- end }}
            {{- if include "gpulet.configMap" $ }}
            - name: available-configs
              mountPath: /available-configs
              readOnly: true
            {{- end }}
            {{- if or $v.webConfig.secretName $v.webConfig.configMapName }}
            - name: web-config
              mountPath: /web
              readOnly: true
            {{- end }}
            {{- with $v.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        - name: device-plugins
          hostPath:
            path: /var/lib/kubelet/device-plugins
        - name: pod-resources
          hostPath:
            path: {{ $v.kubeletRoot }}/pod-resources
        {{- if $v.dra.enabled }}
        - name: plugins
          hostPath:
            path: {{ $v.kubeletRoot }}/plugins
            type: DirectoryOrCreate
        - name: plugins-registry
          hostPath:
            path: {{ $v.kubeletRoot }}/plugins_registry
            type: DirectoryOrCreate
        {{- end }}
        {{- if $cdi }}
        - name: cdi
          hostPath:
            path: {{ $v.cdi.specDir }}
            type: DirectoryOrCreate
        - name: hook
          hostPath:
            path: {{ $v.cdi.hookDir }}
            type: DirectoryOrCreate
        {{- end }}
        {{- if not (and $cdi (eq $v.stateDir $v.cdi.hookDir)) }}
        - name: state
          hostPath:
            path: {{ $v.stateDir }}
            type: DirectoryOrCreate
        {{- end }}
        - name: run
          hostPath:
            path: {{ $v.runDir }}
            type: DirectoryOrCreate
        {{- range $index, $path := $driverRootPaths }}
        - name: driver-root{{ if ne $path "/" }}-{{ $index }}{{ end }}
          hostPath:
            path: {{ if ne $path "/" }}{{ $driverRoot }}{{ $path }}{{ else }}{{ default "/" $driverRoot }}{{ end }}
            {{- if ne $path "/" }}
            type: Directory
            {{- end }}
        {{- end }}
        {{- if $podLogs }}
        - name: pod-logs
          hostPath:
            path: {{ $v.podLogsDir }}
            type: DirectoryOrCreate
        {{- end }}
        - name: dev
          hostPath:
            path: /dev
        - name: sys
          hostPath:
            path: /sys
        {{- if $mps }}
        - name: mps-root
          hostPath:
            path: {{ $v.mps.root }}
            type: DirectoryOrCreate
        {{- end }}
        {{- with include "gpulet.configMap" $ }}
        - name: available-configs
          configMap:
            name: {{ . }}
        {{- end }}
        {{- with $v.webConfig.secretName }}
        - name: web-config
          secret:
            secretName: {{ . }}
        {{- end }}
        {{- with $v.webConfig.configMapName }}
        - name: web-config
          configMap:
            name: {{ . }}
        {{- end }}
        {{- with $v.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- end -}}
