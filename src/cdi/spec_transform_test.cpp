#include "cdi/spec.h"

#include <gtest/gtest.h>

namespace gpulet::cdi {
namespace {

Spec example() {
  Spec spec{"0.3.0", "nvidia.com/gpu"};
  ContainerEdits gpu;
  gpu.device_nodes = {{.path = "/dev/nvidia0"}, {.path = "/dev/x", .host_path = "/run/driver/dev/x"}};
  spec.devices = {{"one", {}, gpu}};
  spec.edits.mounts = {{"/run/driver/usr/lib/libcuda.so.1", "/usr/lib/libcuda.so.1"},
                       {"/run/driver2/a", "/run/driver2/a"},
                       {"/run/driver", "/run/driver"}};
  spec.edits.hooks = {{"createContainer",
                       "/run/driver/hook",
                       {"hook", "--link", "/run/driver/a::/run/driver/b", "--folder=/run/driver/lib",
                        "--ldconfig-path", "/run/driver/sbin/ldconfig", "/run/driver/c"},
                       {"A=1"}},
                      {"startContainer", "/run/driver/s", {"s", "/run/driver/d"}, {"A=1"}},
                      {"poststop", "/run/driver/p", {"p", "--at=/run/driver/e"}, {"A=1"}}};
  return spec;
}

TEST(TransformRoot, RewritesHostPaths) {
  Spec spec = example();
  ASSERT_TRUE(transform_root(spec, "/run/driver/", "/", PathSide::kHost));
  const auto& edits = spec.edits;
  EXPECT_EQ(edits.mounts[0].host_path, "/usr/lib/libcuda.so.1");
  EXPECT_EQ(edits.mounts[1].host_path, "/run/driver2/a");
  EXPECT_EQ(edits.mounts[2].host_path, "/");
  EXPECT_EQ(edits.mounts[2].container_path, "/run/driver");
  // The same path on both sides is written once.
  EXPECT_EQ(spec.devices[0].edits.device_nodes[1], (NodeEdit{.path = "/dev/x"}));
  EXPECT_EQ(edits.hooks[0].path, "/hook");
  EXPECT_EQ(edits.hooks[0].args, (std::vector<std::string>{"hook", "--link", "/run/driver/a::/run/driver/b",
                                                           "--folder=/run/driver/lib", "--ldconfig-path",
                                                           "/sbin/ldconfig", "/run/driver/c"}));
  EXPECT_EQ(edits.hooks[1], example().edits.hooks[1]);
  EXPECT_EQ(edits.hooks[2].path, "/p");
  EXPECT_EQ(edits.hooks[2].args[1], "--at=/e");
}

TEST(TransformRoot, RewritesContainerPaths) {
  Spec spec = example();
  ASSERT_TRUE(transform_root(spec, "/run/driver", "/opt/nvidia", PathSide::kContainer));
  const auto& edits = spec.edits;
  EXPECT_EQ(edits.mounts[0], example().edits.mounts[0]);
  EXPECT_EQ(edits.mounts[2].host_path, "/run/driver");
  EXPECT_EQ(edits.mounts[2].container_path, "/opt/nvidia");
  EXPECT_EQ(spec.devices, example().devices);
  EXPECT_EQ(edits.hooks[0].path, "/run/driver/hook");
  EXPECT_EQ(edits.hooks[0].args, (std::vector<std::string>{"hook", "--link", "/opt/nvidia/a::/opt/nvidia/b",
                                                           "--folder=/opt/nvidia/lib", "--ldconfig-path",
                                                           "/run/driver/sbin/ldconfig", "/opt/nvidia/c"}));
  EXPECT_EQ(edits.hooks[1].path, "/opt/nvidia/s");
  EXPECT_EQ(edits.hooks[1].args[1], "/opt/nvidia/d");
  EXPECT_EQ(edits.hooks[2], example().edits.hooks[2]);
}

TEST(TransformRoot, AddsAHostPathAndRaisesTheVersion) {
  Spec spec{"0.3.0", "nvidia.com/gpu", {}, {{"one", {}, {.device_nodes = {{.path = "/dev/nvidia0"}}}}}};
  Spec same = spec;
  ASSERT_TRUE(transform_root(same, "/run", "/", PathSide::kHost));
  EXPECT_EQ(same, spec);
  ASSERT_TRUE(transform_root(spec, "/", "/run/driver", PathSide::kHost));
  const NodeEdit expected{.path = "/dev/nvidia0", .host_path = "/run/driver/dev/nvidia0"};
  EXPECT_EQ(spec.devices[0].edits.device_nodes[0], expected);
  EXPECT_EQ(spec.version, "0.5.0");
  // A different path in the container does not change the host's.
  Spec moved = same;
  ASSERT_TRUE(transform_root(moved, "/dev", "/devices", PathSide::kContainer));
  const NodeEdit seen{.path = "/devices/nvidia0", .host_path = "/dev/nvidia0"};
  EXPECT_EQ(moved.devices[0].edits.device_nodes[0], seen);
  // And back again.
  ASSERT_TRUE(transform_root(spec, "/run/driver", "/", PathSide::kHost));
  EXPECT_EQ(spec.devices, same.devices);
  // A newer version stays.
  same.version = "1.0.0";
  ASSERT_TRUE(transform_root(same, "/run", "/", PathSide::kHost));
  EXPECT_EQ(same.version, "1.0.0");
}

TEST(TransformRoot, RefusesARelativeRoot) {
  Spec spec = example();
  for (const char* wrong : {"", "driver", "./x"}) {
    EXPECT_EQ(transform_root(spec, wrong, "/", PathSide::kHost).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(transform_root(spec, "/", wrong, PathSide::kHost).error().code(), Code::kInvalidArgument);
  }
  EXPECT_EQ(spec, example());
  EXPECT_EQ(parse_path_side("host").value(), PathSide::kHost);
  EXPECT_EQ(parse_path_side("container").value(), PathSide::kContainer);
  EXPECT_FALSE(parse_path_side("both"));
}

}  // namespace
}  // namespace gpulet::cdi
