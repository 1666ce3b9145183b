#include <gtest/gtest.h>

#include "metrics/pods.h"

namespace gpulet::metrics {
namespace {

using Uids = std::vector<std::string>;

const std::string kUid = "0b1d2a3c-4d5e-4f60-8172-93a4b5c6d7e8";
const std::string kUnderscored = "0b1d2a3c_4d5e_4f60_8172_93a4b5c6d7e8";
const std::string kOtherUid = "ffffffff-4d5e-4f60-8172-93a4b5c6d7e8";
const std::string kStatic = "d0a1b2c3d4e5f60718293a4b5c6d7e8f";
const std::string kContainer = std::string(64, 'c');

TEST(Cgroups, V2PathsByEngineAndDriver) {
  const auto of = [](const std::string& path) { return pod_uids("0::" + path + "\n"); };
  for (const std::string& qos : Uids{"kubepods-besteffort-pod", "kubepods-burstable-pod", "kubepods-pod"}) {
    const std::string slice = "/kubepods.slice/x.slice/" + qos + kUnderscored + ".slice/";
    EXPECT_EQ(of(slice + "cri-containerd-" + kContainer + ".scope"), Uids{kUid});
    EXPECT_EQ(of(slice + "crio-" + kContainer + ".scope"), Uids{kUid});
    EXPECT_EQ(of(slice + "crio-" + kContainer + ".scope/container"), Uids{kUid}) << "crun";
    EXPECT_EQ(of(slice + "docker-" + kContainer + ".scope"), Uids{kUid});
  }
  for (const std::string& qos : Uids{"/besteffort", "/burstable", ""}) {
    EXPECT_EQ(of("/kubepods" + qos + "/pod" + kUid + "/" + kContainer), Uids{kUid});
    EXPECT_EQ(of("/kubepods" + qos + "/pod" + kUid + "/crio-" + kContainer), Uids{kUid});
  }
  EXPECT_EQ(of("/system.slice/containerd.service/kubepods-burstable-pod" + kUnderscored +
               ".slice:cri-containerd:" + kContainer),
            Uids{kUid});
  EXPECT_EQ(of("/kubepods/burstable/pod" + kStatic + "/" + kContainer), Uids{kStatic});
  EXPECT_EQ(of("/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
               "kubelet-kubepods-burstable-pod" +
               kUnderscored + ".slice/cri-containerd-" + kContainer + ".scope"),
            Uids{kUid});
  // As seen from the agent's own cgroup namespace.
  EXPECT_EQ(of("/../../../kubepods-burstable-pod" + kUnderscored + ".slice/cri-containerd-1.scope"),
            Uids{kUid});
}

TEST(Cgroups, V1HasThePodOnEachLine) {
  EXPECT_EQ(pod_uids("12:pids:/kubepods/burstable/pod" + kUid + "/" + kContainer +
                     "\n11:cpu,cpuacct:/kubepods/burstable/pod" + kUid + "/" + kContainer +
                     "\n1:name=systemd:/kubepods/burstable/pod" + kUid + "/" + kContainer + "\n0::/\n"),
            Uids{kUid});
}

TEST(Cgroups, ContainersByEngineAndDriver) {
  const std::vector<PodCgroup> main = {{kUid, kContainer}};
  const auto of = [](const std::string& path) { return pod_cgroups("0::" + path + "\n"); };
  const std::string slice = "/kubepods.slice/kubepods-pod" + kUnderscored + ".slice";
  for (const std::string& name :
       {"cri-containerd-" + kContainer + ".scope", "crio-" + kContainer + ".scope",
        "docker-" + kContainer + ".scope", "crio-" + kContainer + ".scope/container"})
    EXPECT_EQ(of(slice + "/" + name), main) << name;
  EXPECT_EQ(of("/kubepods/pod" + kUid + "/" + kContainer), main);
  EXPECT_EQ(of("/kubepods/pod" + kUid + "/crio-" + kContainer), main);
  EXPECT_EQ(of("/system.slice/containerd.service/kubepods-pod" + kUnderscored +
               ".slice:cri-containerd:" + kContainer),
            main);
  EXPECT_EQ(of("/kubepods/pod" + kUid + "/" + kContainer + "/nested"), main) << "made by the container";
  EXPECT_EQ(of("/../pod" + kUid + "/" + kContainer), main) << "from the agent's own cgroup namespace";
  const std::vector<PodCgroup> none = {{kUid, ""}};
  EXPECT_EQ(of("/kubepods/pod" + kUid), none);
  EXPECT_EQ(of("/kubepods/pod" + kUid + "/x" + kContainer), none);
  EXPECT_EQ(of("/kubepods/pod" + kUid + "/" + kContainer.substr(1)), none);
  EXPECT_EQ(of("/kubepods/pod" + kUid + "/" + std::string(64, 'g')), none);
}

TEST(Cgroups, EachContainerIsThereOnce) {
  const std::string pod = "/kubepods/pod" + kUid;
  EXPECT_EQ(pod_cgroups("12:pids:" + pod + "/" + kContainer + "\n11:cpu:" + pod + "/" + kContainer +
                        "\n0::" + pod + "\n"),
            (std::vector<PodCgroup>{{kUid, kContainer}, {kUid, ""}}));
}

TEST(Cgroups, OutermostKnownPodCounts) {
  // A kubelet in a Pod, or a Pod with forged cgroup names.
  EXPECT_EQ(
      pod_uids("0::/kubepods/pod" + kUid + "/" + kContainer + "/kubepods/burstable/pod" + kOtherUid + "/x"),
      (Uids{kUid, kOtherUid}));
}

TEST(Cgroups, OtherPathsAreNoPod) {
  const std::vector<std::string> paths = {"/",
                                          "/user.slice/user-1000.slice/session-2.scope",
                                          "/machine.slice/libpod-" + kContainer + ".scope",
                                          "/kubepods.slice/kubepods-burstable.slice",
                                          "/kubepods/pod" + kUid.substr(1),
                                          "/kubepods/pod" + kUid + "0",
                                          "/kubepods/podX" + kUid.substr(1),
                                          "/my-pod" + kUnderscored + ".slice",
                                          "/kubepods/pod" + kContainer};
  for (const auto& path : paths) {
    EXPECT_EQ(pod_uids("0::" + path + "\n"), Uids{}) << path;
  }
  EXPECT_EQ(pod_uids(""), Uids{});
  EXPECT_EQ(pod_uids("0\n::\n:\n\n"), Uids{});
  EXPECT_EQ(pod_uids(std::string(kMaxCgroupBytes, '\n') + "0::/kubepods/pod" + kUid), Uids{});
}

TEST(Cgroups, LogDirectoriesNamePods) {
  EXPECT_EQ(parse_log_directory("kube-system_gpu-test-0_" + kUid),
            (PodLogDirectory{{"kube-system", "gpu-test-0"}, kUid}));
  EXPECT_EQ(parse_log_directory("a_b_" + kStatic), (PodLogDirectory{{"a", "b"}, kStatic}));
  const std::vector<std::string> wrong = {"",           "a_b",        "a_b_c",
                                          "_b_" + kUid, "a__" + kUid, "a_b_" + kUid + "_d"};
  for (const auto& name : wrong) EXPECT_EQ(parse_log_directory(name), std::nullopt) << name;
}

}  // namespace

namespace {

using Labels = std::vector<std::pair<std::string, std::string>>;

PodLabelPatterns patterns(const std::vector<std::string>& texts) {
  auto parsed = PodLabelPatterns::compile_patterns(texts, "--kubernetes-pod-label-allowlist-regex");
  EXPECT_TRUE(parsed) << parsed.error().full_message();
  return parsed.value_or(PodLabelPatterns());
}

TEST(PodLabels, NamesAreValidInPrometheus) {
  EXPECT_EQ(pod_metric_labels(
                {{"app.kubernetes.io/name", "x"}, {"team-a", "y"}, {"0day", "z"}, {"__meta", "w"}}, {}),
            (Labels{{"_0day", "z"}, {"_meta", "w"}, {"app_kubernetes_io_name", "x"}, {"team_a", "y"}}));
  EXPECT_EQ(pod_metric_labels({{"a-b", "first"}, {"a.b", "second"}}, {}), (Labels{{"a_b", "first"}}));
}

TEST(PodLabels, OnlyMatchingLabelsAreKept) {
  const std::map<std::string, std::string> labels = {{"app", "x"}, {"application", "y"}, {"team", "z"}};
  EXPECT_EQ(pod_metric_labels(labels, patterns({"^app$", "tea"})), (Labels{{"app", "x"}, {"team", "z"}}));
  EXPECT_EQ(pod_metric_labels(labels, patterns({"nothing"})), Labels{});
  EXPECT_EQ(pod_metric_labels(labels, patterns({})).size(), 3u);
  EXPECT_EQ(pod_metric_labels({{std::string(400, 'a'), "x"}}, patterns({".*"})), Labels{});
}

TEST(PodLabels, InvalidPatternIsReported) {
  const auto bad = PodLabelPatterns::compile_patterns({"^app$", "(unclosed"}, "podLabels");
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code(), Code::kInvalidArgument);
  EXPECT_EQ(bad.error().full_message().find("podLabels: \"(unclosed\" is not a regular expression: "), 0u)
      << bad.error().full_message();
  EXPECT_FALSE(PodLabelPatterns::compile_patterns({std::string(2000, 'a')}, "podLabels"));
}

}  // namespace
}  // namespace gpulet::metrics
