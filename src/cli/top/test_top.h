// A node for the tests of `gpulet top`: the documents of the node page's tests (tests/golden/web), numbers
// for its eight GPUs, and who used them.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/file.h"
#include "cli/top/model.h"
#include "cli/top/view.h"

namespace gpulet::cli {

inline constexpr std::int64_t kTopAt = 1'760'000'000'000;

inline std::string top_uuid(unsigned gpu) {
  return "GPU-0000000" + std::to_string(gpu) + "-1111-2222-3333-444444444444";
}
inline std::string top_mig_uuid(unsigned device) {
  return "MIG-0000000" + std::to_string(device) + "-5555-6666-7777-888888888888";
}
inline std::string node_document_text(const std::string& how = "broken") {
  return read_file("tests/golden/web/node-" + how + ".json").value_or("");
}

// GPU i: util i·13 %, memory i·10 GiB, 40 + i·7 °C, 100 + i·80 W, i GB/s by PCIe, i·65 GB/s by NVLink, i
// corrected errors; GPU 2 does not answer, GPU 3 has uncorrected errors, GPU 6 is in MIG mode.
inline std::string sample_document_text(std::int64_t at = kTopAt, unsigned more_util = 0) {
  std::string gpus;
  for (unsigned i = 0; i < 8; ++i) {
    if (i == 2) continue;
    gpus += (gpus.empty() ? "" : ",") + ("\"" + top_uuid(i)) + "\":{";
    if (i != 6)
      gpus += "\"util\":" + std::to_string((i * 13 + more_util) % 101) + ",\"sm\":" + std::to_string(i * 11) +
              ".5,";
    gpus += "\"memory\":" + std::to_string(i * 10'737'418'240ULL) +
            ",\"temperature\":" + std::to_string(40 + i * 7) + ",\"power\":" + std::to_string(100 + i * 80) +
            ".3,\"power_limit\":700,\"sm_clock\":" + std::to_string(1980 - i) +
            ",\"memory_clock\":2619,\"pcie_rx\":" + std::to_string(i * 1'000'000'000LL) +
            ",\"pcie_tx\":" + std::to_string(i * 25'000'000LL) +
            ",\"nvlink_rx\":" + std::to_string(i * 33'000'000'000LL) +
            ",\"nvlink_tx\":" + std::to_string(i * 32'000'000'000LL) +
            ",\"ecc_corrected\":" + std::to_string(i) + ",\"ecc_uncorrected\":" + (i == 3 ? "2" : "0") + "}";
  }
  return "{\"at\":" + std::to_string(at) + ",\"gpus\":{" + gpus + "},\"mig\":{\"" + top_mig_uuid(0) +
         "\":{\"util\":55.5,\"memory\":21474836480},\"" + top_mig_uuid(3) + "\":{\"util\":0,\"memory\":0}}}";
}

inline std::string usage_document_text() {
  const auto pod = [](const char* space, const std::string& name, const char* rest) {
    return std::string("{\"namespace\":\"") + space + "\",\"pod\":\"" + name + "\"," + rest + "}";
  };
  return "{\"at\":1,\"devices\":{\"" + top_uuid(0) + "\":{\"pods\":[" +
         pod("team-a", "infer-0", "\"memory\":1073741824,\"busy\":3.5") + "," +
         pod("team-a", "infer-1", "\"memory\":536870912,\"busy\":40") + "," +
         pod("team-a", "infer-2", "\"shares\":2") +
         "],\"processes\":[{\"pid\":4711,\"name\":\"python3\",\"memory\":1073741824,\"sm\":3.5,\"namespace\":"
         "\"team-a\","
         "\"pod\":\"infer-0\"},{\"pid\":99,\"name\":\"Xorg\",\"sm\":0}]},\"" +
         top_uuid(7) + "\":{\"pods\":[" + pod("team-b", "train-0", "\"memory\":75161927680,\"busy\":91") +
         "],\"processes\":[{\"pid\":5000,\"name\":\"pt_main_thread\",\"memory\":75161927680,\"sm\":91,"
         "\"namespace\":"
         "\"team-b\",\"pod\":\"train-0\"}]},\"" +
         top_mig_uuid(0) + "\":{\"pods\":[" +
         pod("team-b", "notebook", "\"memory\":21474836480,\"busy\":55.5") + "],\"processes\":[]}}}";
}

inline TopModel make_top_model(const std::string& how = "broken") {
  TopModel model;
  EXPECT_TRUE(model.apply_node_document(node_document_text(how)));
  EXPECT_TRUE(model.apply_sample_document(sample_document_text()));
  EXPECT_TRUE(model.apply_usage_document(usage_document_text()));
  return model;
}

inline TopView make_view(unsigned columns, unsigned rows = 24) {
  TopView view;
  view.columns = columns;
  view.rows = rows;
  view.now = kTopAt + 800;
  return view;
}

}  // namespace gpulet::cli
