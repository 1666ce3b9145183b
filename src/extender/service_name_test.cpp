#include "extender/service_name.h"

#include <gtest/gtest.h>

namespace gpulet::extender {
namespace {

TEST(ServiceNameTest, HasTheFormsOfTheServiceProxy) {
  const auto written = [](const char* text) {
    const auto service = parse_service_name(text);
    return service ? service->name_space + " " + service->scheme + " " + service->name + " " + service->port
                   : "invalid";
  };
  EXPECT_EQ(written("gpulet/gpulet-scheduler"), "gpulet  gpulet-scheduler ");
  EXPECT_EQ(written("gpulet/gpulet-scheduler:9410"), "gpulet  gpulet-scheduler 9410");
  EXPECT_EQ(written("gpulet/https:gpulet-scheduler:http"), "gpulet https gpulet-scheduler http");
  for (const char* other :
       {"", "gpulet", "/", "/a", "a/", "a/b:", "a/:b", "a/b:c:d:e", "a/b/c", "../b", "a/..", "A/b"})
    EXPECT_EQ(written(other), "invalid") << other;
}

}  // namespace
}  // namespace gpulet::extender
