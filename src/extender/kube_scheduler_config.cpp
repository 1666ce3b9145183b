#include "extender/kube_scheduler_config.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/text.h"
#include "base/yaml_writer.h"
#include "fraction/fraction_request.h"
#include "k8s/api_client.h"
#include "k8s/objects.h"
#include "scheduler/model/gpu_node.h"

namespace gpulet::extender {
namespace {

// Of the second scheduler's objects: "gpulet" alone is the agent's service account.
std::string object_name(const KubeSchedulerConfig& config) {
  return "kube-scheduler-" + config.scheduler_name;
}

YamlNode extender_entry(const KubeSchedulerConfig& config) {
  YamlNode entry;
  entry.add("urlPrefix", YamlNode::text(config.url));
  entry.add("filterVerb", YamlNode::text("filter"));
  entry.add("prioritizeVerb", YamlNode::text("prioritize"));
  entry.add("preemptVerb", YamlNode::text("preempt"));
  entry.add("weight", YamlNode::bare(std::to_string(config.weight)));
  entry.add("nodeCacheCapable", YamlNode::bare("true"));
  // While no replica responds, Pods are scheduled by counts alone.
  entry.add("ignorable", YamlNode::bare("true"));
  entry.add("httpTimeout", YamlNode::text("2s"));
  if (config.url.starts_with("https://")) {
    entry.add("enableHTTPS", YamlNode::bare("true"));
    auto& tls = entry.add("tlsConfig", {});
    tls.add("caFile", YamlNode::text(config.ca_file));
    if (!config.tls_name.empty()) tls.add("serverName", YamlNode::text(config.tls_name));
  }
  auto& resources = entry.add("managedResources", YamlNode::list());
  const auto add_resource = [&](std::string_view name, const char* ignored) {
    YamlNode resource;
    resource.add("name", YamlNode::text(std::string(name)));
    resource.add("ignoredByScheduler", YamlNode::bare(ignored));
    resources.items.push_back(std::move(resource));
  };
  for (const auto& name : config.resources) {
    // kube-scheduler refuses a name that is listed twice.
    if (!fraction::is_fraction_resource(name)) add_resource(name, "false");
  }
  // Amounts that no node offers: counted, they would keep the Pod from every node.
  for (const auto name : fraction::kFractionResources) add_resource(name, "true");
  return entry;
}

std::string indented(const std::string& text, const std::string& indent) {
  std::string out;
  for (const auto& line : text::split(text, '\n')) {
    if (!line.empty()) out += indent + std::string(line) + "\n";
  }
  return out;
}

}  // namespace

std::string kube_scheduler_config(const KubeSchedulerConfig& config) {
  YamlNode root;
  root.add("apiVersion", YamlNode::text("kubescheduler.config.k8s.io/v1"));
  root.add("kind", YamlNode::text("KubeSchedulerConfiguration"));
  if (!config.kubeconfig.empty())
    root.add("clientConnection", {}).add("kubeconfig", YamlNode::text(config.kubeconfig));
  auto& election = root.add("leaderElection", {});
  election.add("leaderElect", YamlNode::bare("true"));
  if (!config.scheduler_name.empty()) {
    election.add("resourceName", YamlNode::text(object_name(config)));
    election.add("resourceNamespace", YamlNode::text(config.lease_namespace));
    YamlNode profile;
    profile.add("schedulerName", YamlNode::text(config.scheduler_name));
    root.add("profiles", YamlNode::list()).items.push_back(std::move(profile));
  }
  root.add("extenders", YamlNode::list()).items.push_back(extender_entry(config));
  return write_yaml(root);
}

Result<std::string> add_config_to_static_pod(const std::string& manifest, const std::string& config_path) {
  const std::string argument = "--config=" + config_path;
  const auto expected = [](const char* line) {
    return fail(Code::kInvalidArgument,
                std::string("not kubeadm's manifest of kube-scheduler: expected one line `") + line + "`");
  };
  if (const auto at = manifest.find("- --config="); at != std::string::npos) {
    const auto line = manifest.substr(at + 2, manifest.find('\n', at) - at - 2);
    if (text::trim(line) == argument) return manifest;
    return fail(Code::kInvalidArgument, "kube-scheduler has " + std::string(text::trim(line)) +
                                            " already: add the extender to that file instead");
  }
  const std::string mount =
      "    - mountPath: " + config_path + "\n      name: gpulet-scheduler-config\n      readOnly: true\n";
  const std::string volume =
      "  - hostPath:\n      path: " + config_path + "\n      type: File\n    name: gpulet-scheduler-config\n";
  const std::pair<const char*, std::string> additions[] = {
      {"    - kube-scheduler", "    - " + argument + "\n"},
      {"    volumeMounts:", mount},
      {"  volumes:", volume},
  };
  std::vector<bool> added(std::size(additions));
  std::string out;
  for (std::size_t begin = 0; begin < manifest.size();) {
    const auto end = std::min(manifest.find('\n', begin), manifest.size());
    const auto line = manifest.substr(begin, end - begin);
    out += line + "\n";
    begin = end + 1;
    for (std::size_t i = 0; i < std::size(additions); ++i) {
      if (line != additions[i].first) continue;
      if (added[i]) return expected(additions[i].first);
      added[i] = true;
      out += additions[i].second;
    }
  }
  for (std::size_t i = 0; i < std::size(additions); ++i) {
    if (!added[i]) return expected(additions[i].first);
  }
  return out;
}

namespace {

// NAME, SPACE, IMAGE and CONFIG are replaced.
constexpr std::string_view kSecondScheduler = R"(apiVersion: v1
kind: ServiceAccount
metadata:
  name: NAME
  namespace: SPACE
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: NAME-as-kube-scheduler
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: system:kube-scheduler
subjects:
  - kind: ServiceAccount
    name: NAME
    namespace: SPACE
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: NAME-as-volume-scheduler
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: system:volume-scheduler
subjects:
  - kind: ServiceAccount
    name: NAME
    namespace: SPACE
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: NAME-authentication-reader
  namespace: kube-system
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: extension-apiserver-authentication-reader
subjects:
  - kind: ServiceAccount
    name: NAME
    namespace: SPACE
---
# Its own Lease: system:kube-scheduler may only change that of kube-scheduler.
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: NAME-election
  namespace: SPACE
rules:
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    verbs: [create]
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    resourceNames: [NAME]
    verbs: [get, update, patch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: NAME-election
  namespace: SPACE
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: NAME-election
subjects:
  - kind: ServiceAccount
    name: NAME
    namespace: SPACE
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: NAME
  namespace: SPACE
data:
  config.yaml: |
CONFIG---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: NAME
  namespace: SPACE
  labels:
    app.kubernetes.io/name: NAME
spec:
  replicas: 2
  selector:
    matchLabels:
      app.kubernetes.io/name: NAME
  template:
    metadata:
      labels:
        app.kubernetes.io/name: NAME
    spec:
      serviceAccountName: NAME
      priorityClassName: system-cluster-critical
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        seccompProfile:
          type: RuntimeDefault
      containers:
        - name: kube-scheduler
          image: IMAGE
          command:
            - kube-scheduler
            - --config=/etc/gpulet/config.yaml
          livenessProbe:
            httpGet:
              path: /healthz
              port: 10259
              scheme: HTTPS
            initialDelaySeconds: 15
          readinessProbe:
            httpGet:
              path: /healthz
              port: 10259
              scheme: HTTPS
          resources:
            requests:
              cpu: 100m
              memory: 64Mi
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop: [ALL]
          volumeMounts:
            - name: config
              mountPath: /etc/gpulet
              readOnly: true
      volumes:
        - name: config
          configMap:
            name: NAME
)";

// "v1.33.4-gke.1134000" as "v1.33.4".
Result<std::string> upstream_version(const std::string& version) {
  const auto core = version.substr(0, version.find_first_of("-+"));
  const auto parts = text::split(core.starts_with('v') ? core.substr(1) : "", '.');
  const bool known = parts.size() == 3 && std::ranges::all_of(parts, [](const auto& part) {
                       return text::parse_unsigned(part).has_value();
                     });
  if (!known) return fail(Code::kInvalidArgument, "expected a Kubernetes version such as v1.33.4", version);
  return core;
}

void replace_all(std::string& text, std::string_view word, const std::string& with) {
  for (std::size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += with.size())
    text.replace(at, word.size(), with);
}

}  // namespace

Result<std::string> second_scheduler(const KubeSchedulerConfig& config, const std::string& image,
                                     const std::string& version) {
  GPULET_TRY_ASSIGN(const auto release, upstream_version(version));
  std::string out(kSecondScheduler);
  // A colon before the last slash is that of a registry's port.
  const bool has_tag = text::base_name(image).find_first_of(":@") != std::string_view::npos;
  replace_all(out, "IMAGE", has_tag ? image : image + ":" + release);
  replace_all(out, "NAME", object_name(config));
  replace_all(out, "SPACE", config.lease_namespace);
  replace_all(out, "CONFIG", indented(kube_scheduler_config(config), "    "));
  return out;
}

namespace {

using nlohmann::json;

class LookupClient {
 public:
  LookupClient(const k8s::ClientConfig& access, Duration timeout) : client_(loop_, access, timeout) {}

