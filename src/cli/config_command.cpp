#include "cli/config_command.h"

#include <iostream>

#include "config/print.h"

namespace gpulet::cli {
namespace {

// Whether it can be used; says on standard error what is against it.
bool report(const config::Checked& checked) {
  for (const auto& error : checked.errors) std::cerr << error.text() << "\n";
  for (const auto& warning : checked.loaded.warnings) std::cerr << "warning: " << warning << "\n";
  return checked.errors.empty();
}

}  // namespace

int config_check(const ConfigCheckOptions& options) {
  config::Sources sources;
  sources.drop_in = options.drop_in;
  // Named as by the flag, so that a file that cannot be read says so in the same words.
  sources.flags["config-file"] = {options.file};
  if (const auto read = config::read_config_file(sources); !read) {
    std::cerr << read.error().text() << "\n";
    return 1;
  }
  if (!report(config::check(sources))) return 1;
  std::cout << options.file << ": ok\n";
  return 0;
}

int config_print(const ConfigPrintOptions& options) {
  if (options.output != "yaml" && options.output != "json") {
    std::cerr << "config print -o " << options.output << ": yaml or json would do\n";
    return 2;
  }
  config::Sources sources = options.sources;
  if (const auto read = config::read_config_file(sources); !read) {
    std::cerr << read.error().text() << "\n";
    return 1;
  }
  const auto checked = config::check(sources);
  if (!report(checked)) return 1;
  std::cout << (options.output == "json" ? config::print_json(checked.loaded)
                                         : config::print_yaml(checked.loaded));
  return 0;
}

}  // namespace gpulet::cli
