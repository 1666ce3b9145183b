// The driver as an enemy: calls that never return, nonsense, lost GPUs, storms of events, reloads, cards that
// come and go. Throughout, what is not broken stays offered and can be had, the log has one line for each
// change and none without, and neither CPU nor memory pays for it. Each test prints its figures.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/file.h"
#include "base/text.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

namespace control = sim::control;
using Clock = std::chrono::steady_clock;
using Gpus = std::set<std::uint32_t>;

// What a sanitizer, or a compiler that leaves everything as it is, adds is no figure of the agent's.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
constexpr bool kMeasured = false;
#else
constexpr bool kMeasured = true;
#endif
constexpr double kMostCpuPercent = 2.0;
constexpr long kMostGrowthKib = 1024;
// Each load of the simulated library leaves its view of the machine's state mapped, and its sets of events.
constexpr long kLeftBySimulatorKib = 350;
constexpr auto kWindow = 3s;  // in which CPU and memory are measured
constexpr auto kLook = 20ms;
constexpr std::uint64_t kStormRate = 10'000;  // XIDs a second

constexpr std::uint32_t kNonsense = 1001;  // no nvmlReturn_t, but one that its type can hold
constexpr std::uint32_t kUnknownError = 999;

class SimEnemy : public NodeTest {
 protected:
  // A GPU that sends no event is asked soon, and one that hangs is given up on.
  static cli::AgentOptions impatient() {
    return {.arguments = {"--fail-on-init-error=false"},
            .environment = {"GPULET_HEALTH_ALIVE_INTERVAL=1s", "GPULET_DRIVER_CALL_TIMEOUT=300ms"}};
  }

  // What the agent has used and said, from begin() to its figures.
  void begin() {
    cpu_ = cpu_time();
    resident_ = node().agent_resident_bytes();
    said_ = log().size();
  }
  // Of the changes: what was told with a reason, in the log and to the cluster.
  std::vector<std::string> lines_since() const {
    std::vector<std::string> lines;
    for (const auto& line : text::split(log().substr(said_), '\n')) {
      if (line.find("\"reason\":") != std::string::npos) lines.push_back(line);
    }
    return lines;
  }
  void print(const char* what, Clock::duration time, std::size_t lines,
             long most_growth_kib = kMostGrowthKib) const {
    const double seconds = std::chrono::duration<double>(time).count();
    const double percent = 100 * std::chrono::duration<double>(cpu_time() - cpu_).count() / seconds;
    const long kib = (static_cast<long>(node_resident()) - static_cast<long>(resident_)) / 1024;
    std::printf("enemy: %s: CPU %.2f %% over %.1f s, %+ld KiB, %zu lines\n", what, percent, seconds, kib,
                lines);
    if (!kMeasured) return;
    EXPECT_LT(percent, kMostCpuPercent);
    EXPECT_LT(kib, most_growth_kib);
  }

  // For so long, all GPUs but the broken ones are offered, at every moment; `pace` is called now and then.
  void others_stay(const Gpus& broken, Clock::duration time, const std::function<void()>& pace = {}) {
    std::set<std::string> others;
    for (std::uint32_t i = 0; i < gpu_count(); ++i) {
      if (!broken.contains(i)) others.insert(uuid(i));
    }
    std::set<std::string> missing;
    const auto one_is_missing = [&](const sim::KubeletState& state) {
      const auto* resource = find(state, kGpu);
      const auto offered = resource == nullptr ? std::set<std::string>() : healthy_ids(*resource);
      missing.clear();
      std::ranges::set_difference(others, offered, std::inserter(missing, missing.end()));
      return !missing.empty();
    };
    for (const auto end = Clock::now() + time; Clock::now() < end;) {
      if (pace) pace();
      ASSERT_FALSE(kubelet().wait_for(one_is_missing, kLook)) << *missing.begin() << " is not offered";
    }
  }

  // One GPU is broken, and then is not: withdrawn alone, said once, and quiet until it is healed.
  void one_breaks(const char* what, std::uint32_t gpu, const std::function<void()>& break_it,
                  const std::function<void()>& heal_it) {
    serve("hgx-h100", impatient());
    begin();
    const auto started = Clock::now();
    break_it();
    ASSERT_TRUE(unhealthy({uuid(gpu)}));
    admit("others", gpu_count() - 1);
    others_stay({gpu}, kWindow);
    const auto lines = lines_since();
    EXPECT_EQ(lines.size(), 1u) << text::join(lines, "\n");
    print(what, Clock::now() - started, lines.size());
    heal_it();
    EXPECT_TRUE(offered(gpu_count()));
  }

