// `gpulet doctor`: diagnoses why Pods cannot use this node's GPUs. Needs no agent and no API server; checks
// that do are skipped without them.
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/main/command_line.h"
#include "cli/top/client.h"
#include "config/load.h"
#include "doctor/checks.h"
#include "doctor/collect.h"
#include "doctor/redact.h"
#include "doctor/support_archive.h"
#include "http/message.h"

namespace gpulet::cli {
namespace {

struct DoctorOptions {
  OutputOptions output;
  std::string bundle;           // a file for the support archive, .tar, .tar.gz or .tgz; empty: none
  std::string host_root = "/";  // where the host's / is seen
  std::string driver_root;      // empty: the host's, or a driver container's
  std::string dev_root;         // empty: the driver root if it has the nodes, else the host's
  std::string kubelet_dir;      // empty: /var/lib/kubelet of the host
  std::string socket, url;      // the agent's; empty: /run/gpulet/agent.sock of the host
  std::string config_file;      // the agent's, used if it is not running
  std::string kubeconfig, node_name;
  std::string service;  // the extender's; empty: gpulet explain's
};

constexpr const char* kArchiveDirectory = "gpulet-doctor/";
constexpr const char* kContainerDriverRoot = "/driver-root";  // where the DaemonSet mounts it

bool is_gzip(const std::string& file) { return file.ends_with(".gz") || file.ends_with(".tgz"); }

// The archive's directory is not created: a misspelled one would get a file that nobody finds.
Status check_bundle_directory(const std::string& bundle) {
  if (bundle.empty()) return {};
  const std::string directory =
      bundle.find('/') == std::string::npos ? "." : std::string(text::parent_directory(bundle));
  struct stat status{};
  if (::stat(directory.c_str(), &status) != 0)
    return fail(errno_error("cannot create a file in " + directory, errno, "--bundle '" + bundle + "'"));
  if (S_ISDIR(status.st_mode)) return {};
  return fail(Code::kFailedPrecondition, directory + " is not a directory", "--bundle '" + bundle + "'");
}

Result<doctor::ProbeTargets> gather_places(const DoctorOptions& options) {
  doctor::ProbeTargets places;
  if (!options.host_root.starts_with('/'))
    return fail(Code::kInvalidArgument, "not an absolute path; expected the mount point of the host's /",
                "--host-root '" + options.host_root + "'");
  places.host_root = options.host_root;
  while (places.host_root.size() > 1 && places.host_root.ends_with('/')) places.host_root.pop_back();
  if (!options.bundle.empty() && !is_gzip(options.bundle) && !options.bundle.ends_with(".tar"))
    return fail(Code::kInvalidArgument, "expected a name that ends in .tar, .tar.gz or .tgz",
                "--bundle '" + options.bundle + "'");
  GPULET_TRY(check_bundle_directory(options.bundle));
  places.in_container =
      places.host_root == "/" && config::process_environment().contains("KUBERNETES_SERVICE_HOST");
  if (!options.dev_root.empty() && !options.dev_root.starts_with('/'))
    return fail(Code::kInvalidArgument, "not an absolute path; expected the directory that contains dev/",
                "--dev-root '" + options.dev_root + "'");
  places.driver_root = options.driver_root;
  places.dev_root = options.dev_root;
  if (places.in_container && places.driver_root.empty() && ::access(kContainerDriverRoot, F_OK) == 0)
    places.driver_root = kContainerDriverRoot;
  places.kubelet_dir = options.kubelet_dir;
  places.socket = options.socket;
  places.config_file = options.config_file;
  if (!options.url.empty()) {
    GPULET_TRY_ASSIGN(const auto target, parse_top_url(options.url));
    places.agent_host = target.host;
    places.agent_port = target.port;
  }
  if (!options.kubeconfig.empty())  // an error of the file is an error of the command
    GPULET_TRY(k8s::load_kubeconfig(options.kubeconfig, {.allowed = true}));
  places.access = find_kubectl_access(options.kubeconfig);
  if (!options.service.empty()) places.service = options.service;
  places.node_name = options.node_name.empty() ? default_node_name() : options.node_name;
  return places;
}

Status write_bundle(const std::string& file, const std::vector<doctor::Finding>& findings,
                    std::vector<doctor::ArchiveFile> files) {
  files.insert(files.begin(), {{"report.txt", doctor::text_report(findings)},
                               {"report.json", doctor::json_report(findings)},
                               {"version.txt", version() + "\n"}});
  for (auto& one : files) {
    one.content = doctor::redact_file(one.name, one.content);
    one.name = kArchiveDirectory + one.name;
  }
  GPULET_TRY_ASSIGN(auto archive, doctor::make_tar(files, std::chrono::system_clock::now()));
  if (is_gzip(file)) archive = http::gzip(archive);
  return write_file_atomic(file, archive, 0600);
}

// Prints the report and writes the archive. Returns the exit code: 0 if every check passes, warns or is
// skipped; 1 if one fails or the archive cannot be written; 2 for invalid options.
int run_doctor(const DoctorOptions& options) {
  log::configure_logging(log::Level::kError, log::Format::kText);  // the report has the failures
  auto places = gather_places(options);
  if (!places) {
    const bool wrong = places.error().code() == Code::kInvalidArgument;
    return print_error("gpulet doctor", places.error().full_message(), wrong ? kWrongCommand : kFailed);
  }
  auto gathered = doctor::collect_facts(std::move(*places));
  const auto findings = doctor::run_checks(gathered.facts);
  std::cout << render_output(
      options.output, [&] { return doctor::json_report(findings); },
      [&](const TableStyle& style) {
        return doctor::text_report(
            findings, {.color = shows_color(), .all_details = style.wide, .columns = style.columns});
      });
  if (!options.bundle.empty()) {
    const auto written = write_bundle(options.bundle, findings, std::move(gathered.files));
    if (!written) return print_error("gpulet doctor", written.error().full_message());
    std::cerr << "gpulet doctor: wrote " << options.bundle << "; review it before you share it\n";
  }
  return doctor::overall_verdict(findings) == doctor::Verdict::kFail ? kFailed : 0;
}

}  // namespace

void add_doctor(CLI::App& app, Run& run) {
  auto& command = add_command(
      app,
      {.name = "doctor",
       .summary = "Diagnose why Pods cannot use this node's GPUs, and suggest fixes",
       .details =
           "Checks everything from the PCI slot to the scheduler. Works without an agent and without an API\n"
           "server; checks that need them are skipped. Exits with 1 if a check fails.",
       .examples = "  gpulet doctor\n"
                   "  gpulet doctor --bundle /tmp/support.tar.gz\n"
                   "  kubectl -n gpulet exec PODNAME -- gpulet doctor -o json",
       .group = kPlanGroup});
  const auto options = std::make_shared<DoctorOptions>();
  add_output_options(command, options->output);
  command.add_flag_callback(
             "--json", [options] { options->output.format = "json"; }, "same as -o json")
      ->group(kOutputGroup);
  command.add_option("--bundle", options->bundle,
                     "also write a support archive without secrets to this file (.tar, .tar.gz)");
  command.add_option("--host-root", options->host_root, "mount point of the host's / (default /)")
      ->group(kNodeGroup);
  command
      .add_option(
          "--driver-root", options->driver_root,
          "root directory of the driver's files (default: the host's, or /run/nvidia/driver of it if a "
          "driver container has the driver)")
      ->envname("DRIVER_ROOT_CTR_PATH")
      ->group(kNodeGroup);
  command
      .add_option("--dev-root", options->dev_root,
                  "directory that contains dev/ with the driver's nodes (default: the driver root, if it has "
                  "them, else the host's)")
      ->group(kNodeGroup);
  command
      .add_option("--kubelet-dir", options->kubelet_dir,
                  "root directory of the kubelet (default /var/lib/kubelet)")
      ->envname("GPULET_KUBELET_DIR")
      ->group(kNodeGroup);
  add_socket_option(command, options->socket)->group(kNodeGroup);
  command.add_option("--url", options->url, "connect to the agent at http://HOST:PORT instead")
      ->group(kNodeGroup);
  command
      .add_option("--config-file", options->config_file,
                  "the agent's config file, used if no agent is running")
      ->envname("CONFIG_FILE")
      ->group(kNodeGroup);
  add_kubeconfig_option(command, options->kubeconfig);
  command
      .add_option("--service", options->service,
                  "Service of the scheduler extender, which explains pending Pods (default "
                  "gpulet/gpulet-scheduler:9410)")
      ->group(kClusterGroup);
  command
      .add_option("--node-name", options->node_name,
                  "name of this node in the cluster (default: the host name)")
      ->envname("NODE_NAME")
      ->group(kClusterGroup);
  command.callback([options, &run] { run = [options] { return run_doctor(*options); }; });
}

}  // namespace gpulet::cli
