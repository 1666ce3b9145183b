#include "tests/sim/limited_pods.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"

namespace gpulet::tests {
namespace {

using nlohmann::json;

constexpr const char* kCgroupMounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
constexpr std::chrono::seconds kEndLimit{10};

// Of this test program: several run at the same time.
std::string test_slice() { return "/gpulet-test-" + std::to_string(::getpid()); }

// The kernel removes a cgroup when its last process has been reaped.
void remove_cgroups(const std::filesystem::path& directory) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    if (entry.is_directory(ignored)) remove_cgroups(entry.path());
  }
  ::rmdir(directory.c_str());
}

Status join_cgroup(const std::string& directory, pid_t pid) {
  std::error_code failure;
  std::filesystem::create_directories(directory, failure);
  std::ofstream file(directory + "/cgroup.procs");
  file << pid << std::flush;
  if (failure || !file) return fail(Code::kIo, "cannot add a process to the cgroup", directory);
  return {};
}

}  // namespace

Result<std::string> cgroup_mount() {
  for (const char* mount : kCgroupMounts) {
    if (::access((std::string(mount) + "/cgroup.controllers").c_str(), F_OK) == 0) return mount;
  }
  return fail(Code::kNotFound, "this machine has no cgroup v2");
}

std::vector<std::string> cgroup_launcher() {
  return {"/usr/bin/unshare",
          "--mount",
          "/bin/sh",
          "-c",
          "mount -t cgroup2 none /sys/fs/cgroup && exec \"$@\"",
          "sh"};
}

Result<std::unique_ptr<TestContainer>> TestContainer::start_container(const std::string& uid,
                                                                      const std::string& id,
                                                                      std::vector<std::string> environment) {
  GPULET_TRY_ASSIGN(const auto mount, cgroup_mount());
  std::unique_ptr<TestContainer> made(new TestContainer(uid, id, std::move(environment)));
  std::string underlined = uid;
  std::ranges::replace(underlined, '-', '_');
  made->cgroup_ = mount + test_slice() + "/kubepods.slice/kubepods-pod" + underlined +
                  ".slice/cri-containerd-" + id + ".scope";
  GPULET_TRY(made->add_process());
  return made;
}

TestContainer::~TestContainer() {
  end_processes();
  remove_cgroups(cgroup_);
  // Where others are left the directories stay.
  const auto pod = std::filesystem::path(cgroup_).parent_path();
  for (const auto& directory : {pod, pod.parent_path(), pod.parent_path().parent_path()})
    ::rmdir(directory.c_str());
}

Result<unsigned> TestContainer::add_process(const std::string& below) {
  GPULET_TRY_ASSIGN(auto process, Process::spawn({.program = "/usr/bin/tail",
                                                  .arguments = {"tail", "-f", "/dev/null"},
                                                  .environment = environment_}));
  const pid_t pid = process->pid();
  processes_.push_back(std::move(process));
  GPULET_TRY(join_cgroup(below.empty() ? cgroup_ : cgroup_ + "/" + below, pid));
  return static_cast<unsigned>(pid);
}

void TestContainer::end_processes() {
  for (const auto& process : processes_) process->send_signal(SIGKILL);
  for (const auto& process : processes_) static_cast<void>(process->wait_for_exit(kEndLimit));
}

std::string TestContainer::oci_state(const std::string& uid, const std::string& name,
                                     const std::string& pod) const {
  json annotations = {{"io.kubernetes.cri.sandbox-uid", uid}, {"io.kubernetes.cri.container-name", name}};
  if (!pod.empty()) {
    annotations["io.kubernetes.cri.sandbox-namespace"] = "team";
    annotations["io.kubernetes.cri.sandbox-name"] = pod;
  }
  return json{{"ociVersion", "1.2.0"},   {"id", id_},
              {"status", "created"},     {"pid", processes_.front()->pid()},
              {"bundle", "/run/bundle"}, {"annotations", std::move(annotations)}}
      .dump();
}

LimitedPods::LimitedPods(const std::string& directory)
    : api_(std::make_unique<NodeApi>(directory,
                                     [this](const k8s::Received& request) { return reply_to(request); })) {}

LimitedPods::~LimitedPods() = default;

json LimitedPods::make_pod(const std::string& name, const std::string& uid, unsigned limit_mib) {
  json pod = {{"metadata", {{"namespace", "team"}, {"name", name}, {"uid", uid}}},
              {"spec",
               {{"nodeName", kLimitNode},
                {"containers", json::array({{{"name", "main"},
                                             {"securityContext", {{"runAsUser", 1000}}},
                                             {"resources", {{"limits", {{"nvidia.com/gpu", "1"}}}}}}})}}},
              {"status", {{"containerStatuses", json::array()}}}};
  if (limit_mib != 0)
    pod["metadata"]["annotations"] = {{"gpulet.io/gpu-memory", std::to_string(limit_mib) + "Mi"}};
  return pod;
}

void LimitedPods::put_pod(const json& pod) {
  const std::lock_guard lock(mutex_);
  pods_[pod["metadata"]["name"].get<std::string>()] = pod;
}

json LimitedPods::pod(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return pods_.at(name);
}

void LimitedPods::set_container_id(const std::string& name, const std::string& id) {
  const std::lock_guard lock(mutex_);
  pods_.at(name)["status"]["containerStatuses"] =
      json::array({{{"name", "main"}, {"containerID", "containerd://" + id}}});
}

std::vector<std::string> LimitedPods::events_about(const std::string& name) {
  std::vector<std::string> events;
  for (const auto& body : api_->request_bodies("POST /api/v1/namespaces/team/events")) {
    const auto event = json::parse(body, nullptr, false);
    if (!event.is_object() || event["involvedObject"].value("name", "") != name) continue;
    events.push_back(event.value("reason", "") + ": " + event.value("message", ""));
  }
  return events;
}

std::vector<std::string> LimitedPods::environment() const {
  return {std::string("NODE_NAME=") + kLimitNode, "KUBECONFIG=" + api_->kubeconfig()};
}

std::optional<k8s::TestApiServer::Reply> LimitedPods::reply_to(const k8s::Received& request) {
  constexpr std::string_view kPods = "GET /api/v1/namespaces/team/pods/";
  const auto line = request.line();
  if (line.find("/events") != std::string::npos) return k8s::TestApiServer::Reply{201, request.body};
  if (!line.starts_with(kPods)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const auto found = pods_.find(line.substr(kPods.size()));
  if (found == pods_.end()) return k8s::TestApiServer::Reply{404, R"({"kind":"Status"})"};
  return k8s::TestApiServer::Reply{200, found->second.dump()};
}

}  // namespace gpulet::tests
