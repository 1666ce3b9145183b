// A hostile driver: calls that never return, invalid values, lost GPUs, event storms, reloads, replaced
// cards. Throughout, healthy GPUs stay offered and allocatable, the log has exactly one line per change, and
// CPU and memory stay bounded. Each test prints its figures.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/file.h"
#include "base/text.h"
#include "sim/control/answers.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

namespace control = sim::control;
using Clock = std::chrono::steady_clock;
using Gpus = std::set<std::uint32_t>;

// Figures of sanitized or unoptimized builds are not the agent's.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
constexpr bool kMeasured = false;
#else
constexpr bool kMeasured = true;
#endif
constexpr double kMaxCpuPercent = 2.0;
constexpr long kMaxGrowthKib = 1024;
// Each load of the simulated library leaves its mapping of the state and its event sets.
constexpr long kLeftBySimulatorKib = 350;
constexpr auto kWindow = 3s;  // the window of CPU and memory measurements
constexpr auto kSampleInterval = 20ms;
constexpr std::uint64_t kStormRate = 10'000;  // XIDs a second

constexpr std::uint32_t kNonsense = 1001;  // not an nvmlReturn_t, but in the range of its type
constexpr std::uint32_t kUnknownError = 999;

class SimHostile : public NodeTest {
 protected:
  // Short probe interval and short timeout of hanging GPUs.
  static sim::AgentOptions fast_options() {
    return {.arguments = {"--fail-on-init-error=false"},
            .environment = {"GPULET_HEALTH_LIVENESS_INTERVAL=1s", "GPULET_DRIVER_CALL_TIMEOUT=300ms"}};
  }

  // The agent's CPU time, memory and log lines since begin_measurement().
  void begin_measurement() {
    cpu_ = cpu_time();
    resident_ = sim_node().agent_resident_bytes();
    log_size_ = agent_log().size();
  }
  // Counts log lines with a reason, which are also cluster events.
  std::vector<std::string> lines_since() const {
    std::vector<std::string> lines;
    for (const auto& line : text::split(agent_log().substr(log_size_), '\n')) {
      if (line.find("\"reason\":") != std::string::npos) lines.push_back(line);
    }
    return lines;
  }
  void print_measurement(const char* what, Clock::duration time, std::size_t lines,
                         long most_growth_kib = kMaxGrowthKib) const {
    const double seconds = std::chrono::duration<double>(time).count();
    const double percent = 100 * std::chrono::duration<double>(cpu_time() - cpu_).count() / seconds;
    const long kib = (static_cast<long>(node_resident()) - static_cast<long>(resident_)) / 1024;
    std::printf("enemy: %s: CPU %.2f %% over %.1f s, %+ld KiB, %zu lines\n", what, percent, seconds, kib,
                lines);
    if (!kMeasured) return;
    EXPECT_LT(percent, kMaxCpuPercent);
    EXPECT_LT(kib, most_growth_kib);
  }

  // Checks that all GPUs except the broken ones stay offered; calls `pace` repeatedly.
  void others_stay_allocatable(const Gpus& broken, Clock::duration time,
                               const std::function<void()>& pace = {}) {
    std::set<std::string> others;
    for (std::uint32_t i = 0; i < gpu_count(); ++i) {
      if (!broken.contains(i)) others.insert(gpu_uuid(i));
    }
    std::set<std::string> missing;
    const auto one_is_missing = [&](const sim::KubeletState& state) {
      const auto* resource = find_resource(state, kGpu);
      const auto offered = resource == nullptr ? std::set<std::string>() : healthy_ids(*resource);
      missing.clear();
      std::ranges::set_difference(others, offered, std::inserter(missing, missing.end()));
      return !missing.empty();
    };
    for (const auto end = Clock::now() + time; Clock::now() < end;) {
      if (pace) pace();
      ASSERT_FALSE(sim_kubelet().wait_for(one_is_missing, kSampleInterval))
          << *missing.begin() << " is not offered";
    }
  }

  // Breaks one GPU, then heals it: it alone is withdrawn, with one log line until it is healed.
  void break_one_gpu(const char* what, std::uint32_t gpu, const std::function<void()>& break_it,
                     const std::function<void()>& heal_it) {
    start_node("hgx-h100", fast_options());
    begin_measurement();
    const auto started = Clock::now();
    break_it();
    ASSERT_TRUE(becomes_unhealthy({gpu_uuid(gpu)}));
    admit_pod("others", gpu_count() - 1);
    others_stay_allocatable({gpu}, kWindow);
    const auto lines = lines_since();
    EXPECT_EQ(lines.size(), 1u) << text::join(lines, "\n");
    print_measurement(what, Clock::now() - started, lines.size());
    heal_it();
    EXPECT_TRUE(becomes_allocatable(gpu_count()));
  }

 private:
  std::chrono::nanoseconds cpu_time() const {
    clockid_t clock{};
    timespec used{};
    EXPECT_EQ(::clock_getcpuclockid(node_id(), &clock), 0);
    EXPECT_EQ(::clock_gettime(clock, &used), 0);
    return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
  }
  pid_t node_id() const { return const_cast<SimHostile*>(this)->sim_node().agent_id(); }
  std::size_t node_resident() const {
    return const_cast<SimHostile*>(this)->sim_node().agent_resident_bytes();
  }

