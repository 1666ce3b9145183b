#include "tests/sim/node_fixture.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "base/file.h"
#include "base/text.h"
#include "sim/root/driver_root.h"
#include "sim/state/mig.h"

namespace gpulet::tests {
namespace {

constexpr int kPollIntervalMs = 20;

std::size_t directory_entries(const std::string& directory) {
  std::error_code ignored;
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory, ignored)) ++count;
  return count;
}

// A failed ASSERT in a helper ends the whole test: later steps would only time out.
class AbortsOnFailure final : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.fatally_failed()) throw testing::AssertionException(result);
  }
};

}  // namespace

std::vector<std::string> sanitizer_options() {
  std::vector<std::string> options;
  for (const char* name : {"ASAN_OPTIONS", "LSAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"}) {
    if (const char* value = std::getenv(name)) options.push_back(std::string(name) + "=" + value);
  }
  return options;
}

namespace {

HttpReply send_get_request(const sockaddr* address, socklen_t size, const std::string& path) {
  const FileDescriptor socket(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit{5, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  if (::connect(socket.get(), address, size) != 0) return {};
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  if (::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return {};
  std::string answer;
  char buffer[16384];
  for (ssize_t got = 0; (got = ::recv(socket.get(), buffer, sizeof buffer, 0)) > 0;) {
    answer.append(buffer, static_cast<std::size_t>(got));
  }
  const auto blank = answer.find("\r\n\r\n");
  if (!answer.starts_with("HTTP/1.1 ") || blank == std::string::npos) return {};
  const auto status = text::parse_unsigned(answer.substr(9, 3));
  return {static_cast<int>(status.value_or(0)), answer.substr(blank + 4)};
}

}  // namespace

HttpReply http_get(int port, const std::string& path) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return send_get_request(reinterpret_cast<const sockaddr*>(&address), sizeof address, path);
}

HttpReply http_get(const std::string& socket, const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socket.copy(address.sun_path, sizeof address.sun_path - 1);
  return send_get_request(reinterpret_cast<const sockaddr*>(&address), sizeof address, path);
}

const sim::KubeletResource* find_resource(const sim::KubeletState& state, const std::string& resource) {
  const auto found = state.resources.find(resource);
  return found == state.resources.end() ? nullptr : &found->second;
}

std::set<std::string> healthy_ids(const sim::KubeletResource& resource) {
  std::set<std::string> ids;
  for (const auto& [id, device] : resource.devices) {
    if (device.healthy) ids.insert(id);
  }
  return ids;
}

std::set<std::string> unhealthy_ids(const sim::KubeletResource& resource) {
  std::set<std::string> ids;
  for (const auto& [id, device] : resource.devices) {
    if (!device.healthy) ids.insert(id);
  }
  return ids;
}

std::vector<std::string> granted_ids(const sim::PodGrant& grant, const std::string& resource) {
  std::vector<std::string> ids;
  for (const auto& container : grant.containers) {
    const auto found = container.devices.find(resource);
    if (found != container.devices.end()) {
      ids.insert(ids.end(), found->second.begin(), found->second.end());
    }
  }
  return ids;
}

void NodeTest::SetUpTestSuite() {
  static const bool once = [] {
    testing::UnitTest::GetInstance()->listeners().Append(new AbortsOnFailure);
    return true;
  }();
  static_cast<void>(once);
}

void NodeTest::bring_up_node(const std::string& machine) {
  auto started = sim::SimulatedNode::start_node(machine, GPULET_PROGRAMS);
  ASSERT_TRUE(started) << started.error().full_message();
  node_ = std::move(*started);
  auto state = sim::open_driver_state(node_->driver_root());
  ASSERT_TRUE(state) << state.error().full_message();
  state_ = std::move(*state);
}

namespace {

sim::AgentOptions test_options(sim::AgentOptions options) {
  const auto sanitizers = sanitizer_options();
  options.environment.insert(options.environment.end(), sanitizers.begin(), sanitizers.end());
  // Short recovery hold, unless the test sets it.
  const std::pair<std::string, std::string> soon[] = {{"GPULET_HEALTH_RECOVERY_HOLD", "1s"},
                                                      {"GPULET_HEALTH_UNHEALTHY_POLL_INTERVAL", "200ms"},
                                                      {"GPULET_HEALTH_RECOVERY_ACTION_DELAY", "200ms"},
                                                      {"GPULET_HEALTH_HOLD_GROWTH_FACTOR", "1"}};
  for (const auto& [name, value] : soon) {
    const auto given = [&](const auto& variable) { return variable.starts_with(name + "="); };
    if (std::ranges::none_of(options.environment, given)) options.environment.push_back(name + "=" + value);
  }
  return options;
}

}  // namespace

void NodeTest::start_agent(sim::AgentOptions options) {
  log_start_ = node_->agent_log().size();
  const auto status = node_->start_agent(test_options(std::move(options)));
  ASSERT_TRUE(status) << status.error().full_message();
  agent_expected_ = true;
}

void NodeTest::start_next_agent(sim::AgentOptions options) {
  log_start_ = node_->agent_log().size();
  const auto status = node_->start_next_agent(test_options(std::move(options)));
  ASSERT_TRUE(status) << status.error().full_message();
}

void NodeTest::start_node(const std::string& machine, sim::AgentOptions options) {
  bring_up_node(machine);
  start_agent(std::move(options));
  ASSERT_TRUE(becomes_allocatable(gpu_count()));
}

sim::PodGrant NodeTest::admit_pod(const std::string& pod, unsigned count, const std::string& resource) {
  auto grant =
      sim_kubelet().admit_pod({.name = pod, .uid = pod, .containers = {{"main", {{resource, count}}}}});
  EXPECT_TRUE(grant) << pod << ": " << grant.error().full_message();
  if (!grant) return {};
  EXPECT_EQ(granted_ids(*grant, resource).size(), count);
  return *grant;
}

void NodeTest::write_config(const std::string& text) {
  const auto status = write_file_atomic(config_path(), text);
  ASSERT_TRUE(status) << status.error().full_message();
}

std::vector<std::string> NodeTest::create_mig_devices(std::uint32_t index,
                                                      const std::vector<std::string>& profiles) {
  std::vector<std::string> uuids;
  const auto edit = state_.lock_for_edit();
  auto& gpu = edit->gpus[index];
  const auto mode = sim::set_mig_mode(gpu, true);
  EXPECT_TRUE(mode == sim::MigOutcome::kOk || mode == sim::MigOutcome::kResetRequired);
  if (mode == sim::MigOutcome::kResetRequired) {
    EXPECT_TRUE(sim::reset_gpu(*edit, index));
  }
  for (const auto& text : profiles) {
    const std::string name = text.substr(0, text.find('@'));
    std::optional<std::uint32_t> start;
    if (name != text) start = static_cast<std::uint32_t>(std::stoul(text.substr(name.size() + 1)));
    const std::span profiles_of_gpu(gpu.mig.profiles, gpu.mig.profile_count);
    const auto profile = std::ranges::find_if(profiles_of_gpu, [&](const auto& p) { return name == p.name; });
    if (profile == profiles_of_gpu.end()) {
      ADD_FAILURE() << "no profile " << name;
      continue;
    }
    sim::GpuInstance* instance = nullptr;
    EXPECT_EQ(sim::create_gpu_instance(gpu, profile->id, start, &instance), sim::MigOutcome::kOk);
    if (instance == nullptr) continue;
    for (std::uint32_t i = 0; i < profile->compute_profile_count; ++i) {
      const auto& compute = profile->compute_profiles[i];
      if (compute.slices != profile->slices) continue;
      sim::ComputeInstance* made = nullptr;
      EXPECT_EQ(sim::create_compute_instance(gpu, *instance, compute.id, std::nullopt, &made),
                sim::MigOutcome::kOk);
      if (made != nullptr) uuids.emplace_back(made->uuid);
      break;
    }
  }
  sim::sync_capabilities(node_->driver_root(), gpu);
  EXPECT_EQ(uuids.size(), profiles.size());
  return uuids;
}

void NodeTest::remove_mig_devices(std::uint32_t index) {
  const auto edit = state_.lock_for_edit();
  auto& gpu = edit->gpus[index];
  for (auto& instance : gpu.mig.instances) {
    if (!instance.used) continue;
    for (const auto& compute : instance.compute) {
      if (!compute.used) continue;
      EXPECT_EQ(sim::destroy_compute_instance(gpu, instance, compute.id), sim::MigOutcome::kOk);
    }
    EXPECT_EQ(sim::destroy_gpu_instance(gpu, instance.id), sim::MigOutcome::kOk);
  }
  if (sim::set_mig_mode(gpu, false) == sim::MigOutcome::kResetRequired) {
    EXPECT_TRUE(sim::reset_gpu(*edit, index));
  }
  sim::sync_capabilities(node_->driver_root(), gpu);
}

bool NodeTest::becomes_true(const std::function<bool()>& condition) {
  const FileDescriptor inotify(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  ::inotify_add_watch(inotify.get(), (node_->directory() + "/agent.log").c_str(), IN_MODIFY);
  const auto deadline = std::chrono::steady_clock::now() + kTestTimeout;
  for (;;) {
    if (condition()) return true;
    if (std::chrono::steady_clock::now() > deadline) return false;
    pollfd ready{inotify.get(), POLLIN, 0};
    if (::poll(&ready, 1, kPollIntervalMs) > 0) {
      char events[4096];
      while (::read(inotify.get(), events, sizeof events) > 0) {
      }
    }
  }
}

bool NodeTest::wait_for_kubelet(const std::function<bool(const sim::KubeletState&)>& done) {
  return sim_kubelet().wait_for(done, kTestTimeout);
}

bool NodeTest::becomes_allocatable(std::size_t count, const std::string& resource) {
  return sim_kubelet().wait_for_allocatable(resource, count, kTestTimeout);
}

bool NodeTest::becomes_unhealthy(const std::set<std::string>& ids, const std::string& resource) {
  return wait_for_kubelet([&](const sim::KubeletState& state) {
    const auto* known = find_resource(state, resource);
    return known != nullptr && known->connected && unhealthy_ids(*known) == ids;
  });
}

std::string NodeTest::agent_log() const {
  auto text = node_->agent_log();
  return text.size() > log_start_ ? text.substr(log_start_) : std::string();
}

std::string NodeTest::wait_for_log(const std::string& reason, const std::string& part) {
  std::string newest;
  becomes_true([&] {
    for (const auto& line : text::split(agent_log(), '\n')) {
      const auto entry = nlohmann::json::parse(line, nullptr, false);
      if (!entry.is_object() || entry.value("reason", "") != reason) continue;
      const auto message = entry.value("message", "");
      if (message.find(part) != std::string::npos) newest = message;
    }
    return !newest.empty();
  });
  return newest;
}

int NodeTest::listener_port() {
  int port = 0;
  becomes_true([&] {
    for (const auto& line : text::split(agent_log(), '\n')) {
      const auto entry = nlohmann::json::parse(line, nullptr, false);
      if (entry.is_object() && entry.value("message", "") == "listening") port = entry.value("port", 0);
    }
    return port != 0;
  });
  return port;
}

bool NodeTest::is_agent_running() const {
  const auto stat = read_file("/proc/" + std::to_string(node_->agent_id()) + "/stat");
  if (!stat) return false;
  const auto name_end = stat->rfind(") ");
  return name_end != std::string::npos && (*stat)[name_end + 2] != 'Z';
}

std::set<pid_t> NodeTest::agent_children() const {
  const auto id = std::to_string(node_->agent_id());
  std::set<pid_t> children;
  std::error_code ignored;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + id + "/task", ignored)) {
    const auto text = read_file(task.path().string() + "/children");
    for (const auto& child : text::split(text.value_or(""), ' ')) {
      if (const auto pid = text::parse_unsigned(text::trim(child))) children.insert(static_cast<pid_t>(*pid));
    }
  }
  return children;
}

std::size_t NodeTest::agent_descriptors() const {
  return directory_entries("/proc/" + std::to_string(node_->agent_id()) + "/fd");
}

std::size_t NodeTest::agent_threads() const {
  return directory_entries("/proc/" + std::to_string(node_->agent_id()) + "/task");
}

std::uint64_t NodeTest::registration_count(const std::string& resource) const {
  const auto state = node_->kubelet().kubelet_state();
  const auto* known = find_resource(state, resource);
  return known == nullptr ? 0 : known->registrations;
}

std::uint32_t NodeTest::gpu_index(const std::string& wanted) const {
  for (std::uint32_t i = 0; i < gpu_count(); ++i) {
    if (gpu_uuid(i) == wanted) return i;
  }
  ADD_FAILURE() << "no GPU " << wanted;
  return 0;
}

void NodeTest::TearDown() {
  if (!node_) return;
  if (agent_expected_) {
    EXPECT_TRUE(is_agent_running()) << "the agent has ended";
  }
  const auto everything = node_->agent_log();
  for (const char* report : {"Sanitizer", "runtime error:", "terminate called", "Assertion"}) {
    EXPECT_EQ(everything.find(report), std::string::npos) << "the agent's log has a report of " << report;
  }
  if (HasFailure()) std::cerr << "--- the agent's log\n" << everything << "---\n";
}

}  // namespace gpulet::tests
