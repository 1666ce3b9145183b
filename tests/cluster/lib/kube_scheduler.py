"""The configuration of a kube-scheduler of its own, with `gpulet scheduler` as its extender."""

BASE = """apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {{kubeconfig: {kubeconfig}{limits}}}
leaderElection: {{leaderElect: false}}
"""
# For Pods that wait for what another component does: they are tried again every second.
BACKOFF = """podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 1
"""
EXTENDER = """extenders:
  - urlPrefix: http://127.0.0.1:{port}
    filterVerb: filter
    prioritizeVerb: prioritize
{more}    weight: 5
    nodeCacheCapable: true
    httpTimeout: 5s
    managedResources:
      - {{name: nvidia.com/gpu, ignoredByScheduler: false}}
"""


def configuration(kubeconfig, port=None, qps=None, backoff=False, extender=()):
    """YAML. `port`: of the extender, None without one; `extender`: more lines of it, "preemptVerb: preempt"; `qps`: of the client, None for
    kube-scheduler's default; `backoff`: as BACKOFF."""
    limits = f", qps: {qps}, burst: {qps}" if qps else ""
    return (BASE.format(kubeconfig=kubeconfig, limits=limits) + (BACKOFF if backoff else "")
            + (EXTENDER.format(port=port, more="".join(f"    {line}\n" for line in extender)) if port else ""))