  std::chrono::nanoseconds cpu_{};
  std::size_t resident_ = 0;
  std::size_t log_size_ = 0;
};

// Each of these codes from every optional call once withdrew all GPUs of a node.
TEST_F(SimHostile, OddReturnCodesOfAllOptionalCallsWithdrawNothing) {
  start_node("hgx-h100", fast_options());
  begin_measurement();
  for (const std::uint32_t code : {2u, 4u, 6u, 19u, 21u, 23u, 27u, 29u, kUnknownError}) {
    ASSERT_TRUE(control::set_answer(machine_state(), "*", std::nullopt, code));
    others_stay_allocatable({}, 600ms);
    ASSERT_FALSE(HasFatalFailure()) << "return code " << code;
  }
  ASSERT_TRUE(control::set_answer(machine_state(), "*", std::nullopt, 0));
  admit_pod("all", gpu_count());
  for (const auto& line : lines_since()) EXPECT_EQ(line.find("Unhealthy"), std::string::npos) << line;
}

TEST_F(SimHostile, ACallThatNeverReturns) {
  break_one_gpu(
      "a call that never returns", 2, [&] { ASSERT_TRUE(control::hang_calls(machine_state(), 2)); },
      [&] { ASSERT_TRUE(control::heal_faults(machine_state(), 2)); });
}

TEST_F(SimHostile, AGpuWithInvalidValues) {
  break_one_gpu(
      "answers that are nonsense", 5, [&] { ASSERT_TRUE(control::fail_gpu(machine_state(), 5, kNonsense)); },
      [&] { ASSERT_TRUE(control::heal_faults(machine_state(), 5)); });
}

TEST_F(SimHostile, AGpuThatIsLost) {
  break_one_gpu(
      "GPU_IS_LOST", 3, [&] { ASSERT_TRUE(control::lose_gpu(machine_state(), 3)); },
      [&] { ASSERT_TRUE(control::heal_faults(machine_state(), 3)); });
}

// The library is invalid: logged once, and the valid one is used when it appears.
TEST_F(SimHostile, AnInvalidLibrary) {
  namespace fs = std::filesystem;
  bring_up_node();
  std::vector<std::pair<fs::path, std::string>> libraries;
  for (const auto& entry : fs::recursive_directory_iterator(sim_node().driver_root())) {
    if (entry.is_symlink() || !entry.is_regular_file() ||
        !entry.path().filename().string().starts_with("libnvidia-ml.so"))
      continue;
    libraries.emplace_back(entry.path(), read_file(entry.path().string()).value());
    ASSERT_TRUE(write_file_atomic(entry.path().string(),
                                  "\x7f"
                                  "ELF, but for the rest of it"));
  }
  ASSERT_FALSE(libraries.empty());
  start_agent(fast_options());
  EXPECT_NE(wait_for_log("DriverUnavailable"), "");
  begin_measurement();
  const auto started = Clock::now();
  ASSERT_FALSE(sim_kubelet().wait_for([](const auto& state) { return find_resource(state, kGpu) != nullptr; },
                                      kWindow));
  const auto lines = lines_since();
  EXPECT_EQ(lines.size(), 0u) << text::join(lines, "\n");
  print_measurement("a library that is none", Clock::now() - started, lines.size());
  for (const auto& [path, content] : libraries) ASSERT_TRUE(write_file_atomic(path.string(), content));
  EXPECT_TRUE(becomes_allocatable(gpu_count()));
}

TEST_F(SimHostile, AnEventWaitThatFailsPersistently) {
  start_node("hgx-h100", fast_options());
  begin_measurement();
  const auto started = Clock::now();
  ASSERT_TRUE(control::fail_event_wait(machine_state(), kUnknownError));
  EXPECT_NE(wait_for_log("DriverEventsUnavailable"), "");
  others_stay_allocatable({}, kWindow);
  const auto lines = lines_since();
  EXPECT_EQ(lines.size(), 1u) << text::join(lines, "\n");
  print_measurement("an event wait that fails for ever", Clock::now() - started, lines.size());
  admit_pod("all", gpu_count());
}

TEST_F(SimHostile, AnEventWaitThatFailsOnce) {
  start_node("hgx-h100", fast_options());
  begin_measurement();
  const auto started = Clock::now();
  ASSERT_TRUE(control::fail_event_wait(machine_state(), kUnknownError));
  EXPECT_NE(wait_for_log("DriverEventsUnavailable"), "");
  ASSERT_TRUE(control::fail_event_wait(machine_state(), 0));
  others_stay_allocatable({}, kWindow);
  // Events are received again; one posted before the wait restarts is lost.
  EXPECT_TRUE(becomes_true([&] {
    EXPECT_TRUE(control::post_xid(machine_state(), 5, kFallenOffTheBus));
    return unhealthy_ids(sim_kubelet().kubelet_state().resources.at(kGpu)) ==
           std::set<std::string>{gpu_uuid(5)};
  }));
  print_measurement("an event wait that fails once", Clock::now() - started, lines_since().size());
}

