#include "agent/mig_hooks.h"

namespace gpulet::agent {

ConfiguredHooks::ConfiguredHooks(Loop& loop, std::function<config::MigSettings()> settings, Duration limit)
    : loop_(loop), settings_(std::move(settings)), runner_(loop, limit) {}

bool ConfiguredHooks::any() const { return !settings_().hooks_file.empty(); }

void ConfiguredHooks::run(mig::HookPoint point, const About& about, std::function<void(Status)> done) {
  const auto settings = settings_();
  const bool first = point == mig::HookPoint::kApplyStart;
  if (first) file_.reset();
  // apply-exit may be tried long after its round: by then the file may have been put right.
  if (first || (file_ && point == mig::HookPoint::kApplyExit)) {
    auto file = mig::load_hooks_file(settings.hooks_file);
    if (file) {
      file_ = std::move(*file);
    } else if (first) {
      return loop_.post([done = std::move(done), error = file.error()] { done(fail(error)); });
    }
  }
  if (!file_) return loop_.post([done = std::move(done)] { done({}); });
  std::string gpus;
  for (const auto& gpu : about.gpus) gpus += (gpus.empty() ? "" : ",") + gpu.str();
  runner_.run(*file_, point,
              {{"MIG_PARTED_CONFIG_FILE", settings.config_file},
               {"MIG_PARTED_HOOKS_FILE", settings.hooks_file},
               {"MIG_PARTED_SELECTED_CONFIG", about.layout},
               {"MIG_PARTED_MODE_CHANGE_ONLY", "false"},
               {"MIG_PARTED_SKIP_RESET", "true"},
               {"GPULET_HOOK", std::string(mig::name(point))},
               {"GPULET_GPU", gpus}},
              std::move(done));
}

}  // namespace gpulet::agent
