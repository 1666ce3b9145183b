// The ways out of a memory limit on a shared GPU, one table: for each, what blocks it or what the agent does
// about it, and where an operator reads it. The agent and gpulet-hook run as processes, on the simulated
// driver of branch 615, with containers in cgroups of this machine. Needs root and cgroup v2.
//
// What a real driver counts is not tested here: tests/gpu/check_memory.py has it.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "sim/state/memory_limits.h"
#include "tests/sim/limit_fixture.h"

namespace gpulet::tests {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::HasSubstr;

constexpr const char* kPart = "nvidia.com/gpu.part";
constexpr std::size_t kShares = 4;
constexpr unsigned kLimitMib = 1024;
constexpr unsigned kNeighbourMib = 4096;
constexpr const char* kUid = "0b1d4c8e-1111-4222-8333-444455556666";
constexpr const char* kNeighbourUid = "0b1d4c8e-1111-4222-8333-777788889999";

// Two Pods share a GPU: "tenant" with kLimitMib, which tries to escape, and "neighbour" with kNeighbourMib.
class EscapeTest : public LimitTest {
 protected:
  void SetUp() override {
    LimitTest::SetUp();
    if (IsSkipped()) return;
    pods_->put_pod(LimitedPods::make_pod("tenant", kUid, kLimitMib));
    pods_->put_pod(LimitedPods::make_pod("neighbour", kNeighbourUid, kNeighbourMib));
    share_by("timeSlicing");
    for (const auto& [name, uid] : {std::pair{"tenant", kUid}, {"neighbour", kNeighbourUid}})
      admit_to_team(name, uid, {{"main", {{kPart, 1}}}});
  }
  void share_by(const std::string& strategy) {
    write_limit_config(strategy, "{name: gpu, devices: [0], rename: gpu.part, replicas: 4}");
    start_limiting_agent(kPart, kShares);
  }
  void stop_and_share_by(const std::string& strategy) {
    allow_agent_exit();
    const auto stopped = sim_node().stop_agent();
    EXPECT_TRUE(stopped) << stopped.error().full_message() << agent_log();
    share_by(strategy);
  }

  // Its Pod's status shows it.
  TestContainer& make_tenant(std::vector<std::string> environment = {}) {
    auto& container = make_container(kUid, std::move(environment));
    pods_->set_container_id("tenant", container.id());
    return container;
  }
  TestContainer& start_tenant(std::vector<std::string> environment = {}) {
    auto& container = make_tenant(environment);
    EXPECT_EQ(run_hook(container, kUid, {.environment = std::move(environment)}), "");
    return container;
  }

  // Allocates as a CUDA call of the process would. The driver's refusal; empty: it has the memory.
  std::string allocate(const std::string& cgroup, unsigned pid, unsigned mebibytes,
                       std::vector<std::string> options = {}) {
    std::vector<std::string> arguments{
        "load",     "0",   "10", "--memory", std::to_string(mebibytes), "--pid", std::to_string(pid),
        "--cgroup", cgroup};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const auto done = sim_node().run_gpulet_sim(std::move(arguments));
    return done ? std::string() : done.error().full_message();
  }
  std::string overuse(const TestContainer& container) {
    return allocate(container.cgroup(), container.pid(), kLimitMib + 1);
  }
  std::set<std::string> limited_containers() {
    std::set<std::string> ids;
    for (const auto& [id, limits] : driver_limits()) ids.insert(id);
    return ids;
  }
  // "killed": the audit has ended the process.
  std::string end_of(TestContainer& container) {
    const auto exit = container.process(0).wait_for_exit(kTestTimeout);
    if (!exit) return "it runs";
    return exit->signal == SIGKILL ? "killed" : exit->exit_text();
  }

  // Of container main of the Pod, as the agent shows it.
  json limit_status(const std::string& pod) {
    const auto node = json::parse(http_get(sim_node().socket(), "/api/node").body, nullptr, false);
    if (!node.is_object() || !node.contains("memory_limit")) return {};
    for (const auto& one : node["memory_limit"]["containers"]) {
      if (one.value("pod", "") == pod) return one;
    }
    return {};
  }
  std::vector<std::string> samples(const std::string& name) {
    std::vector<std::string> lines;
    for (const auto& line : text::split(http_get(listener_port(), "/metrics").body, '\n')) {
      if (line.starts_with(name)) lines.push_back(line);
    }
    return lines;
  }