// On one GPU, and an application's XID on another: one update to the kubelet, one log line.
TEST_F(SimHostile, TenThousandXidsASecond) {
  start_node("hgx-h100", fast_options());
  ASSERT_TRUE(control::post_xid(machine_state(), 4, kFallenOffTheBus));
  ASSERT_TRUE(becomes_unhealthy({gpu_uuid(4)}));
  EXPECT_NE(wait_for_log("GPUUnhealthy", gpu_uuid(4)), "");
  const auto lists = find_resource(sim_kubelet().kubelet_state(), kGpu)->lists;
  begin_measurement();
  const auto started = Clock::now();
  std::uint64_t posted = 0;
  others_stay_allocatable({4}, kWindow, [&] {
    const auto due = static_cast<std::uint64_t>(
        std::chrono::duration<double>(Clock::now() - started).count() * static_cast<double>(kStormRate));
    const auto edit = machine_state().lock_for_edit();
    for (; posted < due; ++posted) {
      const bool application = posted % 4 == 0;
      sim::post_event(*edit, application ? 1 : 4, sim::kEventXid, application ? 13 : kFallenOffTheBus);
    }
  });
  const auto lines = lines_since();
  EXPECT_EQ(lines.size(), 0u) << text::join(lines, "\n");
  EXPECT_EQ(find_resource(sim_kubelet().kubelet_state(), kGpu)->lists, lists);
  EXPECT_GT(posted, kStormRate * 2);
  std::printf("enemy: %llu XIDs in %.1f s\n", static_cast<unsigned long long>(posted),
              std::chrono::duration<double>(Clock::now() - started).count());
  print_measurement("10,000 XIDs a second", Clock::now() - started, lines.size());
  // It still listens.
  ASSERT_TRUE(control::post_xid(machine_state(), 6, kFallenOffTheBus));
  EXPECT_TRUE(becomes_unhealthy({gpu_uuid(4), gpu_uuid(6)}));
  admit_pod("others", 6);
}

TEST_F(SimHostile, ADriverThatIsReloadedAndUpgraded) {
  start_node("hgx-h100", fast_options());
  admit_pod("trainer", 2);
  const auto reload = [&](const char* version) {
    ASSERT_TRUE(control::unload_driver(machine_state()));
    ASSERT_TRUE(
        wait_for_kubelet([](const auto& state) { return find_resource(state, kGpu)->allocatable() == 0; }));
    ASSERT_TRUE(control::load_driver(machine_state(), version));
    ASSERT_TRUE(becomes_allocatable(gpu_count()));
  };
  // The first reload of each version may allocate permanently.
  for (const char* version : {"575.57.08", "570.124.06"}) reload(version);
  begin_measurement();
  const auto started = Clock::now();
  for (const char* version : {"575.57.08", "575.57.08", "570.124.06"}) reload(version);
  others_stay_allocatable({}, kWindow);
  EXPECT_EQ(registration_count(), 1u);
  print_measurement("a driver that is reloaded and upgraded", Clock::now() - started, lines_since().size(),
                    kMaxGrowthKib + 3 * kLeftBySimulatorKib);
  admit_pod("others", gpu_count() - 2);
}

TEST_F(SimHostile, AGpuThatIsRemovedAndReinserted) {
  auto options = fast_options();
  options.environment.emplace_back("GPULET_HEALTH_POLL_INTERVAL=1s");
  start_node("hgx-h100", options);
  const auto last = gpu_count() - 1;
  const auto gone = gpu_uuid(last);
  begin_measurement();
  const auto started = Clock::now();
  machine_state().lock_for_edit()->gpu_count = last;
  ASSERT_TRUE(wait_for_kubelet(
      [&](const auto& state) { return !healthy_ids(*find_resource(state, kGpu)).contains(gone); }));
  others_stay_allocatable({}, kWindow);
  print_measurement("a GPU that is taken out", Clock::now() - started, lines_since().size());
  admit_pod("others", last);
  machine_state().lock_for_edit()->gpu_count = last + 1;
  EXPECT_TRUE(becomes_allocatable(last + 1));
}

TEST_F(SimHostile, AColdStartWithALostGpu) {
  bring_up_node();
  ASSERT_TRUE(control::lose_gpu(machine_state(), 0));
  start_agent(fast_options());
  ASSERT_TRUE(becomes_allocatable(gpu_count() - 1));
  begin_measurement();
  const auto started = Clock::now();
  others_stay_allocatable({0}, kWindow);
  const auto lines = lines_since();
  EXPECT_EQ(lines.size(), 0u) << text::join(lines, "\n");
  print_measurement("a cold start with a lost GPU", Clock::now() - started, lines.size());
  admit_pod("others", gpu_count() - 1);
  ASSERT_TRUE(control::heal_faults(machine_state(), 0));
  EXPECT_TRUE(becomes_allocatable(gpu_count()));
}

}  // namespace
}  // namespace gpulet::tests
