#include <gtest/gtest.h>

#include "metrics/counters.h"

namespace gpulet::metrics {
namespace {

DeviceFilter shown(std::string_view text) {
  auto parsed = DeviceFilter::parse_filter(text, "--metrics-devices");
  EXPECT_TRUE(parsed) << parsed.error().full_message();
  return parsed.value_or(DeviceFilter());
}

TEST(Shown, DefaultIsTheGpuOrItsInstances) {
  EXPECT_EQ(shown("f"), DeviceFilter());
  EXPECT_TRUE(DeviceFilter().includes_gpu(3, false));
  EXPECT_FALSE(DeviceFilter().includes_gpu(3, true));
  EXPECT_TRUE(DeviceFilter().includes_instance(7));
}

TEST(Shown, GpusAlsoInMigMode) {
  const auto all = shown("g");
  EXPECT_TRUE(all.includes_gpu(0, false) && all.includes_gpu(15, true));
  EXPECT_FALSE(all.includes_instance(0));
  const auto some = shown("g:0,2-4");
  for (const unsigned index : {0u, 2u, 3u, 4u}) EXPECT_TRUE(some.includes_gpu(index, false)) << index;
  for (const unsigned index : {1u, 5u}) EXPECT_FALSE(some.includes_gpu(index, false)) << index;
}

TEST(Shown, InstancesAlone) {
  const auto all = shown("i");
  EXPECT_TRUE(all.includes_instance(13));
  EXPECT_FALSE(all.includes_gpu(0, false) || all.includes_gpu(0, true));
  const auto some = shown("i:1,3-5");
  EXPECT_TRUE(some.includes_instance(1) && some.includes_instance(4));
  EXPECT_FALSE(some.includes_instance(2) || some.includes_instance(6));
}

TEST(Shown, InvalidSelectionIsAnError) {
  for (const char* text :
       {"", "x", "F", "f:0", "g:", "g0", "g:0,", "g:a", "g:3-1", "g:1-2-3", "i:-1", "g:99999", "g+i"})
    EXPECT_FALSE(DeviceFilter::parse_filter(text, "--metrics-devices")) << text;
  EXPECT_EQ(DeviceFilter::parse_filter("gpu", "--metrics-devices").error().full_message(),
            "--metrics-devices: 'gpu' is not a device filter; expected f, g or i, or with numbers g:0,2-4 or "
            "i:1,3-5");
}

}  // namespace

namespace {

std::string error_of(const std::string& text) {
  const auto counters = parse_counters(text, "counters.csv");
  return counters ? "" : counters.error().full_message();
}

Counters parsed(const std::string& text) {
  auto counters = parse_counters(text, "counters.csv");
  EXPECT_TRUE(counters) << counters.error().full_message();
  return counters.value_or(Counters{});
}

TEST(Counters, FilesOfTheExportersImageAreBuiltIn) {
  EXPECT_EQ(builtin_counters("/etc/dcgm-exporter/dcp-metrics-included.csv")->all, default_counters().all);
  const auto plain = builtin_counters("/etc/dcgm-exporter/default-counters.csv");
  ASSERT_TRUE(plain);
  EXPECT_LT(plain->all.size(), default_counters().all.size());
  for (const auto& counter : plain->all)
    EXPECT_FALSE(counter.name.starts_with("DCGM_FI_PROF_")) << counter.name;
  EXPECT_FALSE(builtin_counters("/etc/dcgm-exporter/dcgm-metrics.csv"));
  EXPECT_FALSE(builtin_counters("default-counters.csv"));
}

TEST(Counters, ReadsTheExportersFile) {
  const auto counters = parsed(
      "# Format,,\n"
      "\n"
      "DCGM_FI_DEV_DEC_UTIL ,     gauge, Decoder utilization (in %).\r\n"
      "  # DCGM_FI_DEV_POWER_VIOLATION, counter, not this\n"
      "DCGM_FI_DEV_SM_CLOCK,  gauge, SM clock frequency (in MHz).\n"
      "DCGM_FI_DRIVER_VERSION, label, Driver Version");
  const std::vector<Counter> wanted = {
      {Field::kDriverVersion, Type::kLabel, "DCGM_FI_DRIVER_VERSION", "Driver Version"},
      {Field::kSmClock, Type::kGauge, "DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz)."},
      {Field::kDecoderUtil, Type::kGauge, "DCGM_FI_DEV_DEC_UTIL", "Decoder utilization (in %)."}};
  EXPECT_EQ(counters.all, wanted);
  EXPECT_TRUE(counters.unserved.empty());
}

TEST(Counters, FileOverridesTypeNameAndHelp) {
  const auto counters = parsed(
      "dcgm_gpu_temp, counter, \"Temperature, in \"\"C\"\"\" \n"
      "DCGM_FI_DEV_GPU_TEMP, label, x\n"
      "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS,gauge,\n");
  const std::vector<Counter> wanted = {
      {Field::kClockEvents, Type::kGauge, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", ""},
      {Field::kGpuTemp, Type::kLabel, "DCGM_FI_DEV_GPU_TEMP", "x"},
      {Field::kGpuTemp, Type::kCounter, "dcgm_gpu_temp", "Temperature, in \"C\""}};
  EXPECT_EQ(counters.all, wanted);
}

TEST(Counters, FieldsOfSingleLinks) {
  const auto counters = parsed(
      "DCGM_FI_DEV_NVLINK_BANDWIDTH_L10, counter, x\n"
      "DCGM_FI_PROF_NVLINK_L2_TX_BYTES, gauge, y\n"
      "DCGM_FI_DEV_NVLINK_BANDWIDTH_L2, gauge, z\n"
      "DCGM_FI_DEV_NVLINK_BANDWIDTH_L18, gauge, no such name\n");
  const std::vector<Counter> wanted = {
      {Field::kLinkBandwidth, Type::kGauge, "DCGM_FI_DEV_NVLINK_BANDWIDTH_L2", "z", 2},
      {Field::kLinkBandwidth, Type::kCounter, "DCGM_FI_DEV_NVLINK_BANDWIDTH_L10", "x", 10},
      {Field::kLinkTxBytes, Type::kGauge, "DCGM_FI_PROF_NVLINK_L2_TX_BYTES", "y", 2}};
  EXPECT_EQ(counters.all, wanted);
  EXPECT_EQ(counters.unserved.size(), 1u);
}

TEST(Counters, FieldsThatNvmlLacksAreOmittedAndReported) {
  const auto counters = parsed(
      "DCGM_FI_DEV_NVSWITCH_POWER_VDD, gauge, x\n"
      "DCGM_FI_DEV_GPU_TEMP, gauge, first\n"
      "DCGM_FI_DEV_GPU_TEMP, gauge, second\n"
      "DCGM_FI_SOMETHING_OF_NEXT_YEAR, gauge, x\n");
  ASSERT_EQ(counters.all.size(), 1u);
  EXPECT_EQ(counters.all[0].help, "first");
  const std::vector<std::string> wanted = {
      "line 1: DCGM_FI_DEV_NVSWITCH_POWER_VDD: not served: NVSwitches are not NVML's",
      "line 3: DCGM_FI_DEV_GPU_TEMP: it is already there, the first row counts",
      "line 4: DCGM_FI_SOMETHING_OF_NEXT_YEAR: not served: NVML does not have it, or gpulet does not know "
      "it"};
  EXPECT_EQ(counters.unserved, wanted);
  EXPECT_TRUE(parsed("DCGM_FI_DEV_DIAG_STATUS, gauge, x").all.empty());
}

TEST(Counters, InvalidRowReportsTheExpectedValue) {
  EXPECT_EQ(error_of("#\n\nDCGM_FI_DEV_GPU_TEMPS, gauge, x"),
            "counters.csv: line 3: \"DCGM_FI_DEV_GPU_TEMPS\" is not a DCGM field: did you mean "
            "DCGM_FI_DEV_GPU_TEMP?");
  EXPECT_EQ(error_of("node_cpu_seconds, gauge, x"),
            "counters.csv: line 1: \"node_cpu_seconds\" is not a DCGM field");
  EXPECT_EQ(error_of("DCGM_FI_DEV_GPU_TEMP, gauge"),
            "counters.csv: line 1: 2 columns, expected 3: FIELD, TYPE, HELP");
  EXPECT_EQ(
      error_of("DCGM_FI_DEV_GPU_TEMP, gauge, warm, very"),
      "counters.csv: line 1: 4 columns, expected 3: FIELD, TYPE, HELP (a help text with a comma goes in "
      "double quotes)");
  EXPECT_EQ(error_of("DCGM_FI_DEV_GPU_TEMP, Gauge, x"),
            "counters.csv: line 1: \"Gauge\" is not a type; expected gauge, counter or label");
  EXPECT_EQ(error_of("DCGM_FI_DEV_GPU_TEMP, gauge, \"x"), "counters.csv: line 1: a quote is not closed");
  EXPECT_EQ(error_of("DCGM_FI_DRIVER_VERSION, gauge, x"),
            "counters.csv: line 1: DCGM_FI_DRIVER_VERSION is a text; expected type label");
  EXPECT_EQ(error_of("# nothing\n"),
            "counters.csv: no counters; expected rows such as \"DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature "
            "(in C).\"");
  EXPECT_EQ(error_of(std::string(kMaxCountersBytes + 1, ' ')),
            "counters.csv: more than 1 MiB: no list of counters");
  EXPECT_EQ(error_of("\x01\xff" + std::string(200, 'a') + ", gauge, x").find('\x01'), std::string::npos);
}

TEST(Counters, DefaultsRoundTripThroughAFile) {
  std::string file;
  for (const auto& counter : default_counters().all) {
    file += counter.name + ", " + std::string(type_name(counter.type)) + ", " + counter.help + "\n";
  }
  const auto counters = parsed(file);
  EXPECT_EQ(counters.all, default_counters().all);
  EXPECT_EQ(counters.all.size(), 26u);
}

}  // namespace
}  // namespace gpulet::metrics
