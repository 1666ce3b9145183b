#include "agent/observe/host_engine_sampler.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/file.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using metrics::Field;

constexpr const char* kBus = "00000000:1B:00.0";

class DriverSampler final : public Sampler {
 public:
  void set_fields(std::set<Field> fields) override { requested = std::move(fields); }
  void sample_gpu(inventory::SnapshotPtr, std::size_t, Time, Done done) override { done(next); }
  std::set<Field> requested;
  Result<Sampled> next = Sampled{};
};

class HostEngineSamplerTest : public testing::Test {
 protected:
  HostEngineSamplerTest() {
    char name[] = "/tmp/gpulet-dcgmi-XXXXXX";
    root_ = ::mkdtemp(name);
    sampler_.set_fields({Field::kGraphicsActive, Field::kDramActive, Field::kGpuTemp});
  }
  ~HostEngineSamplerTest() override { std::filesystem::remove_all(root_); }

  // The program runs until it is killed, unless the script ends before.
  void install_dcgmi(const std::string& script) {
    ASSERT_TRUE(write_file_atomic(root_ + "/usr/bin/dcgmi",
                                  "#!/bin/sh\necho \"$@\" > " + root_ + "/said\n" + script, 0755));
  }
  void use_engine(Duration interval = 15s) { sampler_.use_host_engine({"localhost:5555", root_, interval}); }
  static inventory::SnapshotPtr snapshot_of(unsigned compute_major) {
    auto snapshot = std::make_shared<inventory::Snapshot>();
    inventory::Gpu gpu;
    gpu.compute_major = compute_major;
    gpu.pci = *inventory::PciAddress::from_text(kBus);
    snapshot->gpus.push_back(gpu);
    return snapshot;
  }
  metrics::Values sample(unsigned compute_major) {
    metrics::Values values;
    sampler_.sample_gpu(snapshot_of(compute_major), 0, loop_.now(),
                        [&](const auto& sampled) { values = sampled->gpu.values; });
    return values;
  }
  template <class Condition>
  bool run_until(Condition condition) {
    bool is_true = false;
    const auto limit = loop_.after(30s, [this] { loop_.stop_loop(); });
    Subscription again;
    std::function<void()> look = [&] {
      is_true = condition();
      if (is_true) return loop_.stop_loop();
      again = loop_.after(2ms, [&look] { look(); });
    };
    loop_.post([&look] { look(); });
    loop_.run_loop();
    return is_true;
  }
  bool is_connected() const { return sampler_.is_connected().value_or(false); }

  std::string root_;
  EpollLoop loop_;
  DriverSampler driver_;
  HostEngineSampler sampler_{loop_, driver_};
};

const std::string kRows =
    "echo '#Entity   PCBID                     GRACT        DRAMA        '\n"
    "echo 'ID        #                                                   '\n"
    "echo 'GPU 0     00000000:1B:00.0          0.571        N/A          '\n"
    "exec sleep 1000\n";

TEST_F(HostEngineSamplerTest, FillsInWhatTheDriverDoesNotHave) {
  install_dcgmi(kRows);
  use_engine();
  EXPECT_EQ(sampler_.is_connected(), std::nullopt) << "no GPU needs it";
  driver_.next->gpu.values[Field::kGpuTemp] = std::uint64_t{40};
  EXPECT_EQ(sample(8).size(), 1u);
  EXPECT_EQ(sampler_.is_connected(), false);
  ASSERT_TRUE(run_until([this] { return is_connected(); }));
  EXPECT_EQ(sample(8),
            (metrics::Values{{Field::kGpuTemp, std::uint64_t{40}}, {Field::kGraphicsActive, 0.571}}));
  EXPECT_EQ(read_file(root_ + "/said").value_or(""),
            "dmon --host localhost:5555 --field-id 57,1001,1005 --delay 15000\n");
  EXPECT_EQ(driver_.requested, (std::set{Field::kGraphicsActive, Field::kDramActive, Field::kGpuTemp}));
  driver_.next->gpu.values[Field::kGraphicsActive] = 0.25;
  EXPECT_EQ(sample(8).at(Field::kGraphicsActive), metrics::Value(0.25)) << "the driver's own value counts";
  driver_.next->gpu.values.erase(Field::kGraphicsActive);
  driver_.next->gpu.mig = true;
  EXPECT_FALSE(sample(8).contains(Field::kGraphicsActive)) << "dmon does not tell the instances apart";
}

TEST_F(HostEngineSamplerTest, RunsNothingThatIsNotNeeded) {
  install_dcgmi(kRows);
  use_engine();
  sample(9);
  EXPECT_EQ(sampler_.is_connected(), std::nullopt) << "Hopper's driver has these fields";
  sampler_.set_fields({Field::kGpuTemp});
  sample(8);
  EXPECT_EQ(sampler_.is_connected(), std::nullopt) << "no field needs it";
  sampler_.use_host_engine({"", root_, 15s});
  sampler_.set_fields({Field::kGraphicsActive});
  EXPECT_EQ(sampler_.is_connected(), std::nullopt) << "there is no address";
  EXPECT_FALSE(std::filesystem::exists(root_ + "/said"));
}

TEST_F(HostEngineSamplerTest, AbsentWithoutTheProgramOrTheEngine) {
  use_engine();
  EXPECT_TRUE(sample(8).empty());
  EXPECT_EQ(sampler_.is_connected(), false);
  install_dcgmi("echo 'Error: unable to establish a connection to the specified host: localhost'\nexit 1\n");
  sampler_.set_fields({Field::kGraphicsActive});
  EXPECT_TRUE(run_until([this] { return std::filesystem::exists(root_ + "/said"); }));
  EXPECT_TRUE(sample(8).empty());
  EXPECT_EQ(sampler_.is_connected(), false);
}

TEST_F(HostEngineSamplerTest, ALostEngineTakesItsValuesWithIt) {
  install_dcgmi(
      "echo 'GPU 0     00000000:1B:00.0          0.571        0.100'\nread line < " + root_ + "/gate\n" +
      "echo 'Error getting values information. Return -21: Host engine connection invalid'\nexit 1\n");
  ASSERT_EQ(::mkfifo((root_ + "/gate").c_str(), 0600), 0);
  use_engine();
  sample(8);
  ASSERT_TRUE(run_until([this] { return is_connected(); }));
  EXPECT_EQ(sample(8).size(), 2u);
  {
    const FileDescriptor gate(::open((root_ + "/gate").c_str(), O_WRONLY | O_CLOEXEC));
  }
  ASSERT_TRUE(run_until([this] { return !is_connected(); }));
  EXPECT_TRUE(sample(8).empty());
}

TEST_F(HostEngineSamplerTest, OutputWithoutEndsOfLinesIsBounded) {
  install_dcgmi(
      "head -c 1000000 /dev/zero | tr '\\0' x\necho\n"
      "echo 'GPU 0     00000000:1B:00.0          0.5          0.1'\nexec sleep 1000\n");
  use_engine();
  sample(8);
  ASSERT_TRUE(run_until([this] { return is_connected(); }));
  EXPECT_EQ(sample(8).size(), 2u);
}

}  // namespace
}  // namespace gpulet::agent