 private:
  std::chrono::nanoseconds cpu_time() const {
    clockid_t clock{};
    timespec used{};
    EXPECT_EQ(::clock_getcpuclockid(node_id(), &clock), 0);
    EXPECT_EQ(::clock_gettime(clock, &used), 0);
    return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
  }
  pid_t node_id() const { return const_cast<SimEnemy*>(this)->node().agent_id(); }
  std::size_t node_resident() const { return const_cast<SimEnemy*>(this)->node().agent_resident_bytes(); }

  std::chrono::nanoseconds cpu_{};
  std::size_t resident_ = 0;
  std::size_t said_ = 0;
};

TEST_F(SimEnemy, ACallThatNeverReturns) {
  one_breaks(
      "a call that never returns", 2, [&] { ASSERT_TRUE(control::hang(machine(), 2)); },
      [&] { ASSERT_TRUE(control::heal(machine(), 2)); });
}

TEST_F(SimEnemy, AGpuWhoseAnswersAreNonsense) {
  one_breaks(
      "answers that are nonsense", 5, [&] { ASSERT_TRUE(control::fail_gpu(machine(), 5, kNonsense)); },
      [&] { ASSERT_TRUE(control::heal(machine(), 5)); });
}

TEST_F(SimEnemy, AGpuThatIsLost) {
  one_breaks(
      "GPU_IS_LOST", 3, [&] { ASSERT_TRUE(control::lost(machine(), 3)); },
      [&] { ASSERT_TRUE(control::heal(machine(), 3)); });
}

// What is there for a library is none: said once, and the right one is taken when it comes.
TEST_F(SimEnemy, ALibraryThatIsNone) {
  namespace fs = std::filesystem;
  up();
  std::vector<std::pair<fs::path, std::string>> libraries;
  for (const auto& entry : fs::recursive_directory_iterator(node().root())) {
    if (entry.is_symlink() || !entry.is_regular_file() ||
        !entry.path().filename().string().starts_with("libnvidia-ml.so"))
      continue;
    libraries.emplace_back(entry.path(), read_file(entry.path().string()).value());
    ASSERT_TRUE(write_file_atomic(entry.path().string(),
                                  "\x7f"
                                  "ELF, but for the rest of it"));
  }
  ASSERT_FALSE(libraries.empty());
  start_agent(impatient());
  EXPECT_NE(said("DriverUnavailable"), "");
  begin();
  const auto started = Clock::now();
  ASSERT_FALSE(kubelet().wait_for([](const auto& state) { return find(state, kGpu) != nullptr; }, kWindow));
  const auto lines = lines_since();
  EXPECT_EQ(lines.size(), 0u) << text::join(lines, "\n");
  print("a library that is none", Clock::now() - started, lines.size());
  for (const auto& [path, content] : libraries) ASSERT_TRUE(write_file_atomic(path.string(), content));
  EXPECT_TRUE(offered(gpu_count()));
}

TEST_F(SimEnemy, AnEventWaitThatFailsForEver) {
  serve("hgx-h100", impatient());
  begin();
  const auto started = Clock::now();
  ASSERT_TRUE(control::fail_event_wait(machine(), kUnknownError));
  EXPECT_NE(said("DriverEventsUnavailable"), "");
  others_stay({}, kWindow);
  const auto lines = lines_since();
  EXPECT_EQ(lines.size(), 1u) << text::join(lines, "\n");
  print("an event wait that fails for ever", Clock::now() - started, lines.size());
  admit("all", gpu_count());
}

TEST_F(SimEnemy, AnEventWaitThatFailsOnce) {
  serve("hgx-h100", impatient());
  begin();
  const auto started = Clock::now();
  ASSERT_TRUE(control::fail_event_wait(machine(), kUnknownError));
  EXPECT_NE(said("DriverEventsUnavailable"), "");
  ASSERT_TRUE(control::fail_event_wait(machine(), 0));
  others_stay({}, kWindow);
  // Events flow again: one that is posted while the wait is not begun anew is nobody's.
  EXPECT_TRUE(eventually([&] {
    EXPECT_TRUE(control::xid(machine(), 5, kFallenOffTheBus));
    return unhealthy_ids(kubelet().state().resources.at(kGpu)) == std::set<std::string>{uuid(5)};
  }));
  print("an event wait that fails once", Clock::now() - started, lines_since().size());
}

