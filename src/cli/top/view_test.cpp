#include "cli/top/view.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/top/controls.h"
#include "cli/top/tables.h"
#include "cli/top/test_top.h"

namespace gpulet::cli {
namespace {

std::string screen_lines_text(const std::vector<TopLine>& lines) {
  std::string text;
  for (const auto& line : lines) text += cli::line_text(line) + "\n";
  return text;
}
std::string screen_text(const TopModel& model, const TopView& view) {
  return screen_lines_text(render_screen(model, view).lines);
}

void expect_top_golden(const std::string& name, const std::string& text) {
  const std::string path = "tests/golden/top/" + name + ".txt";
  if (std::getenv("UPDATE_GOLDEN") != nullptr) {
    ASSERT_TRUE(write_file_atomic(path, text));
  }
  const auto golden = read_file(path);
  ASSERT_TRUE(golden) << golden.error().full_message() << " (UPDATE_GOLDEN=1 writes it)";
  EXPECT_EQ(text, *golden) << path;
}

void press_all(TopView& view, const std::string& keys) {
  for (const char key : keys) apply_key(view, {TopKey::Kind::kCharacter, key}, {});
}
std::size_t line_width(const TopLine& line) {
  std::size_t width = 0;
  for (const auto& span : line) width += display_width(span.text);
  return width;
}

TEST(TopView, MatchesTheGoldenScreens) {
  const auto model = make_top_model();
  for (const unsigned columns : {80u, 120u, 200u}) {
    const std::string size = "-" + std::to_string(columns);
    auto view = make_view(columns);
    expect_top_golden("gpus" + size, screen_text(model, view));
    view.tab = TopTab::kPods;
    expect_top_golden("pods" + size, screen_text(model, view));
    view.tab = TopTab::kProcesses;
    expect_top_golden("processes" + size, screen_text(model, view));
    expect_top_golden("tables" + size, screen_lines_text(render_batch(model, view, kTopTabs)));
  }
  expect_top_golden("gpus-60", screen_text(model, make_view(60)));
  auto view = make_view(80);
  view.utf8 = false;
  expect_top_golden("ascii-80", screen_text(model, view));
  press_all(view, "?");
  expect_top_golden("help-80", screen_text(model, view));
}

TEST(TopView, HistoryMatchesTheGoldenScreens) {
  auto model = make_top_model();
  std::string samples;
  for (int second = 900; second > 0; second -= 5) {
    if (second > 300 && second < 540) continue;  // the agent was away
    samples += (samples.empty() ? "" : ",") +
               sample_document_text(kTopAt - second * 1000, static_cast<unsigned>((900 - second) / 9));
  }
  ASSERT_TRUE(model.apply_history_document("{\"samples\":[" + samples + "]}"));
  for (const bool utf8 : {true, false}) {
    auto view = make_view(100);
    view.utf8 = utf8;
    press_all(view, "h");
    expect_top_golden(utf8 ? "history-100" : "history-ascii-100", screen_text(model, view));
  }
  // The panel of GPU 5, in each style.
  auto view = make_view(160);
  view.selection[TopTab::kGpus] = top_uuid(5);
  expect_top_golden("panel-160", screen_text(model, view));
  view.braille = false;
  expect_top_golden("panel-blocks-160", screen_text(model, view));
  view.utf8 = false;
  expect_top_golden("panel-ascii-160", screen_text(model, view));
}

TEST(TopView, FillsTheTerminalExactly) {
  const auto model = make_top_model();
  for (unsigned columns = 0; columns < 260; columns += 7) {
    for (unsigned rows = 0; rows < 40; rows += 3) {
      for (const auto tab : kTopTabs) {
        for (const auto page : {TopPage::kTables, TopPage::kHistory, TopPage::kHelp}) {
          auto view = make_view(columns, rows);
          view.tab = tab;
          view.page = page;
          view.scroll = 1000;
          const auto screen = render_screen(model, view);
          ASSERT_EQ(screen.lines.size(), rows);
          for (const auto& line : screen.lines) {
            ASSERT_LE(line_width(line), columns) << cli::line_text(line);
          }
        }
      }
    }
  }
}

TEST(TopView, TablesFitFromFortyColumnsOn) {
  const auto model = make_top_model();
  for (unsigned columns = kMinTopColumns; columns < 240; ++columns) {
    for (const auto& line : render_batch(model, make_view(columns), kTopTabs))
      ASSERT_LE(line_width(line), columns) << columns << ": " << cli::line_text(line);
  }
}

// The less important columns need a wider screen.
TEST(TopView, ColumnsAdapt) {
  const auto model = make_top_model();
  const auto titles = [&](unsigned columns, TopTab tab) {
    std::vector<std::string> all;
    for (const auto& column : tab_table(model, make_view(columns), tab, columns).columns)
      all.push_back(column.title);
    return text::join(all, " ");
  };
  EXPECT_EQ(titles(40, TopTab::kGpus), "GPU STATE UTIL MEMORY");
  EXPECT_EQ(titles(60, TopTab::kGpus), "GPU STATE UTIL MEMORY TEMP POWER");
  EXPECT_EQ(titles(80, TopTab::kGpus), "GPU NAME STATE UTIL MEMORY TEMP POWER");
  EXPECT_EQ(titles(100, TopTab::kGpus), "GPU NAME STATE UTIL MEMORY TEMP POWER NVLINK RX/TX");
  EXPECT_EQ(titles(200, TopTab::kGpus),
            "GPU NAME STATE UTIL MEMORY TEMP POWER NVLINK RX/TX PCIE RX/TX ECC SM/MEM MHz SM PODS");
  // A wider screen never loses a column.
  std::string before;
  for (unsigned columns = kMinTopColumns; columns < 240; ++columns) {
    for (const auto& title : text::split(before, ' '))
      ASSERT_NE(titles(columns, TopTab::kGpus).find(title), std::string::npos) << title << " at " << columns;
    before = titles(columns, TopTab::kGpus);
  }
  EXPECT_EQ(titles(60, TopTab::kPods), "POD GPU SHARES BUSY MEMORY");
  EXPECT_EQ(titles(80, TopTab::kPods), "POD CONTAINER GPU SHARES BUSY MEMORY");
  EXPECT_EQ(titles(50, TopTab::kProcesses), "PID PROGRAM GPU BUSY MEMORY");
  EXPECT_EQ(titles(60, TopTab::kProcesses), "PID PROGRAM GPU BUSY MEMORY POD");
}

// However long the node's name is.
TEST(TopView, TheTitleHasTheClockAndThePause) {
  for (const std::size_t length : {1u, 20u, 63u, 253u}) {
    TopModel model;
    const std::string name(length, 'n');
    ASSERT_TRUE(model.apply_node_document(R"({"name":")" + name +
                                          R"(","driver":{"version":"570.124.06","cuda":"12.8"},"gpus":[]})"));
    ASSERT_TRUE(model.apply_sample_document(sample_document_text()));
    for (unsigned columns = kMinTopColumns; columns <= 200; ++columns) {
      auto view = make_view(columns);
      view.paused = true;
      const auto title = cli::line_text(render_screen(model, view).lines[0]);
      ASSERT_TRUE(title.starts_with("gpulet top  n")) << title;
      ASSERT_TRUE(title.ends_with("  08:53:20Z  PAUSED")) << columns << ": " << title;
      ASSERT_LE(display_width(title), columns);
    }
  }
}

TEST(TopView, SaysThatNothingMatches) {
  const auto model = make_top_model();
  auto view = make_view(80);
  for (const auto tab : kTopTabs) {
    view.tab = tab;
    view.queries[tab] = default_query(tab);
    view.queries[tab].filter = "nobody";
    EXPECT_NE(screen_text(model, view).find("\nno match for \"nobody\"\n"), std::string::npos);
  }
  const auto batch = screen_lines_text(render_batch(model, view, std::span(&view.tab, 1)));
  EXPECT_TRUE(batch.ends_with("\nno match for \"nobody\"\n")) << batch;
  EXPECT_NE(screen_text(model, view).find("filter: nobody  Esc clears it"), std::string::npos);
  TopModel fresh;
  ASSERT_TRUE(fresh.apply_node_document(R"({"gpus":[]})"));
  EXPECT_NE(screen_text(fresh, make_view(80)).find("\nno GPUs\n"), std::string::npos);
}

TEST(TopView, ABatchOfOneTabHasOnlyThat) {
  const auto model = make_top_model();
  auto view = make_view(80);
  view.tab = TopTab::kPods;
  const auto text = screen_lines_text(render_batch(model, view, std::span(&view.tab, 1)));
  EXPECT_NE(text.find("\nteam-b/train-0 "), std::string::npos) << text;
  EXPECT_EQ(text.find("H100"), std::string::npos) << text;
  EXPECT_EQ(text.find("PID"), std::string::npos) << text;
}

TEST(TopView, AWideScreenShowsTheSelectedGpuBesideTheTable) {
  auto model = make_top_model();
  auto view = make_view(159);
  EXPECT_EQ(screen_text(model, view).find("15 min ago"), std::string::npos);
  EXPECT_FALSE(shows_history(view));
  view.columns = 160;
  EXPECT_TRUE(shows_history(view));
  EXPECT_NE(screen_text(model, view).find("GPU 0  NVIDIA H100 80GB HBM3  healthy\n"), std::string::npos);
  const auto panel = [&] {
    std::string text;
    for (const auto& line : render_screen(model, view).lines) {
      const auto whole = cli::line_text(line);
      if (const auto at = whole.find("│ "); at != std::string::npos) text += whole.substr(at + 4) + "\n";
    }
    return text;
  };
  view.selection[TopTab::kGpus] = top_uuid(7);
  EXPECT_NE(panel().find("GPU 7  NVIDIA H100"), std::string::npos) << panel();
  EXPECT_NE(panel().find("PCIe rx 7 GB/s"), std::string::npos) << panel();
  EXPECT_NE(panel().find("ECC corrected 7"), std::string::npos) << panel();
  EXPECT_NE(panel().find("   5000 pt_main_t…   91%  70.0 GiB team-b/train-0\n"), std::string::npos)
      << panel();
  // A Pod's GPU; its processes are not known, nor are those of MIG devices.
  view.tab = TopTab::kPods;
  view.selection[TopTab::kPods] = "team-b/notebook";
  EXPECT_NE(panel().find("GPU 6  NVIDIA H100"), std::string::npos) << panel();
  EXPECT_NE(panel().find(" 6:0 "), std::string::npos) << panel();
  EXPECT_NE(panel().find("  56%  20.0 GiB team-b/notebook\n"), std::string::npos) << panel();
  view.tab = TopTab::kProcesses;
  view.selection[TopTab::kProcesses] = "5000@7";
  EXPECT_NE(panel().find("GPU 7  NVIDIA H100"), std::string::npos) << panel();
  // What is gone is not selected.
  view.selection[TopTab::kProcesses] = "1@1";
  EXPECT_NE(panel().find("GPU 0  NVIDIA H100"), std::string::npos) << panel();
  view.rows = 12;
  EXPECT_NE(panel().find(" more\n"), std::string::npos) << panel();
}

TEST(TopView, ShowsProblems) {
  auto model = make_top_model();
  auto view = make_view(120);
  EXPECT_EQ(screen_text(model, view).find("old"), std::string::npos);
  view.now = kTopAt + 61'500;
  EXPECT_NE(screen_text(model, view).find("\nthe last sample is 61 s old\n"), std::string::npos);
  view.disconnected_since = kTopAt;
  view.disconnect_reason = "/run/x.sock: nobody there";
  EXPECT_NE(screen_text(model, view).find("\nagent unreachable since 08:53:20Z: /run/x.sock: nobody there\n"),
            std::string::npos);
  TopModel fresh;
  EXPECT_EQ(screen_text(fresh, make_view(80)).substr(0, 11), "gpulet top\n");
  ASSERT_TRUE(fresh.apply_node_document(R"({"gpus":[],"problems":["driver: not there"]})"));
  const auto text = screen_text(fresh, make_view(80));
  EXPECT_NE(text.find("no sample yet\ndriver: not there\n"), std::string::npos) << text;
}

TEST(TopView, ShowsClaimsThatWaitAndGpusThatMove) {
  auto document = nlohmann::json::parse(node_document_text());
  const std::string uuid = document["gpus"][3]["uuid"];
  document["claims"] = {
      {"offered", 7}, {"waiting", nlohmann::json::array()}, {"moves", nlohmann::json::array()}};
  document["claims"]["waiting"].push_back({{"namespace", "team"},
                                           {"name", "a"},
                                           {"uid", "u"},
                                           {"since", 1},
                                           {"reason", "the MPS control daemon starts"}});
  document["claims"]["moves"].push_back(
      {{"gpu", uuid}, {"reason", "is offered by claims when Pod team/b ends"}});
  document["claims"]["moves"].push_back({{"gpu", "GPU-gone"}, {"reason", "is offered later"}});
  TopModel model;
  ASSERT_TRUE(model.apply_node_document(document.dump()));
  const auto text = screen_text(model, make_view(120));
  EXPECT_NE(text.find("\nclaim team/a is not prepared: the MPS control daemon starts\n"
                      "GPU 3 is offered by claims when Pod team/b ends\nGPU GPU-gone is offered later\n"),
            std::string::npos)
      << text;
  const auto json = nlohmann::json::parse(render_top_json(model, make_view(120)));
  EXPECT_EQ(json["claims"][1], "GPU 3 is offered by claims when Pod team/b ends");
}

TEST(TopView, ShowsMemoryLimitsOfALowerGrade) {
  auto document = nlohmann::json::parse(node_document_text());
  const auto container = [](const char* pod, const char* grade) {
    return nlohmann::json{
        {"namespace", "team"}, {"pod", pod}, {"container", "main"}, {"grade", grade}, {"reasons", {"why"}}};
  };
  document["memory_limit"] = {{"grade", "audited"},
                              {"reasons", {"no driver"}},
                              {"containers", {container("a", "audited"), container("b", "none")}}};
  TopModel model;
  ASSERT_TRUE(model.apply_node_document(document.dump()));
  const std::string lower = "memory limit of container main of Pod team/b: none (why)";
  const auto text = screen_text(model, make_view(120));
  EXPECT_NE(text.find("\n" + lower + "\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("team/a: audited"), std::string::npos) << text;
  const auto json = nlohmann::json::parse(render_top_json(model, make_view(120)));
  EXPECT_EQ(json["limits"], (nlohmann::json{"memory limits of shared GPUs: audited", lower}));
}

TEST(TopView, ShowsWhyAGpuIsExcluded) {
  const std::string why = "is excluded by the rule at x.yaml:3:5";
  auto document = nlohmann::json::parse(node_document_text());
  for (const auto gpu : {1, 2}) document["gpus"][gpu]["excluded"] = why;
  TopModel model;
  ASSERT_TRUE(model.apply_node_document(document.dump()));
  auto view = make_view(120);
  const auto text = screen_text(model, view);
  EXPECT_NE(text.find(why), std::string::npos) << text;
  EXPECT_EQ(text.find(why), text.rfind(why)) << "GPU 2 has a fault: " << text;
  const auto json = nlohmann::json::parse(render_top_json(model, view));
  EXPECT_EQ(json["gpus"][1]["excluded"], why);
  EXPECT_EQ(json["gpus"][2]["excluded"], why);
  EXPECT_FALSE(json["gpus"][0].contains("excluded"));
  view.queries[TopTab::kGpus] = default_query(TopTab::kGpus);
  view.queries[TopTab::kGpus].filter = "excluded";
  EXPECT_EQ(nlohmann::json::parse(render_top_json(model, view))["gpus"].size(), 2u);
}

TEST(TopView, ColoursStatesAndNearlyFullMemory) {
  const auto model = make_top_model();
  const auto screen = render_screen(model, make_view(120));
  const auto tone_of = [&](const std::string& text) {
    for (const auto& line : screen.lines) {
      for (const auto& span : line) {
        if (span.text.find(text) != std::string::npos) return span.tone;
      }
    }
    ADD_FAILURE() << text;
    return TopTone::kPlain;
  };
  EXPECT_EQ(tone_of("healthy"), TopTone::kGood);
  EXPECT_EQ(tone_of("lost"), TopTone::kBad);
  EXPECT_EQ(tone_of("fallen off"), TopTone::kBad);
  EXPECT_EQ(tone_of("89C"), TopTone::kBad);
  EXPECT_EQ(tone_of("82C"), TopTone::kWarn);
  EXPECT_EQ(tone_of("75C"), TopTone::kPlain);
  EXPECT_EQ(tone_of("GPU▲"), TopTone::kSortedHeader);
  EXPECT_EQ(tone_of("POWER"), TopTone::kHeader);
  EXPECT_EQ(tone_of("▋"), TopTone::kBarLow);       // 13 %
  EXPECT_EQ(tone_of("████▌"), TopTone::kBarHigh);  // 91 %
  EXPECT_EQ(tone_of("░"), TopTone::kDim);
  const auto wide = render_screen(model, make_view(200));
  for (const auto& line : wide.lines) {
    for (const auto& span : line) EXPECT_FALSE(span.selected) << span.text;
  }
}

TEST(TopView, MarksTheSelectedRow) {
  const auto model = make_top_model();
  auto view = make_view(120);
  view.selection[TopTab::kGpus] = top_uuid(3);
  for (const auto& line : render_screen(model, view).lines) {
    const bool third = cli::line_text(line).starts_with("3 ");
    for (const auto& span : line) EXPECT_EQ(span.selected, third) << span.text;
  }
}

}  // namespace
}  // namespace gpulet::cli
