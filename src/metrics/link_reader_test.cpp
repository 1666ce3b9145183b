#include "metrics/link_reader.h"

#include <gtest/gtest.h>

#include "inventory/snapshot_reader.h"
#include "metrics/gpu_reader.h"
#include "nvml/return_codes.h"
#include "nvml/test_sim_root.h"
#include "sim/machine/machine.h"
#include "sim/state/counters.h"

namespace gpulet::metrics {
namespace {

using namespace std::chrono_literals;
using inventory::NvLinkRemote;

TEST(LinkRemote, IsAGpuOrASwitch) {
  inventory::Snapshot snapshot;
  snapshot.gpus.resize(2);
  snapshot.gpus[1].uuid = DeviceUuid("GPU-1");
  snapshot.gpus[1].pci = {0, 0x1b, 0, 0};
  const struct {
    inventory::NvLink link;
    const char* text;
  } cases[] = {
      {{0, NvLinkRemote::kGpu, {0, 0x1b, 0, 0}}, "GPU-1"},
      {{0, NvLinkRemote::kOther, {0, 0x1b, 0, 0}}, "GPU-1"},  // a driver too old for the type
      {{0, NvLinkRemote::kGpu, {0, 0x1c, 0, 0}}, "00000000:1C:00.0"},
      {{0, NvLinkRemote::kGpu, {}}, ""},
      {{0, NvLinkRemote::kSwitch, {0, 7, 0, 0}}, "00000000:07:00.0"},
      {{0, NvLinkRemote::kSwitch, {}}, "switch"},
      {{0, NvLinkRemote::kSwitch, {0xFFFFFFFF, 0xFF, 0xFF, 0}}, "switch"},
  };
  for (const auto& one : cases) EXPECT_EQ(describe_remote(one.link, snapshot), one.text);
}

std::uint64_t calls_of_fields() {
  for (const auto& one : nvml::call_counts()) {
    if (one.function == "nvmlDeviceGetFieldValues" && one.code == "SUCCESS") return one.count;
  }
  return 0;
}

class LinkReaderTest : public testing::Test {
 protected:
  void open(const std::string& machine) {
    root_ = std::make_unique<nvml::SimRoot>(**sim::load_machine(machine));
    auto opened = nvml::Session::open_session(root_->sim_root());
    ASSERT_TRUE(opened) << opened.error().full_message();
    session_ = *opened;
    device_ = *session_->device(0);
    look();
  }
  void look() {
    snapshot_.gpus.clear();
    for (unsigned i = 0; i < *session_->device_count(); ++i)
      snapshot_.gpus.push_back(inventory::read_gpu(*session_, i, {root_->sim_root()}));
  }
  LinkReader::Reading read(LinkReader& reader) {
    auto reading = reader.sample_links(*session_, device_, snapshot_, snapshot_.gpus[0], now_ += 1s);
    EXPECT_TRUE(reading) << reading.error().full_message();
    return reading.value_or(LinkReader::Reading());
  }
  std::unique_ptr<nvml::SimRoot> root_;
  std::shared_ptr<const nvml::Session> session_;
  nvml::Device device_;
  inventory::Snapshot snapshot_;
  std::chrono::nanoseconds now_{1h};
};

TEST_F(LinkReaderTest, StateDataAndErrorsOfEachLink) {
  open("hgx-h100");
  {
    auto machine = root_->edit_machine();
    machine->gpus[0].links[4].transmitted_kib = 2;
    machine->gpus[0].links[4].received_kib = 1;
    machine->gpus[0].links[4].crc_flit_errors = 3;
    machine->gpus[0].links[4].crc_data_errors = machine->gpus[0].links[4].replay_errors = 4;
  }
  LinkReader reader({Field::kLinks});
  const auto first = read(reader);
  ASSERT_EQ(first.links.size(), 18u);
  const auto& link = first.links[4];
  EXPECT_EQ(link.index, 4u);
  EXPECT_EQ(link.remote, snapshot_.gpus[0].nvlinks[4].remote.nvml_text());
  EXPECT_EQ(link.up, true);
  EXPECT_EQ(link.transmitted, Bytes{2048});
  EXPECT_EQ(link.received, Bytes{1024});
  EXPECT_EQ(link.errors, (std::map<std::string, std::uint64_t>{{"crc", 7}, {"recovery", 0}, {"replay", 4}}));
  EXPECT_TRUE(link.values.empty() && first.sums.empty());
  // It goes down; the next snapshot no longer has its other end.
  root_->edit_machine()->gpus[0].links[4].active = 0;
  look();
  ASSERT_EQ(snapshot_.gpus[0].nvlinks.size(), 17u);
  const auto second = read(reader);
  ASSERT_EQ(second.links.size(), 18u);
  EXPECT_EQ(second.links[4].up, false);
  EXPECT_EQ(second.links[4].remote, link.remote);
  EXPECT_EQ(second.links[5].up, true);
}

TEST_F(LinkReaderTest, DataGrowsWithTheLoad) {
  open("dgx1-v100");
  sim::set_links_load(root_->edit_machine()->gpus[0], 100, sim::monotonic_ns() - 1'000'000'000);
  LinkReader reader({Field::kLinks});
  const auto first = read(reader);
  ASSERT_EQ(first.links.size(), 6u);
  EXPECT_EQ(first.links[0].remote.substr(0, 4), "GPU-") << "direct links";
  EXPECT_GT(first.links[0].transmitted->value, 1'000'000'000u) << "after a second";
  EXPECT_GE(read(reader).links[0].transmitted->value, first.links[0].transmitted->value);
}

TEST_F(LinkReaderTest, NvLink5HasOtherErrors) {
  open("gb200");
  root_->edit_machine()->gpus[0].links[1].crc_data_errors = 3;
  LinkReader reader({Field::kLinks, Field::kNvLinkReceiveErrors, Field::kNvLinkCrcErrors});
  const auto reading = read(reader);
  ASSERT_EQ(reading.links.size(), 18u);
  EXPECT_EQ(reading.links[1].remote, "switch");
  EXPECT_EQ(reading.links[1].errors, (std::map<std::string, std::uint64_t>{
                                         {"discard", 0}, {"integrity", 0}, {"receive", 3}, {"recovery", 0}}));
  EXPECT_EQ(reading.sums, (Values{{Field::kNvLinkReceiveErrors, std::uint64_t{3}}}));
}

TEST_F(LinkReaderTest, DcgmFieldsOfEachLink) {
  open("hgx-h100");
  LinkReader reader({Field::kLinkBandwidth, Field::kLinkCrcData});
  EXPECT_FALSE(read(reader).links[2].values.contains(Field::kLinkBandwidth)) << "a rate has two readings";
  {
    auto machine = root_->edit_machine();
    machine->gpus[0].links[2].transmitted_kib = 5'000'000;
    machine->gpus[0].links[2].received_kib = 1'000'000;
    machine->gpus[0].links[2].crc_data_errors = 9;
  }
  const auto reading = read(reader);
  EXPECT_EQ(reading.links[2].values,
            (Values{{Field::kLinkBandwidth, std::uint64_t{6000}}, {Field::kLinkCrcData, std::uint64_t{9}}}));
  EXPECT_EQ(reading.links[3].values.at(Field::kLinkBandwidth), Value(std::uint64_t{0}));
  EXPECT_EQ(reading.links[2].up, std::nullopt) << "gpulet's own metrics are not wanted";
}

TEST_F(LinkReaderTest, AsksOnlyForWhatIsWanted) {
  open("hgx-h100");
  const auto calls = [&](const std::set<Field>& wanted) {
    LinkReader reader(wanted);
    read(reader);
    const auto before = calls_of_fields();
    read(reader);
    return calls_of_fields() - before;
  };
  EXPECT_EQ(calls({Field::kGpuTemp, Field::kNvLinkBandwidth}), 0u);
  EXPECT_EQ(calls({Field::kLinkTxBytes}), 0u) << "by GPM";
  EXPECT_EQ(calls({Field::kLinks}), 1u) << "one call for all links";
  LinkReader reader({Field::kGpuTemp});
  EXPECT_TRUE(read(reader).links.empty());
}

TEST_F(LinkReaderTest, GpusWithoutLinksAndLostOnes) {
  open("t4");
  LinkReader reader({Field::kLinks});
  EXPECT_TRUE(read(reader).links.empty());
  root_->edit_machine()->gpus[0].faults.lost = 1;
  EXPECT_TRUE(read(reader).links.empty()) << "it is not asked again";
  LinkReader fresh({Field::kLinks});
  EXPECT_EQ(fresh.sample_links(*session_, device_, snapshot_, snapshot_.gpus[0], now_).error().code(),
            Code::kDeviceLost);
}

TEST_F(LinkReaderTest, RatesOfEachLinkByGpm) {
  open("hgx-h100");
  GpuReader reader({Field::kLinkTxBytes, Field::kLinkRxBytes});
  const auto sample = [&] { return reader.sample_gpu(*session_, snapshot_, 0, now_ += 1s); };
  EXPECT_TRUE(sample().links.at(17).values.empty());
  root_->edit_machine()->gpus[0].links[17].transmitted_kib = 1 << 30;
  const auto links = sample().links;
  ASSERT_EQ(links.size(), 18u);
  EXPECT_GT(std::get<double>(links[17].values.at(Field::kLinkTxBytes)), 0);
  EXPECT_EQ(std::get<double>(links[17].values.at(Field::kLinkRxBytes)), 0);
}

}  // namespace
}  // namespace gpulet::metrics