// Of one GPU, and an application's on another: the kubelet is told once, the log has one line.
TEST_F(SimEnemy, TenThousandXidsASecond) {
  serve("hgx-h100", impatient());
  ASSERT_TRUE(control::xid(machine(), 4, kFallenOffTheBus));
  ASSERT_TRUE(unhealthy({uuid(4)}));
  EXPECT_NE(said("GPUUnhealthy", uuid(4)), "");
  const auto lists = find(kubelet().state(), kGpu)->lists;
  begin();
  const auto started = Clock::now();
  std::uint64_t posted = 0;
  others_stay({4}, kWindow, [&] {
    const auto due = static_cast<std::uint64_t>(
        std::chrono::duration<double>(Clock::now() - started).count() * static_cast<double>(kStormRate));
    const auto edit = machine().edit();
    for (; posted < due; ++posted) {
      const bool application = posted % 4 == 0;
      sim::post_event(*edit, application ? 1 : 4, sim::kEventXid, application ? 13 : kFallenOffTheBus);
    }
  });
  const auto lines = lines_since();
  EXPECT_EQ(lines.size(), 0u) << text::join(lines, "\n");
  EXPECT_EQ(find(kubelet().state(), kGpu)->lists, lists);
  EXPECT_GT(posted, kStormRate * 2);
  std::printf("enemy: %llu XIDs in %.1f s\n", static_cast<unsigned long long>(posted),
              std::chrono::duration<double>(Clock::now() - started).count());
  print("10,000 XIDs a second", Clock::now() - started, lines.size());
  // It still listens.
  ASSERT_TRUE(control::xid(machine(), 6, kFallenOffTheBus));
  EXPECT_TRUE(unhealthy({uuid(4), uuid(6)}));
  admit("others", 6);
}

TEST_F(SimEnemy, ADriverThatIsReloadedAndUpgraded) {
  serve("hgx-h100", impatient());
  admit("trainer", 2);
  const auto reload = [&](const char* version) {
    ASSERT_TRUE(control::unload_driver(machine()));
    ASSERT_TRUE(wait_for([](const auto& state) { return find(state, kGpu)->allocatable() == 0; }));
    ASSERT_TRUE(control::load_driver(machine(), version));
    ASSERT_TRUE(offered(gpu_count()));
  };
  // The first of each version may make what is kept for good.
  for (const char* version : {"575.57.08", "570.124.06"}) reload(version);
  begin();
  const auto started = Clock::now();
  for (const char* version : {"575.57.08", "575.57.08", "570.124.06"}) reload(version);
  others_stay({}, kWindow);
  EXPECT_EQ(registrations(), 1u);
  print("a driver that is reloaded and upgraded", Clock::now() - started, lines_since().size(),
        kMostGrowthKib + 3 * kLeftBySimulatorKib);
  admit("others", gpu_count() - 2);
}

TEST_F(SimEnemy, AGpuThatIsTakenOutAndPutBack) {
  auto options = impatient();
  options.environment.emplace_back("GPULET_HEALTH_POLL_INTERVAL=1s");
  serve("hgx-h100", options);
  const auto last = gpu_count() - 1;
  const auto gone = uuid(last);
  begin();
  const auto started = Clock::now();
  machine().edit()->gpu_count = last;
  ASSERT_TRUE(wait_for([&](const auto& state) { return !healthy_ids(*find(state, kGpu)).contains(gone); }));
  others_stay({}, kWindow);
  print("a GPU that is taken out", Clock::now() - started, lines_since().size());
  admit("others", last);
  machine().edit()->gpu_count = last + 1;
  EXPECT_TRUE(offered(last + 1));
}

TEST_F(SimEnemy, AColdStartWithALostGpu) {
  up();
  ASSERT_TRUE(control::lost(machine(), 0));
  start_agent(impatient());
  ASSERT_TRUE(offered(gpu_count() - 1));
  begin();
  const auto started = Clock::now();
  others_stay({0}, kWindow);
  const auto lines = lines_since();
  EXPECT_EQ(lines.size(), 0u) << text::join(lines, "\n");
  print("a cold start with a lost GPU", Clock::now() - started, lines.size());
  admit("others", gpu_count() - 1);
  ASSERT_TRUE(control::heal(machine(), 0));
  EXPECT_TRUE(offered(gpu_count()));
}

}  // namespace
}  // namespace gpulet::tests
