#include "cli/doctor_command.h"

#include <limits.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <iostream>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/exit_codes.h"
#include "cli/kubectl_access.h"
#include "cli/top_client.h"
#include "cli/version_command.h"
#include "config/load.h"
#include "doctor/archive.h"
#include "doctor/gather.h"
#include "doctor/redact.h"
#include "doctor/report.h"
#include "web/document.h"

namespace gpulet::cli {
namespace {

constexpr const char* kFolder = "gpulet-doctor/";
constexpr const char* kContainerDriverRoot = "/driver-root";  // where the DaemonSet mounts it

// A thread may still sit in a driver's call, or in a mount that hangs: no destructor may run under it.
[[noreturn]] void leave(int code) {
  std::cout.flush();
  std::cerr.flush();
  ::_exit(code);
}

[[noreturn]] void refuse(int code, const Error& error) {
  std::cerr << "gpulet doctor: " << error.text() << '\n';
  leave(code);
}

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? text::lower(name.data()) : std::string();
}

bool is_gzip(const std::string& file) { return file.ends_with(".gz") || file.ends_with(".tgz"); }

Result<doctor::Places> places_of(const DoctorOptions& options) {
  doctor::Places places;
  if (!options.host_root.starts_with('/'))
    return fail(Code::kInvalidArgument, "no absolute path; the folder where the host's / is mounted would do",
                "--host-root '" + options.host_root + "'");
  places.host_root = options.host_root;
  while (places.host_root.size() > 1 && places.host_root.ends_with('/')) places.host_root.pop_back();
  if (!options.bundle.empty() && !is_gzip(options.bundle) && !options.bundle.ends_with(".tar"))
    return fail(Code::kInvalidArgument, "a name that ends in .tar, .tar.gz or .tgz would do",
                "--bundle '" + options.bundle + "'");
  places.in_container = places.host_root == "/" && config::process_environment().contains("KUBERNETES_SERVICE_HOST");
  places.driver_root = options.driver_root;
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
  if (!options.kubeconfig.empty())  // what is wrong in it is no fault of the node
    GPULET_TRY(cluster::access_from_kubeconfig(options.kubeconfig, {.allowed = true}));
  places.access = kubectl_access(options.kubeconfig);
  if (!options.service.empty()) places.service = options.service;
  places.node_name = options.node_name.empty() ? host_name() : options.node_name;
  return places;
}

Status write_bundle(const std::string& file, const std::vector<doctor::Finding>& findings,
                    std::vector<doctor::ArchiveFile> files) {
  files.insert(files.begin(), {{"report.txt", doctor::text_report(findings)},
                               {"report.json", doctor::json_report(findings)},
                               {"version.txt", version() + "\n"}});
  for (auto& one : files) {
    one.name = kFolder + one.name;
    one.content = doctor::without_secrets(one.content);
  }
  GPULET_TRY_ASSIGN(auto archive, doctor::tar_of(files, std::chrono::system_clock::now()));
  if (is_gzip(file)) archive = web::gzip(archive);
  return write_file_atomic(file, archive, 0600);
}

}  // namespace

void doctor(const DoctorOptions& options) {
  log::configure(log::Level::kError, log::Format::kText);  // what does not answer is in the report
  auto places = places_of(options);
  if (!places) refuse(kWrongCommand, places.error());
  auto gathered = doctor::gather(std::move(*places));
  const auto findings = doctor::diagnose(gathered.facts);
  std::cout << (options.output == "json" ? doctor::json_report(findings) : doctor::text_report(findings));
  if (!options.bundle.empty()) {
    const auto written = write_bundle(options.bundle, findings, std::move(gathered.files));
    if (!written) refuse(kFailed, written.error());
    std::cerr << "gpulet doctor: written " << options.bundle
              << "; look through it before it leaves your hands\n";
  }
  leave(doctor::verdict_of(findings) == doctor::Verdict::kFail ? kFailed : 0);
}

}  // namespace gpulet::cli