  Result<http::ClientResponse> get(const std::string& path) {
    std::optional<Result<http::ClientResponse>> result;
    client_.send_request({.method = "GET", .path = path}, [&](const Result<http::ClientResponse>& response) {
      result = response;
      loop_.stop_loop();
    });
    loop_.run_loop();
    return std::move(*result);
  }

 private:
  EpollLoop loop_;
  k8s::ApiClient client_;
};

Error response_error(const http::ClientResponse& response) {
  const Code code = response.status == 404                             ? Code::kNotFound
                    : response.status == 401 || response.status == 403 ? Code::kPermissionDenied
                                                                       : Code::kUnavailable;
  return {code, k8s::describe_response(response)};
}

}  // namespace

Result<ClusterLookup> look_up_cluster(const k8s::ClientConfig& access, const std::string& name_space,
                                      const std::string& service, Duration timeout) {
  LookupClient client(access, timeout);
  ClusterLookup found;
  GPULET_TRY_ASSIGN(const auto about,
                    client.get("/api/v1/namespaces/" + name_space + "/services/" + service));
  if (about.status != 200) return fail(response_error(about));
  found.service_ip = json_text(json_member(json_member(parse_json(about.body), "spec"), "clusterIP"));
  if (found.service_ip == "None") found.service_ip.clear();
  GPULET_TRY_ASSIGN(const auto version, client.get("/version"));
  found.version = json_text(json_member(parse_json(version.body), "gitVersion"));
  GPULET_TRY_ASSIGN(const auto nodes, client.get(std::string(scheduler::kGpuNodesPath) + "?limit=50"));
  std::set<std::string> names;
  const auto list = parse_json(nodes.body);
  for (const auto& node : json_member(list, "items")) {
    for (const auto& resource : json_member(json_member(node, "spec"), "resources"))
      names.insert(json_text(json_member(resource, "name")));
  }
  names.erase("");
  names.erase(scheduler::kClaimedResource);  // kube-scheduler refuses a name that no Pod can request
  found.resources.assign(names.begin(), names.end());
  return found;
}

}  // namespace gpulet::extender
