#include <map>
#include <tuple>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "fraction/fraction_request.h"

namespace gpulet::fraction {
namespace {

using Fields = std::vector<PodField>;

const Fields kOneGpu = {{"nvidia.com/gpu", "1"}, {"cpu", "8"}};

Fields with_gpu(Fields fields, std::string_view count = "1") {
  fields.push_back({"nvidia.com/gpu", count});
  return fields;
}

PodFields test_pod(Fields annotations, Fields limits = kOneGpu) {
  return {.annotations = std::move(annotations), .containers = {{"main", false, std::move(limits)}}};
}

std::string error_of(const PodFields& pod) {
  const auto requests = parse_fraction_requests(pod);
  return requests ? "no error" : requests.error().message();
}

TEST(FractionRequestTest, EveryFormBecomesOne) {
  const MemoryAmount eight{.mib = 8192}, half{.millionths = 500'000};
  const std::tuple<Fields, Fields, MemoryAmount, MemoryAmount, std::string> kForms[] = {
      {{}, {{"nvidia.com/gpumem", "8192"}}, eight, eight, "limit nvidia.com/gpumem of container main"},
      {{},
       {{"nvidia.com/gpumem", "3k"}},
       {.mib = 3000},
       {.mib = 3000},
       "limit nvidia.com/gpumem of container main"},
      {{},
       {{"nvidia.com/gpumem-percentage", "50"}},
       half,
       half,
       "limit nvidia.com/gpumem-percentage of container main"},
      {{{"gpu-fraction", "0.5"}}, {}, half, half, "annotation gpu-fraction"},
      {{{"gpu-memory", "8192"}}, {}, eight, eight, "annotation gpu-memory"},
      {{{"gpulet.io/gpu-memory", "8Gi"}}, {}, eight, eight, "annotation gpulet.io/gpu-memory"},
      {{{"nvidia.com/container.main.gpu-memory.limit", "8Gi"}},
       {},
       eight,
       eight,
       "annotation nvidia.com/container.main.gpu-memory.limit"},
      {{{"nvidia.com/container.main.gpu-memory.request", "8Gi"}},
       {},
       eight,
       {},
       "annotation nvidia.com/container.main.gpu-memory.request"},
      {{{"nvidia.com/container.main.gpu-memory.request", "1.5Gi"},
        {"nvidia.com/container.main.gpu-memory.limit", "8Gi"}},
       {},
       {.mib = 1536},
       eight,
       "annotation nvidia.com/container.main.gpu-memory.request"},
  };
  for (const auto& [annotations, limits, memory, limit, source] : kForms) {
    const auto requests = parse_fraction_requests(test_pod(annotations, with_gpu(limits)));
    ASSERT_TRUE(requests) << requests.error().message();
    EXPECT_EQ(*requests, (std::vector<FractionRequest>{{"main", memory, limit, 0, source}})) << source;
  }
}

TEST(FractionRequestTest, ComputeIsInThousandths) {
  const auto requests = parse_fraction_requests(test_pod({}, with_gpu({{"nvidia.com/gpucores", "30"}})));
  ASSERT_TRUE(requests) << requests.error().message();
  EXPECT_EQ(*requests, (std::vector<FractionRequest>{{"main", {}, {}, 300, ""}}));
}

TEST(FractionRequestTest, EqualFormsAgree) {
  const auto requests =
      parse_fraction_requests(test_pod({{"gpu-memory", "8192"},
                                        {"gpulet.io/gpu-memory", "8Gi"},
                                        {"nvidia.com/container.main.gpu-memory.limit", "8Gi"},
                                        {"gpu-fraction-num-devices", "2"}},
                                       with_gpu({{"nvidia.com/gpumem", "8192"}}, "2")));
  ASSERT_TRUE(requests) << requests.error().message();
  ASSERT_EQ(requests->size(), 1U);
  EXPECT_EQ(requests->front().memory_source, "limit nvidia.com/gpumem of container main");
}

TEST(FractionRequestTest, APodWithoutARequestHasNone) {
  for (const auto& pod : {PodFields{}, test_pod({}), test_pod({{"gpu-fraction-container-name", "other"}}),
                          test_pod({{"nvidia.com/container.main.gpu-compute.mode", "time-slicing"}}),
                          test_pod({{"gpulet.io/gpu-memory", "8Gi"}}, {{"cpu", "1"}}),
                          test_pod({{"gpulet.io/gpu-memory", "lots"}})}) {
    const auto requests = parse_fraction_requests(pod);
    ASSERT_TRUE(requests) << requests.error().message();
    EXPECT_TRUE(requests->empty());
  }
}

TEST(FractionRequestTest, AnnotationsFindTheirContainer) {
  PodFields pod{
      .annotations = {{"gpu-memory", "100"}},
      .containers = {
          {"fetch", true, kOneGpu}, {"proxy", false, {}}, {"a", false, kOneGpu}, {"b", false, kOneGpu}}};
  const auto names = [&] {
    std::string text;
    const auto requests = parse_fraction_requests(pod);
    if (!requests) return requests.error().message();
    for (const auto& request : *requests) text += request.container + " ";
    return text;
  };
  EXPECT_EQ(names(), "a ") << "the first main one with a GPU";
  pod.annotations.push_back({"gpu-fraction-container-name", "b"});
  EXPECT_EQ(names(), "b ");
  pod.annotations.back().value = "fetch";
  EXPECT_EQ(names(), "fetch ");
  pod.annotations = {{"gpulet.io/gpu-memory", "1Gi"}};
  EXPECT_EQ(names(), "fetch a b ");
  pod.annotations = {{"nvidia.com/container.b.gpu-memory.limit", "1Gi"}};
  EXPECT_EQ(names(), "b ");
}

TEST(FractionRequestTest, NoAmountIsRefusedWithItsField) {
  const std::tuple<const char*, std::vector<const char*>, const char*> kWrong[] = {
      {"nvidia.com/gpumem", {"", "0", "-1", "lots", "1.5", "2Ti", "1e30"}, "MiB, as 8192"},
      {"nvidia.com/gpumem-percentage", {"0", "101", "-5", "50%"}, "a whole percentage from 1 to 100"},
      {"nvidia.com/gpucores", {"0", "101", "-5", "half"}, "a whole percentage from 1 to 100"},
      {"gpu-fraction",
       {"", "0", "-0.5", "1.01", "nan", "inf", "half", "0.0000001", "0x1"},
       "a number above 0 and at most 1, as 0.5"},
      {"gpu-memory", {"", "0", "-1", "8.5", "lots"}, "MiB, as 8192"},
      {"nvidia.com/container.main.gpu-memory.request",
       {"", "0", "-1Gi", "lots"},
       "a quantity above 0, as 8Gi"},
      {"nvidia.com/container.main.gpu-memory.limit", {"", "0", "-1Gi"}, "a quantity above 0, as 8Gi"},
  };
  for (const auto& [field, values, expected] : kWrong) {
    const bool is_limit = is_fraction_resource(field);
    for (const std::string value : values) {
      const auto pod = is_limit ? test_pod({}, with_gpu({{field, value}})) : test_pod({{field, value}});
      const std::string name = is_limit ? std::string("limit ") + field + " of container main"
                                        : std::string("annotation ") + field;
      EXPECT_EQ(error_of(pod), name + " is \"" + value + "\": expected " + expected);
    }
  }
}

TEST(FractionRequestTest, ContradictionsNameBothFields) {
  EXPECT_EQ(error_of(test_pod({{"gpu-memory", "4096"}}, with_gpu({{"nvidia.com/gpumem", "8192"}}))),
            "annotation gpu-memory is \"4096\": expected the same memory as limit nvidia.com/gpumem of "
            "container main, \"8192\", or one of them");
  EXPECT_EQ(
      error_of(
          test_pod({}, with_gpu({{"nvidia.com/gpumem", "8192"}, {"nvidia.com/gpumem-percentage", "10"}}))),
      "limit nvidia.com/gpumem-percentage of container main is \"10\": expected the same memory as limit "
      "nvidia.com/gpumem of container main, \"8192\", or one of them");
  EXPECT_EQ(error_of(test_pod({{"gpu-memory", "4096"}, {"gpulet.io/gpu-memory", "8Gi"}})),
            "annotation gpulet.io/gpu-memory is \"8Gi\": expected the same memory as annotation gpu-memory, "
            "\"4096\", or one of them");
  EXPECT_EQ(error_of(test_pod({{"nvidia.com/container.main.gpu-memory.request", "9Gi"},
                               {"nvidia.com/container.main.gpu-memory.limit", "8Gi"}})),
            "annotation nvidia.com/container.main.gpu-memory.request is \"9Gi\": expected at most the limit, "
            "\"8Gi\"");
  EXPECT_EQ(error_of(test_pod({{"nvidia.com/container.main.gpu-memory.request", "4Gi"},
                               {"nvidia.com/container.main.gpu-memory.limit", "8Gi"}},
                              with_gpu({{"nvidia.com/gpumem", "4096"}}))),
            "annotation nvidia.com/container.main.gpu-memory.request is \"4Gi\": expected the same memory as "
            "limit nvidia.com/gpumem of container main, \"4096\", or one of them");
  EXPECT_EQ(error_of(test_pod({{"gpu-fraction", "0.5"}, {"gpu-fraction-num-devices", "2"}})),
            "annotation gpu-fraction-num-devices is \"2\": expected 1, the GPUs of container main");
  EXPECT_EQ(
      error_of(test_pod({{"gpu-fraction-num-devices", "2"}})),
      "annotation gpu-fraction-num-devices is \"2\": expected annotation gpu-fraction or gpu-memory beside "
      "it");
}

TEST(FractionRequestTest, RefusesARequestWithoutAGpuOrContainer) {
  for (const auto resource : kFractionResources) {
    EXPECT_EQ(error_of(test_pod({}, {{resource, "50"}})),
              "limit " + std::string(resource) +
                  " of container main is \"50\": expected a GPU for container main beside it, as "
                  "nvidia.com/gpu: 1");
  }
  EXPECT_EQ(error_of(test_pod({{"gpu-fraction", "0.5"}}, {{"cpu", "1"}})),
            "annotation gpu-fraction is \"0.5\": expected a container with a GPU, as nvidia.com/gpu: 1");
  EXPECT_EQ(
      error_of(test_pod({{"gpu-memory", "9"}, {"gpu-fraction-container-name", "other"}})),
      "annotation gpu-fraction-container-name is \"other\": expected the name of a container of the Pod");
  EXPECT_EQ(error_of(test_pod({{"nvidia.com/container.other.gpu-memory.limit", "8Gi"}})),
            "annotation nvidia.com/container.other.gpu-memory.limit is \"8Gi\": expected the name of a "
            "container of the Pod in it");
  EXPECT_EQ(error_of(test_pod({{"nvidia.com/container.main.gpu-memory.limit", "8Gi"}}, {})),
            "annotation nvidia.com/container.main.gpu-memory.limit is \"8Gi\": expected a GPU for container "
            "main beside it, as nvidia.com/gpu: 1");
}

TEST(FractionRequestTest, AnErrorIsOneShortLine) {
  const std::string value = "1\n2" + std::string(10'000, 'x');
  const auto error = error_of(test_pod({{"gpu-memory", value}}));
  EXPECT_EQ(error.find('\n'), std::string::npos);
  EXPECT_LT(error.size(), 200U);
}

TEST(MemoryAmountTest, IsOfAGpu) {
  EXPECT_EQ((MemoryAmount{.mib = 8192}.mib_of(81'920)), 8192U);
  EXPECT_EQ((MemoryAmount{.millionths = 500'000}.mib_of(81'920)), 40'960U);
  EXPECT_EQ((MemoryAmount{.millionths = 1'000'000}.mib_of(kMaxRequestMib)), kMaxRequestMib);
  MemoryAmount both{.mib = 8192};
  both.raise_to({.millionths = 500'000});
  both.raise_to({.mib = 1});
  EXPECT_EQ(both.mib_of(81'920), 40'960U);
  EXPECT_EQ(both.mib_of(1024), 8192U);
}

// Shares whose fractions add up to at most one always fit on the GPU together.
RC_GTEST_PROP(FractionProperty, FractionsThatAddUpFit, ()) {
  const auto percents = *rc::gen::container<std::vector<unsigned>>(rc::gen::inRange(1U, 101U));
  const auto gpu_mib = *rc::gen::inRange<std::uint64_t>(1, 1'000'000);
  unsigned sum = 0;
  std::uint64_t mib = 0;
  for (const auto percent : percents) {
    if (sum + percent > 100) continue;
    sum += percent;
    const std::string text = std::to_string(percent);
    const auto requests =
        parse_fraction_requests(test_pod({}, with_gpu({{"nvidia.com/gpumem-percentage", text}})));
    RC_ASSERT(requests.has_value());
    mib += requests->front().memory.mib_of(gpu_mib);
  }
  RC_ASSERT(mib <= gpu_mib);
}

// The order of a Pod's fields changes neither its requests nor whether it has an error.
RC_GTEST_PROP(FractionProperty, OrderOfFieldsDoesNotMatter, ()) {
  const auto value = rc::gen::element<std::string_view>("1", "2", "0.5", "1Mi", "2Mi", "0");
  const auto key = rc::gen::element<std::string_view>(
      "gpu-memory", "gpu-fraction", "gpulet.io/gpu-memory", "nvidia.com/container.main.gpu-memory.limit",
      "nvidia.com/container.main.gpu-memory.request", "gpu-fraction-num-devices");
  std::map<std::string_view, std::string_view> annotations;
  for (int i = 0; i < 3; ++i) annotations[*key] = *value;
  Fields forwards;
  for (const auto& [name, found] : annotations) forwards.push_back({name, found});
  const Fields backwards(forwards.rbegin(), forwards.rend());
  const auto a = parse_fraction_requests(test_pod(forwards));
  const auto b = parse_fraction_requests(test_pod(backwards));
  RC_ASSERT(a.has_value() == b.has_value());
  if (a) RC_ASSERT(*a == *b);
  if (!a) RC_ASSERT(a.error().message() == b.error().message());
}

}  // namespace
}  // namespace gpulet::fraction
