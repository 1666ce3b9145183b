#include "metrics/counters.h"

#include <gtest/gtest.h>

namespace gpulet::metrics {
namespace {

std::string error_of(const std::string& text) {
  const auto counters = parse_counters(text, "counters.csv");
  return counters ? "" : counters.error().text();
}

Counters parsed(const std::string& text) {
  auto counters = parse_counters(text, "counters.csv");
  EXPECT_TRUE(counters) << counters.error().text();
  return counters.value_or(Counters{});
}

TEST(Counters, AFileAsTheExporterShipsIt) {
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
  EXPECT_TRUE(counters.left_out.empty());
}

TEST(Counters, TheFilesTypesNamesAndHelpStand) {
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

TEST(Counters, WhatNvmlDoesNotHaveIsLeftOutAndSaid) {
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
  EXPECT_EQ(counters.left_out, wanted);
  EXPECT_TRUE(parsed("DCGM_FI_DEV_DIAG_STATUS, gauge, x").all.empty());
}

TEST(Counters, ABadRowSaysWhatWouldDo) {
  EXPECT_EQ(error_of("#\n\nDCGM_FI_DEV_GPU_TEMPS, gauge, x"),
            "counters.csv: line 3: \"DCGM_FI_DEV_GPU_TEMPS\" is no field of DCGM: did you mean "
            "DCGM_FI_DEV_GPU_TEMP?");
  EXPECT_EQ(error_of("node_cpu_seconds, gauge, x"),
            "counters.csv: line 1: \"node_cpu_seconds\" is no field of DCGM");
  EXPECT_EQ(error_of("DCGM_FI_DEV_GPU_TEMP, gauge"),
            "counters.csv: line 1: 2 columns, 3 would do: FIELD, TYPE, HELP");
  EXPECT_EQ(
      error_of("DCGM_FI_DEV_GPU_TEMP, gauge, warm, very"),
      "counters.csv: line 1: 4 columns, 3 would do: FIELD, TYPE, HELP (a help text with a comma goes in "
      "double quotes)");
  EXPECT_EQ(error_of("DCGM_FI_DEV_GPU_TEMP, Gauge, x"),
            "counters.csv: line 1: \"Gauge\" is no type: gauge, counter or label would do");
  EXPECT_EQ(error_of("DCGM_FI_DEV_GPU_TEMP, gauge, \"x"), "counters.csv: line 1: a quote is not closed");
  EXPECT_EQ(error_of("DCGM_FI_DRIVER_VERSION, gauge, x"),
            "counters.csv: line 1: DCGM_FI_DRIVER_VERSION is a text: the type label would do");
  EXPECT_EQ(
      error_of("# nothing\n"),
      "counters.csv: no counters: rows as \"DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).\" would do");
  EXPECT_EQ(error_of(std::string(kMostCountersBytes + 1, ' ')),
            "counters.csv: more than 1 MiB: no list of counters");
  EXPECT_EQ(error_of("\x01\xff" + std::string(200, 'a') + ", gauge, x").find('\x01'), std::string::npos);
}

TEST(Counters, TheDefaultsAreAFileToo) {
  std::string file;
  for (const auto& counter : default_counters().all) {
    file += counter.name + ", " + std::string(name(counter.type)) + ", " + counter.help + "\n";
  }
  const auto counters = parsed(file);
  EXPECT_EQ(counters.all, default_counters().all);
  EXPECT_EQ(counters.all.size(), 26u);
}

}  // namespace
}  // namespace gpulet::metrics
