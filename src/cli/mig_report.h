// What the commands of `gpulet mig` print, for people and as JSON with keys and order that stay. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "mig/apply.h"
#include "mig/layout_file.h"
#include "mig/plan.h"
#include "mig/state.h"

namespace gpulet::cli {

// One GPU and how far the command came with it.
struct MigGpu {
  unsigned index = 0;
  std::optional<Error> unreadable;
  mig::State state;                     // as it is now; after apply as it has become
  std::optional<mig::LayoutAt> wanted;  // nullopt: the config says nothing of it, so it stays as it is
  std::optional<mig::Plan> plan;        // from how it was
  std::optional<mig::Report> report;    // of what was carried out
  std::optional<Error> failed;          // apply could not begin, or gave up
};

// "unreadable", "not-in-config", "nothing-to-do", "to-do", "blocked"; after apply "failed" and
// mig::name(Outcome) too.
std::string_view outcome(const MigGpu& gpu);

struct MigView {
  std::string config;  // its name
  std::string file;    // empty: the layouts are the hardware's
  bool mode_only = false;
  bool pods_known = false;
  std::vector<MigGpu> gpus;  // by index
};

// Lines, each with its newline.
std::string mig_plan_text(const MigView& view);
// Then, after an empty line, what stands on each GPU.
std::string mig_apply_text(const MigView& view);
// Only the GPUs that differ; one line when none does.
std::string mig_assert_text(const MigView& view);

// Of any of the three.
std::string mig_json(const MigView& view);

// mig-parted's file as JSON.
std::string mig_export_json(const mig::LayoutFile& file);

}  // namespace gpulet::cli
