#include "web/exposition.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <limits>

#include "base/process.h"

namespace gpulet::web {
namespace {

using enum Exposition::Type;

// What Prometheus' own checker says of a page; empty when it has nothing to say.
std::string promtool(const std::string& page) {
  std::array<int, 2> in, out;
  EXPECT_EQ(::pipe(in.data()), 0);
  EXPECT_EQ(::pipe(out.data()), 0);
  FileDescriptor in_read(in[0]), in_write(in[1]), out_read(out[0]), out_write(out[1]);
  ProcessOptions options{.program = GPULET_PROMTOOL, .arguments = {"promtool", "check", "metrics"}};
  options.descriptors = {{in_read.get(), 0}, {out_write.get(), 1}, {out_write.get(), 2}};
  auto process = Process::start(options);
  if (!process) return process.error().text() + " (scripts/bootstrap fetches it)";
  in_read.reset();
  out_write.reset();
  EXPECT_EQ(::write(in_write.get(), page.data(), page.size()), static_cast<ssize_t>(page.size()));
  in_write.reset();
  const auto said = read_all(out_read.get(), "promtool");
  const auto exit = (*process)->wait(std::chrono::seconds(30));
  if (!exit) return exit.error().text();
  return exit->ok() ? *said : exit->text() + ": " + *said;
}

TEST(Exposition, OneFamilyHasItsHelpOnceAndASteadyOrder) {
  Exposition page;
  page.add("gpulet_events_total", kCounter, "Events by reason.", {{"reason", "GPUUnhealthy"}}, 3u);
  page.add("gpulet_devices", kGauge, "Devices offered.", {}, 8);
  page.add("gpulet_events_total", kCounter, "Events by reason.", {{"reason", "GPUHealthy"}}, std::uint64_t{1} << 63);
  page.add("gpulet_devices", kGauge, "Devices offered.", {}, 7);
  EXPECT_EQ(page.text(),
            "# HELP gpulet_devices Devices offered.\n"
            "# TYPE gpulet_devices gauge\n"
            "gpulet_devices 7\n"
            "# HELP gpulet_events_total Events by reason.\n"
            "# TYPE gpulet_events_total counter\n"
            "gpulet_events_total{reason=\"GPUHealthy\"} 9223372036854775808\n"
            "gpulet_events_total{reason=\"GPUUnhealthy\"} 3\n");
}

TEST(Exposition, PrometheusReadsEveryValueAndLabel) {
  Exposition page;
  page.add("gpulet_values", kGauge, "A \\ and a\nline \"break\".", {{"kind", "nan"}}, std::nan(""));
  page.add("gpulet_values", kGauge, "", {{"kind", "inf"}}, std::numeric_limits<double>::infinity());
  page.add("gpulet_values", kGauge, "", {{"kind", "-inf"}}, -std::numeric_limits<double>::infinity());
  page.add("gpulet_values", kGauge, "", {{"kind", "tiny"}}, 1e-300);
  page.add("gpulet_values", kGauge, "", {{"kind", "tenth"}}, 0.1);
  page.add("gpulet_values", kGauge, "", {{"kind", "\"quoted\\\n\" ünïcode, } ="}, {"other", ""}}, -5);
  EXPECT_NE(page.text().find("gpulet_values{kind=\"tenth\"} 0.1\n"), std::string::npos);
  EXPECT_NE(page.text().find("kind=\"\\\"quoted\\\\\\n\\\" "), std::string::npos);
  EXPECT_EQ(promtool(page.text()), "");
}

TEST(Exposition, TheCheckerIsNotBlind) {
  EXPECT_NE(promtool("gpulet_x{a=\"b} 1\n"), "");
}

}  // namespace
}  // namespace gpulet::web
