// `kubectl gpulet list`, `health` and `top`: read or watch the cluster, and print its GPUs.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <utility>

#include "base/dns_name.h"
#include "cli/kubectl/kubectl.h"
#include "k8s/blocking_reader.h"
#include "k8s/objects.h"
#include "k8s/watcher.h"
#include "scheduler/model/gpu_node.h"

namespace gpulet::cli::kubectl {
namespace {

// Changes within it are printed together: one fault changes many nodes.
constexpr Duration kWatchSettle = std::chrono::milliseconds(250);

std::string program(GpuView view) {
  return std::string("kubectl gpulet ") + (view == GpuView::kList     ? "list"
                                           : view == GpuView::kHealth ? "health"
                                                                      : "top");
}

// Of one node only where only one is asked for.
std::string field_query(const ClusterGpuOptions& options) {
  return options.nodes.size() == 1
             ? "fieldSelector=" + k8s::encode_query_value("metadata.name=" + options.nodes.front())
             : std::string();
}

Status check_names(const ClusterGpuOptions& options) {
  for (const auto& node : options.nodes) {
    if (!is_dns_subdomain(node))
      return fail(Code::kInvalidArgument, "'" + node + "' is not the name of a node");
  }
  if (!options.name_space.empty() && !is_dns_label(options.name_space))
    return fail(Code::kInvalidArgument, "'" + options.name_space + "' is not the name of a namespace");
  return {};
}

Result<GpuSelection> resolve_selection(const ClusterGpuOptions& options, k8s::BlockingReader& reader) {
  GpuSelection selection{.nodes = {options.nodes.begin(), options.nodes.end()},
                         .labelled_nodes = std::nullopt,
                         .name_space = options.all_namespaces ? "" : options.name_space,
                         .attention_only = options.view == GpuView::kHealth};
  if (options.selector.empty()) return selection;
  std::set<std::string> names;
  GPULET_TRY(reader.list_objects(
      "/api/v1/nodes?labelSelector=" + k8s::encode_query_value(options.selector), "list on nodes",
      [&](std::string_view node) { names.insert(k8s::metadata_string(node, "name")); }, k8s::kMetadataOnly));
  selection.labelled_nodes = std::move(names);
  return selection;
}

Status read_gpus(const ClusterGpuOptions& options, k8s::BlockingReader& reader, GpuCollection& collection) {
  const auto query = field_query(options);
  GPULET_TRY_ASSIGN(
      const bool exists,
      reader.list_objects(std::string(scheduler::kGpuNodesPath) + (query.empty() ? "" : "?" + query),
                          "list on gpunodes.gpulet.io",
                          [&](std::string_view object) { collection.apply_object(object); }));
  if (!exists)
    return fail(
        Code::kFailedPrecondition,
        "this cluster has no kind GpuNode, by which nodes publish their GPUs: install gpulet with its "
        "CRD (docs/scheduling.md)");
  return {};
}

struct PrintedGpus {
  std::vector<ClusterGpu> all, selected;
};

PrintedGpus printed_gpus(const ClusterGpuOptions& options, const GpuCollection& collection,
                         const GpuSelection& selection) {
  PrintedGpus printed{.all = collection.gpus(), .selected = {}};
  printed.selected = select_gpus(printed.all, selection, options.order);
  return printed;
}

// A document or names; nullopt for a table.
std::optional<std::string> document_of(const ClusterGpuOptions& options,
                                       const std::vector<ClusterGpu>& gpus) {
  if (options.output.format == "name") return node_names_text(gpus);
  if (!options.output.is_document()) return std::nullopt;
  return render_output(
      options.output, [&] { return gpu_document(gpus); }, [](const TableStyle&) { return ""; });
}

std::string table_of(const ClusterGpuOptions& options, const PrintedGpus& printed) {
  const TableStyle style{.wide = options.output.format == "wide", .headers = options.output.headers};
  const auto table = gpu_table(printed.selected, options.view, style);
  if (options.view != GpuView::kHealth || !style.headers || printed.all.empty()) return table;
  // Counts all selected GPUs, healthy ones included.
  return table + (table.empty() ? "" : "\n") + service_summary(printed.all);
}

std::string missing_node(const std::string& node) {
  return "node " + node + " publishes no GPUs: there is no GpuNode " + node;
}

void add_error(CommandOutput& output, const ClusterGpuOptions& options, const std::string& message) {
  output.err += program(options.view) + ": " + k8s::sanitize_line(message) + "\n";
  output.exit_code = kFailed;
}

// Exit code and standard error for what is printed.
void judge_output(CommandOutput& output, const ClusterGpuOptions& options, const GpuCollection& collection,
                  const PrintedGpus& printed) {
  const bool withdrawn =
      std::ranges::any_of(printed.selected, [](const auto& gpu) { return !gpu.in_service; });
  if (options.view == GpuView::kHealth && withdrawn) output.exit_code = kNeedsAction;
  const auto known = collection.node_names();
  for (const auto& node : options.nodes) {
    if (std::ranges::find(known, node) == known.end()) add_error(output, options, missing_node(node));
  }
  for (const auto& [name, problem] : collection.problems()) add_error(output, options, problem);
  if (output.out.empty() && output.err.empty() && !options.output.is_document())
    output.err += printed.all.empty() ? "No GPUs found\n" : "No GPU needs attention\n";
}

// Without `attention_only`: what a summary counts.
GpuSelection without_attention(GpuSelection selection) {
  selection.attention_only = false;
  return selection;
}

CommandOutput make_output(const ClusterGpuOptions& options, const GpuCollection& collection,
                          const GpuSelection& selection) {
  auto printed = printed_gpus(options, collection, selection);
  printed.all = select_gpus(printed.all, without_attention(selection));
  CommandOutput output;
  const auto document = document_of(options, printed.selected);
  output.out = document ? *document : table_of(options, printed);
  judge_output(output, options, collection, printed);
  return output;
}

CommandOutput failed_output(const ClusterGpuOptions& options, const Error& error) {
  const int code = error.code() == Code::kInvalidArgument ? kWrongCommand : kFailed;
  return error_output(program(options.view), k8s::sanitize_line(error.full_message()), code);
}

}  // namespace

ClusterGpuWatcher::ClusterGpuWatcher(Loop& loop, const ClusterGpuOptions& options,
                                     const k8s::ClientConfig& access, GpuSelection selection,
                                     std::function<void(const std::string&)> print)
    : loop_(loop),
      options_(options),
      selection_(std::move(selection)),
      print_(std::move(print)),
      table_(options.view, {.wide = options.output.format == "wide", .headers = options.output.headers}) {
  k8s::CollectionEvents events;
  events.on_list_begin = [this] {
    const auto names = collection_.node_names();
    unlisted_ = {names.begin(), names.end()};
    listing_ = true;
  };
  events.on_object = [this](std::string_view object) {
    collection_.apply_object(object);
    unlisted_.erase(k8s::metadata_string(object, "name"));
    print_soon();
  };
  events.on_deleted = [this](std::string_view object) {
    collection_.remove_node(k8s::metadata_string(object, "name"));
    print_soon();
  };
  events.on_list_end = [this] {
    for (const auto& name : std::exchange(unlisted_, {})) collection_.remove_node(name);
    listing_ = false;
    print_soon();
  };
  watch_ = k8s::CollectionWatcher::watch_collection(loop_, access,
                                                    {.path = scheduler::kGpuNodesPath,
                                                     .query = field_query(options),
                                                     .permission = "list and watch on gpunodes"},
                                                    {}, std::move(events));
}

ClusterGpuWatcher::~ClusterGpuWatcher() = default;

void ClusterGpuWatcher::print_soon() {
  if (listing_ || std::exchange(pending_, true)) return;
  timer_ = loop_.after(kWatchSettle, [this] {
    pending_ = false;
    print_changes();
  });
}

// On standard error, each once.
void ClusterGpuWatcher::report_problems() {
  for (const auto& [name, problem] : collection_.problems()) {
    if (std::exchange(reported_[name], problem) == problem) continue;
    std::cerr << program(options_.view) << ": " << k8s::sanitize_line(problem) << std::endl;
  }
}

void ClusterGpuWatcher::print_changes() {
  report_problems();
  const auto printed = printed_gpus(options_, collection_, selection_);
  auto text = document_of(options_, printed.selected);
  if (!text) {
    text = table_.update_rows(printed.all, printed.selected);
    if (text->empty()) return;
  } else if (*text == last_document_) {
    return;
  } else {
    last_document_ = *text;
    if (options_.output.format == "yaml" && !std::exchange(first_, false)) text = "---\n" + *text;
  }
  print_(*text);
}

CommandOutput cluster_gpus_output(const ClusterGpuOptions& options, const k8s::ClientConfig& access) {
  if (const auto named = check_names(options); !named) return failed_output(options, named.error());
  k8s::BlockingReader reader(access, kRequestLimit);
  const auto selection = resolve_selection(options, reader);
  if (!selection) return failed_output(options, selection.error());
  GpuCollection collection;
  const auto read = read_gpus(options, reader, collection);
  if (!read) return failed_output(options, read.error());
  return make_output(options, collection, *selection);
}

namespace {

// What cannot be read when a watch begins is an error; what cannot be read later is retried and logged.
Result<GpuSelection> begin_watch(const ClusterGpuOptions& options, const k8s::ClientConfig& access) {
  GPULET_TRY(check_names(options));
  k8s::BlockingReader reader(access, kRequestLimit);
  GPULET_TRY_ASSIGN(auto selection, resolve_selection(options, reader));
  GpuCollection collection;
  GPULET_TRY(read_gpus(options, reader, collection));
  const auto known = collection.node_names();
  for (const auto& node : options.nodes) {
    if (std::ranges::find(known, node) == known.end() && !collection.problems().contains(node))
      std::cerr << program(options.view) << ": " << missing_node(node) << std::endl;
  }
  return selection;
}

}  // namespace

int run_cluster_gpus(const ClusterGpuOptions& options, const k8s::ClientConfig& access) {
  if (!options.watch) return print_output(cluster_gpus_output(options, access));
  const auto selection = begin_watch(options, access);
  if (!selection) return print_output(failed_output(options, selection.error()));
  EpollLoop loop;
  const ClusterGpuWatcher watcher(loop, options, access, *selection, [&](const std::string& text) {
    std::cout << text << std::flush;
    if (!std::cout) loop.stop_loop();
  });
  loop.run_loop();
  return kFailed;
}

}  // namespace gpulet::cli::kubectl
