// `gpulet scheduler`, kube-scheduler's extender, `gpulet scheduler config`, which prints what makes
// kube-scheduler ask it, and `gpulet explain`, a client of it.

#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>

#include <CLI/CLI.hpp>

#include "base/dns_name.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/commands/commands.h"
#include "cli/main/command_line.h"
#include "extender/explain_client.h"
#include "extender/kube_scheduler_config.h"
#include "extender/process.h"
#include "extender/service_name.h"
#include "k8s/client_config.h"

namespace gpulet::cli {
namespace {

using Environment = std::map<std::string, std::string, std::less<>>;

Environment cluster_environment() {
  Environment environment;
  for (const char* name :
       {"KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBECONFIG", "HOSTNAME", "HOME"}) {
    if (const char* value = std::getenv(name)) environment[name] = value;
  }
  return environment;
}

int run_scheduler(const extender::ExtenderOptions& options, const std::string& log_format) {
  log::configure_logging(log::Level::kInfo, log_format == "json" ? log::Format::kJson : log::Format::kText);
  const auto status = extender::run_extender(options, cluster_environment());
  return status ? 0 : print_error("gpulet scheduler", status.error().full_message());
}

constexpr const char* kTlsGroup = "TLS";
constexpr const char* kSecondGroup = "A second kube-scheduler (--for second-scheduler)";
constexpr const char* kConfigFile = "/etc/kubernetes/gpulet-scheduler.yaml";
constexpr const char* kManagedResource = "nvidia.com/gpu";

struct SchedulerConfigOptions {
  std::string where = "kubeadm", service = extender::kDefaultService, service_ip, kubeconfig, ca_file;
  std::string static_pod, config_file = kConfigFile, scheduler_name = "gpulet", image, version;
  std::vector<std::string> resources;
  unsigned weight = 5;
};

// kube-scheduler needs the port as a number, and has the scheme in its own setting.
Result<extender::ServiceName> parse_service(const std::string& text) {
  auto service = extender::parse_service_name(text);
  if (!service || !service->scheme.empty() || !text::parse_unsigned(service->port))
    return fail(Code::kInvalidArgument,
                "expected NAMESPACE/NAME:PORT, as " + std::string(extender::kDefaultService),
                "--service " + text);
  return std::move(*service);
}

Result<std::string> print_scheduler_config(const SchedulerConfigOptions& options) {
  if (!options.static_pod.empty()) {
    GPULET_TRY_ASSIGN(const auto manifest, read_file(options.static_pod));
    auto changed = extender::add_config_to_static_pod(manifest, options.config_file);
    if (!changed) return fail(changed.error().code(), changed.error().message(), options.static_pod);
    return changed;
  }
  GPULET_TRY_ASSIGN(const auto service, parse_service(options.service));
  const bool second = options.where == "second-scheduler";
  if (second && options.image.empty())
    return fail(
        Code::kInvalidArgument,
        "expected the image of kube-scheduler, where the cluster can pull it: REGISTRY/kube-scheduler",
        "--image");
  extender::ClusterLookup cluster{
      .service_ip = options.service_ip, .version = options.version, .resources = options.resources};
  // Nothing is looked up that the options say.
  const bool lacks = second ? cluster.version.empty() : cluster.service_ip.empty();
  if (lacks) {
    GPULET_TRY_ASSIGN(const auto access, find_kubectl_access(options.kubeconfig));
    GPULET_TRY_ASSIGN(auto found, extender::look_up_cluster(access, service.name_space, service.name));
    if (cluster.service_ip.empty()) cluster.service_ip = found.service_ip;
    if (cluster.version.empty()) cluster.version = found.version;
    if (cluster.resources.empty()) cluster.resources = found.resources;
  }
  if (cluster.resources.empty()) cluster.resources = {kManagedResource};
  const std::string name = service.name + "." + service.name_space + ".svc";
  if (!second && cluster.service_ip.empty())
    return fail(Code::kFailedPrecondition,
                "has no cluster IP, and kube-scheduler on the host's network resolves no cluster DNS: give "
                "--service-ip",
                "the Service " + service.name_space + "/" + service.name);
  const std::string host = second ? name
                           : cluster.service_ip.find(':') != std::string::npos
                               ? "[" + cluster.service_ip + "]"
                               : cluster.service_ip;
  extender::KubeSchedulerConfig config{
      .url = (options.ca_file.empty() ? "http://" : "https://") + host + ":" + service.port,
      .ca_file = options.ca_file,
      .tls_name = options.ca_file.empty() ? "" : name,
      .weight = options.weight,
      .resources = cluster.resources};
  if (second) {
    config.scheduler_name = options.scheduler_name;
    config.lease_namespace = service.name_space;
    return extender::second_scheduler(config, options.image, cluster.version);
  }
  config.kubeconfig = options.where == "k3s" ? "/var/lib/rancher/k3s/server/cred/scheduler.kubeconfig"
                                             : "/etc/kubernetes/scheduler.conf";
  return extender::kube_scheduler_config(config);
}

void add_scheduler_config(CLI::App& scheduler, Run& run) {
  auto& command = add_command(
      scheduler,
      {.name = "config",
       .summary = "Print the configuration that makes kube-scheduler ask the extender",
       .details =
           "kube-scheduler on the host's network resolves no cluster DNS, so the configuration has the "
           "cluster IP of the extender's Service. With --for second-scheduler the output is a second "
           "kube-scheduler, for clusters whose control plane is out of reach. Steps: "
           "docs/scheduling.md.",
       .examples = "  gpulet scheduler config > gpulet-scheduler.yaml\n"
                   "  gpulet scheduler config --static-pod /etc/kubernetes/manifests/kube-scheduler.yaml\n"
                   "  gpulet scheduler config --for second-scheduler --image REGISTRY/kube-scheduler | "
                   "kubectl apply -f -"});
  const auto options = std::make_shared<SchedulerConfigOptions>();
  command.add_option("--for", options->where, "kubeadm, k3s or second-scheduler (default kubeadm)")
      ->check(CLI::IsMember({"kubeadm", "k3s", "second-scheduler"}));
  add_kubeconfig_option(command, options->kubeconfig);
  command
      .add_option("--service", options->service,
                  "Service of the extender (default gpulet/gpulet-scheduler:9410)")
      ->group(kClusterGroup);
  command
      .add_option("--service-ip", options->service_ip,
                  "address of the extender (default: the Service's cluster IP, by the API server)")
      ->group(kClusterGroup);
  command.add_option("--resource", options->resources,
                     "resource that the extender decides about; repeat for more (default: those of the "
                     "cluster's GpuNodes, or nvidia.com/gpu)");
  command.add_option("--weight", options->weight, "weight of the extender's score (default 5)")
      ->check(CLI::Range(1, 100));
  command.add_option(
      "--tls-ca-file", options->ca_file,
      "use https, and verify the extender with this CA bundle, a path that kube-scheduler sees");
  command.add_option("--static-pod", options->static_pod,
                     "print this manifest of kubeadm's kube-scheduler with the configuration added");
  command.add_option(
      "--config-file", options->config_file,
      std::string("with --static-pod: path of the configuration on the host (default ") + kConfigFile + ")");
  command
      .add_option("--scheduler-name", options->scheduler_name,
                  "its name in Pods' spec.schedulerName (default gpulet)")
      ->check(CLI::Validator(
          [](const std::string& name) {
            return is_dns_label(name) ? std::string() : "'" + name + "' is not a DNS label";
          },
          "NAME"))
      ->group(kSecondGroup);
  command
      .add_option("--image", options->image,
                  "Kubernetes' image of kube-scheduler; without a tag, the "
                  "release of the API server is added")
      ->group(kSecondGroup);
  command.add_option("--kubernetes-version", options->version, "its version (default: the API server's)")
      ->group(kSecondGroup);
  command.callback([options, &run] {
    run = [options] {
      const auto text = print_scheduler_config(*options);
      if (!text) return print_error("gpulet scheduler config", text.error().full_message());
      return print_output({.exit_code = 0, .out = *text, .err = {}});
    };
  });
}

}  // namespace

int run_explain(const ExplainOptions& options) {
  const auto claim = claim_of_argument(options.question.pod);
  const bool needs_access = options.question.url.empty() || claim;
  const auto access = needs_access ? find_kubectl_access(options.kubeconfig, options.context)
                                   : Result<k8s::ClientConfig>(k8s::ClientConfig{.host = "-"});
  auto question = options.question;
  question.json = options.output.is_document();
  if (access && question.name_space.empty()) question.name_space = access->pod_namespace;
  Result<std::string> answer = fail(Code::kInternal, "no answer");
  if (!access) {
    answer = fail(access.error());
  } else if (claim) {
    answer =
        explain_claim({.name_space = question.name_space, .claim = *claim, .json = question.json}, *access);
  } else if (auto explained = extender::fetch_explanation(question, *access)) {
    answer = std::move(explained->text);
    // As scheduler::describe_request() has it.
    const bool has_claims = answer->find("resource claims") != std::string::npos;
    if (has_claims && !question.json && needs_access)
      *answer += explain_pod_claims({.name_space = question.name_space}, question.pod, *access);
  } else {
    answer = fail(explained.error());
  }
  if (!answer) return print_error(options.program, answer.error().full_message());
  return print_output({.exit_code = 0,
                       .out = render_output(
                           options.output, [&] { return *answer; },
                           [&](const TableStyle&) { return arguments::printable_text(*answer); }),
                       .err = {}});
}

void add_scheduler(CLI::App& app, Run& run) {
  auto& command = add_command(
      app, {.name = "scheduler",
            .summary = "Serve as kube-scheduler's extender for GPUs",
            .details = "Scores nodes by links, faults, shares and load. See docs/scheduling.md.",
            .examples =
                "  gpulet scheduler --listen 0.0.0.0:9410\n  gpulet scheduler config > gpulet-scheduler.yaml",
            .group = kServiceGroup});
  const auto options = std::make_shared<extender::ExtenderOptions>();
  const auto log_format = std::make_shared<std::string>("text");
  command.add_option("--listen", options->listen, "address to serve on, HOST:PORT (default 0.0.0.0:9410)");
  command.add_option("--policy", options->policy,
                     "policy of Pods without one of their own or of their namespace, see docs/scheduling.md "
                     "(default default)");
  auto* certificate = command
                          .add_option("--tls-cert-file", options->certificate_file,
                                      "serving certificate (PEM); without it plain HTTP is served")
                          ->group(kTlsGroup);
  auto* key = command.add_option("--tls-key-file", options->key_file, "private key of the certificate (PEM)")
                  ->group(kTlsGroup);
  certificate->needs(key);
  key->needs(certificate);
  command
      .add_option("--client-ca-file", options->client_authorities_file,
                  "CA bundle (PEM); clients must present a certificate signed by it")
      ->group(kTlsGroup)
      ->needs(certificate);
  command.add_option("--nodes-to-score", options->nodes_to_score,
                     "score at most N nodes (default 100, 0 = all)");
  command.add_option("--scheduler-name", options->scheduler_names,
                     "scheduler that should ask about its Pods; repeat for more (default default-scheduler)");
  command.add_option(
      "--record", options->record,
      "ConfigMap in this Pod's namespace where replicas keep when they were last asked (default: "
      "none)");
  command.add_option("--mig-demand-after", options->mig_demand_after_seconds,
                     "have a MIG device cut for a Pod that has waited N seconds for one, see docs/mig.md "
                     "(default 0 = never)");
  auto* page = command.add_option(
      "--page-address", options->page_address,
      "address to serve the cluster page on, HOST:PORT, see docs/cluster-page.md (default: no page)");
  command
      .add_option_function<std::string>(
          "--page-auth",
          [options](const std::string& who) {
            options->page_access =
                who == "none" ? extender::PageAccess::kEverybody : extender::PageAccess::kToken;
          },
          "who may read the page: users with a token of the cluster that may get /cluster (token), or "
          "everybody (none) (default token)")
      ->check(CLI::IsMember({"token", "none"}))
      ->needs(page);
  command
      .add_option("--node-page", options->node_page,
                  "address of a node's page, with {node}, {ip} and {port} of its agent "
                  "(default http://{ip}:{port}/)")
      ->needs(page);
  command
      .add_option("--agent-selector", options->agent_selector,
                  "labels of the agents' Pods, for the page (default app.kubernetes.io/name=gpulet)")
      ->needs(page);
  command.add_option("--shutdown-seconds", options->shutdown_seconds,
                     "seconds to keep serving as not-ready after SIGTERM (default 5)");
  command.add_option("--log-format", *log_format, "text or json (default text)")
      ->check(CLI::IsMember({"text", "json"}));
  add_scheduler_config(command, run);
  command.callback([options, log_format, &command, &run] {
    if (!command.get_subcommands().empty()) return;
    run = [options, log_format] { return run_scheduler(*options, *log_format); };
  });
}

void add_explain(CLI::App& app, Run& run) {
  auto& command =
      add_command(app, {.name = "explain",
                        .summary = "Explain why a Pod is on its node, or why it is not scheduled",
                        .details = "Queries the scheduler extender through the API server; with "
                                   "--service '' the answer is computed here. claim/NAME explains "
                                   "a ResourceClaim: why no node's devices fit, or why it is not "
                                   "prepared.",
                        .examples = "  gpulet explain train-0 -n team-a\n"
                                    "  gpulet explain claim/one-gpu\n"
                                    "  gpulet explain train-0 --service ''",
                        .group = kPlanGroup});
  const auto options = std::make_shared<ExplainOptions>();
  command.add_option("POD", options->question.pod, "name of the Pod, or claim/NAME")->required();
  command.add_option("-n,--namespace", options->question.name_space,
                     "namespace of the Pod (default default)");
  add_kubeconfig_option(command, options->kubeconfig);
  command
      .add_option("--service", options->question.service,
                  "Service of the extender, by TLS if it serves that; empty: compute here "
                  "(default gpulet/gpulet-scheduler:9410)")
      ->group(kClusterGroup);
  auto* url =
      command
          .add_option("--url", options->question.url,
                      "address of the extender instead of its Service, http://HOST:PORT or https://HOST:PORT")
          ->group(kClusterGroup);
  command
      .add_option("--ca-file", options->question.ca_file,
                  "CA bundle (PEM) that verifies the extender (default: system CAs)")
      ->needs(url)
      ->group(kClusterGroup);
  auto* certificate = command
                          .add_option("--cert-file", options->question.certificate_file,
                                      "client certificate (PEM), with https")
                          ->group(kClusterGroup);
  auto* key =
      command
          .add_option("--key-file", options->question.key_file, "private key of the client certificate (PEM)")
          ->group(kClusterGroup);
  certificate->needs(url)->needs(key);
  key->needs(certificate);
  command.add_option("--policy", options->question.policy, "policy to compute with (default default)");
  add_output_options(command, options->output);
  command.callback([options, &run] { run = [options] { return run_explain(*options); }; });
}

}  // namespace gpulet::cli