 public:  // the attempts: what blocks each, as it says so itself
  // Variables of the container, which other limiters read, change nothing here.
  std::string forged_environment() {
    auto& container = start_tenant({"NVIDIA_GPU_MEMORY_LIMIT=15000", "NVIDIA_GPU_MEMORY_REQUEST=15000",
                                    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=14G", "GPU_MEMORY_LIMIT=15000",
                                    "GPULET_FRACTION_DRIVER_LIMITS=false"});
    return overuse(container);
  }
  // The annotation of a Pod that runs; its container starts again.
  std::string raised_annotation() {
    start_tenant().end_processes();
    auto pod = pods_->pod("tenant");
    pod["metadata"]["annotations"]["gpulet.io/gpu-memory"] = "15000Mi";
    pods_->put_pod(pod);
    refresh_pods();
    return overuse(start_tenant());
  }
  // The runtime is told of another cgroup than the kernel shows: here, that of the neighbour.
  std::string foreign_cgroup() {
    auto& neighbour = make_container(kNeighbourUid);
    auto& container = make_tenant();
    const auto of_process = [](unsigned pid) { return "/" + std::to_string(pid) + "/cgroup"; };
    const auto shown = read_file("/proc" + of_process(neighbour.pid()));
    EXPECT_TRUE(shown);
    const std::string proc = sim_node().directory() + "/proc";
    std::filesystem::create_directories(proc + "/" + std::to_string(container.pid()));
    EXPECT_TRUE(write_file_atomic(proc + of_process(container.pid()), shown.value_or("")));
    return run_hook(container, kUid, {.arguments = {"--host-proc", proc}});
  }
  std::string foreign_uid() { return run_hook(make_tenant(), kNeighbourUid); }
  // A client of MPS that asks for all SMs, beside a Pod that requests less.
  std::string forged_percentage() {
    allow_agent_exit();
    EXPECT_TRUE(sim_node().stop_agent());
    auto pod = pods_->pod("tenant");
    pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpucores"] = "30";
    pods_->put_pod(pod);
    write_rule_config(kPart);
    start_limiting_agent(kPart, kShares);
    start_tenant({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100"});
    const auto list = ask_mps(kPart, {"namespace", "list", "--format=csv,noheader"});
    for (const auto& line : text::split(list, '\n')) {
      const auto fields = text::split(line, ',');
      if (std::ranges::count(fields, "30.00") != 0) return client_limits(fields[3], "100");
    }
    return list;
  }
  // A process takes the open device file of one that has ended: nothing is charged.
  std::string dead_creator() { return past_the_driver("dead-creator"); }
  std::string managed_memory() { return past_the_driver("managed"); }
  std::string past_the_driver(const std::string& kind) {
    auto& container = start_tenant();
    EXPECT_TRUE(container.add_process()) << "which stays: the container, and its limit, do not end";
    EXPECT_EQ(allocate(container.cgroup(), container.pid(), kLimitMib * 2, {"--past-limit", kind}), "");
    return end_of(container);
  }
  // It sets its limit itself.
  std::string sys_admin() {
    auto pod = pods_->pod("tenant");
    pod["spec"]["containers"][0]["securityContext"]["capabilities"]["add"] = {"SYS_ADMIN"};
    pods_->put_pod(pod);
    refresh_pods();
    auto& container = start_tenant();
    {
      const auto found = sim::look_up_cgroup(container.cgroup());
      const auto machine = machine_state().lock_for_edit();
      EXPECT_EQ(sim::set_memory_limit(*machine, 0, found.chain.front(), 0, std::uint64_t{15000} << 20),
                sim::LimitOutcome::kOk);
    }
    EXPECT_EQ(overuse(container), "");
    return end_of(container);
  }
  // Many processes, half of them in cgroups that the container makes: together they get its limit.
  std::string fork_bomb() {
    auto& container = start_tenant();
    constexpr unsigned kProcesses = 20, kEachMib = 100;
    std::string refusal;
    unsigned successes = 0;
    for (unsigned i = 0; i < kProcesses; ++i) {
      const std::string below = i % 2 == 0 ? "" : "inner/" + std::to_string(i);
      const auto pid = container.add_process(below);
      EXPECT_TRUE(pid) << pid.error().full_message();
      auto refused = allocate(below.empty() ? container.cgroup() : container.cgroup() + "/" + below,
                              pid.value_or(0), kEachMib);
      if (refused.empty()) {
        ++successes;
      } else {
        refusal = std::move(refused);
      }
    }
    EXPECT_EQ(successes, kLimitMib / kEachMib);
    return refusal;
  }
  // A new cgroup has no limit of the driver: the hook asks for one again, and the old one's is cleared.
  std::string container_restart() {
    auto& first = start_tenant();
    EXPECT_EQ(limited_containers(), std::set{first.id()});
    first.end_processes();
    auto& second = start_tenant();
    EXPECT_TRUE(becomes_true([&] { return limited_containers() == std::set{second.id()}; })) << agent_log();
    return overuse(second);
  }
  // It starts while nobody can set a limit.
  std::string restart_without_agent() {
    start_tenant().end_processes();
    allow_agent_exit();
    sim_node().kill_agent();
    const auto refusal = run_hook(make_tenant(), kUid, {.arguments = {"--timeout", "1s"}});
    start_limiting_agent(kPart, kShares);
    return refusal;
  }
  // A client of MPS puts links into its pipe directory, and a pipe that nobody writes in place of the file
  // with the daemon's process id: an agent that starts, and one that stops, must follow none of them.
  std::string linked_pipe_directory() {
    const std::string outside = sim_node().directory() + "/outside";
    std::filesystem::create_directories(outside);
    EXPECT_TRUE(write_file_atomic(outside + "/file", "of the node"));
    stop_and_share_by("mps");
    const std::string pipes = sim_node().mps_root() + "/" + kPart + "/pipe";
    std::filesystem::create_directory_symlink(outside, pipes + "/link");
    std::filesystem::remove(pipes + "/nvidia-cuda-mps-control.pid");
    EXPECT_EQ(::mkfifo((pipes + "/nvidia-cuda-mps-control.pid").c_str(), 0600), 0);
    sim_node().kill_agent();
    start_limiting_agent(kPart, kShares);
    EXPECT_TRUE(std::filesystem::is_symlink(pipes + "/link") || !std::filesystem::exists(pipes + "/link"));
    stop_and_share_by("timeSlicing");
    const auto kept = read_file(outside + "/file").value_or("removed");
    stop_and_share_by("mps");
    auto pod = pods_->pod("tenant");
    pod["spec"]["containers"][0]["securityContext"] = {{"runAsUser", 0}};
    pods_->put_pod(pod);
    refresh_pods();
    start_tenant();
    return kept;
  }
  // kubectl debug --profile=sysadmin --target=main
  std::string ephemeral_container() {
    start_tenant();
    auto pod = pods_->pod("tenant");
    pod["spec"]["ephemeralContainers"] = json::array(
        {{{"name", "debug"}, {"targetContainerName", "main"}, {"securityContext", {{"privileged", true}}}}});
    pods_->put_pod(pod);
    return "told";
  }
  // kubectl debug --target=main
  std::string ephemeral_target() {
    start_tenant();
    auto pod = pods_->pod("tenant");
    pod["spec"]["ephemeralContainers"] = json::array({{{"name", "debug"}, {"targetContainerName", "main"}}});
    pods_->put_pod(pod);
    return "told";
  }
};

struct Escape {
  const char* name;
  std::string (EscapeTest::*attempt)();
  const char* blocked_by;  // in what the attempt returns
  const char* grade;       // of the tenant's limit afterwards
  const char* reason;      // in the reasons of the grade; empty: none
  const char* event;       // in an event about the tenant's Pod; empty: none
  const char* metric;      // the start of a sample
};

constexpr const char* kDriverRefuses = "only 1024 MiB are free below the cgroup's memory limit";
constexpr const char* kKilledEvent = "GpuMemoryKilled: container main uses";
constexpr const char* kKilledMetric = "gpulet_memory_limit_exceeded_total{action=\"kill\"} 1";

const Escape kEscapes[] = {
    {"ForgedEnvironment", &EscapeTest::forged_environment, kDriverRefuses, "kernel", "", "", ""},
    {"RaisedAnnotation", &EscapeTest::raised_annotation, kDriverRefuses, "kernel", "", "", ""},
    {"ForgedPercentage", &EscapeTest::forged_percentage, "threads 30.0 memory 0=", "kernel", "", "", ""},
    {"ForeignCgroup", &EscapeTest::foreign_cgroup, "the container runtime says /gpulet-test-", "audited",
     "the driver's limit was not set when the container started", "", ""},
    {"ForeignPodUid", &EscapeTest::foreign_uid,
     "but the container runtime says Pod 0b1d4c8e-1111-4222-8333-777788889999", "audited",
     "the driver's limit was not set when the container started", "", ""},
    {"DeadCreator", &EscapeTest::dead_creator, "killed", "kernel", "", kKilledEvent, kKilledMetric},
    {"ManagedMemory", &EscapeTest::managed_memory, "killed", "kernel", "", kKilledEvent, kKilledMetric},
    {"SysAdmin", &EscapeTest::sys_admin, "killed", "none", "container main has the capability SYS_ADMIN",
     kKilledEvent, kKilledMetric},
    {"ForkBomb", &EscapeTest::fork_bomb, "only 24 MiB are free below the cgroup's memory limit", "kernel", "",
     "", ""},
    {"ContainerRestart", &EscapeTest::container_restart, kDriverRefuses, "kernel", "", "", ""},
    {"RestartWithoutAgent", &EscapeTest::restart_without_agent, "no agent answers", "audited",
     "the driver's limit was not set when the container started", "", ""},
    {"LinkedPipeDirectory", &EscapeTest::linked_pipe_directory, "of the node", "audited",
     "container main may run as root beside an MPS control pipe", "", ""},
    {"EphemeralContainer", &EscapeTest::ephemeral_container, "told", "none",
     "ephemeral container debug is privileged",
     "GpuMemoryGradeLowered: the memory limit of container main has now at most the grade none: ephemeral "
     "container debug is privileged",
     ""},
    {"EphemeralTarget", &EscapeTest::ephemeral_target, "told", "audited",
     "ephemeral container debug shares the processes of container main",
     "GpuMemoryGradeLowered: the memory limit of container main has now at most the grade audited: ephemeral "
     "container debug shares the processes of container main",
     ""},
};

class EscapeTableTest : public EscapeTest, public testing::WithParamInterface<Escape> {};

TEST_P(EscapeTableTest, IsBlockedOrToldWithItsGrade) {
  const Escape& escape = GetParam();
  EXPECT_THAT((this->*escape.attempt)(), HasSubstr(escape.blocked_by)) << agent_log();
  refresh_pods();
  json status;
  // An earlier reading may have the grade for another reason.
  const auto has_grade = [&] {
    status = limit_status("tenant");
    return status.is_object() && status.value("grade", "") == escape.grade &&
           status["reasons"].dump().find(escape.reason) != std::string::npos;
  };
  ASSERT_TRUE(becomes_true(has_grade)) << status << agent_log();
  if (*escape.reason != '\0') {
    EXPECT_THAT(status["reasons"].dump(), HasSubstr(escape.reason));
  } else {
    EXPECT_EQ(status["reasons"], json::array());
  }
  EXPECT_TRUE(becomes_true([&] {
    return std::ranges::any_of(samples("gpulet_container_gpu_memory_limit_grade"), [&](const auto& line) {
      return line.find("pod=\"tenant\"") != std::string::npos &&
             line.find(std::string("grade=\"") + escape.grade + "\"") != std::string::npos;
    });
  })) << testing::PrintToString(samples("gpulet_container"));
  if (*escape.metric != '\0') {
    EXPECT_TRUE(becomes_true([&] { return !samples(escape.metric).empty(); }));
  }
  const auto events = [&] { return pods_->events_about("tenant"); };
  if (*escape.event != '\0') {
    EXPECT_TRUE(becomes_true([&] { return testing::Matches(Contains(HasSubstr(escape.event)))(events()); }))
        << testing::PrintToString(events());
  } else {
    EXPECT_THAT(events(), testing::IsEmpty());
  }
  EXPECT_THAT(pods_->events_about("neighbour"), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Fractions, EscapeTableTest, testing::ValuesIn(kEscapes),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace gpulet::tests
