#include "sim/schedule/trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <numeric>
#include <tuple>

namespace gpulet::scheduler {
namespace {

constexpr double kCurveStep = 0.01;

// Tasks in random order, each once before any is repeated.
class TaskSampler {
 public:
  TaskSampler(std::size_t count, std::mt19937_64& random) : order_(count), random_(random) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
  }
  std::size_t next_task() {
    // Not std::shuffle, whose result for a seed differs between libraries.
    if (at_ == order_.size()) at_ = 0;
    std::swap(order_[at_], order_[at_ + random_() % (order_.size() - at_)]);
    return order_[at_++];
  }

 private:
  std::vector<std::size_t> order_;
  std::size_t at_ = 0;
  std::mt19937_64& random_;
};

}  // namespace

Result<TraceRunResult> replay_trace(const ClusterTrace& trace, const TraceRunOptions& options) {
  PolicyContext context;
  context.workload = Workload::from_tasks(trace.tasks);
  GPULET_TRY_ASSIGN(const std::shared_ptr<Policy> policy, make_simulator_policy(options.policy, context));
  if (!(options.target > 0 && options.target <= kMaxTarget)) {
    return fail(Code::kInvalidArgument, "the target is " + std::to_string(options.target) +
                                            ", expected more than 0 and at most " +
                                            std::to_string(kMaxTarget) + " times the cluster's GPUs");
  }
  if (std::ranges::all_of(trace.tasks, [](const Task& task) { return task.gpus == 0; })) {
    return fail(Code::kInvalidArgument, "no task of the trace requests a GPU");
  }
  NodeTable table;
  for (const NodeState& node : trace.nodes) table.add_node(node);
  std::mt19937_64 random(options.seed);
  TaskSampler draw(trace.tasks.size(), random);
  const auto capacity = static_cast<double>(trace.total_gpu_milli());
  TraceRunResult result;
  result.policy = policy->policy_name();
  result.seed = options.seed;
  std::int64_t demand = 0;
  std::int64_t allocated = 0;
  const auto share = [&](std::int64_t milli) { return static_cast<double>(milli) / capacity; };
  result.curve.push_back({0, 0});
  double next_point = kCurveStep;
  while (share(demand) < options.target) {
    const std::size_t drawn = draw.next_task();
    const Task& task = trace.tasks[drawn];
    demand += task.total_milli();
    if (const auto best = table.best_node(table.find_query(policy, task), random)) {
      NodeState state = table.state_of(best->node);
      state.allocate_task(task, best->choice.gpus);
      table.update_node(best->node, state);
      allocated += task.total_milli();
      result.placed.push_back({static_cast<std::uint32_t>(drawn), best->node, best->choice.gpus});
    } else {
      ++result.dropped;
    }
    if (share(demand) <= 1) result.allocated_at_demand = share(allocated);
    if (share(demand) >= next_point || share(demand) >= options.target) {
      next_point = (std::floor(share(demand) / kCurveStep) + 1) * kCurveStep;
      result.curve.push_back({share(demand), share(allocated)});
      if (options.progress) options.progress(std::min(1.0, share(demand) / options.target));
    }
  }
  result.allocated = share(allocated);
  return result;
}

namespace {

template <class Value>
Spread spread_of(const std::vector<TraceRunResult>& runs, const Value& value) {
  Spread found{0, value(runs.front()), value(runs.front())};
  for (const TraceRunResult& run : runs) {
    found.mean += value(run) / static_cast<double>(runs.size());
    found.least = std::min(found.least, value(run));
    found.greatest = std::max(found.greatest, value(run));
  }
  return found;
}

// Interpolates between the two points around `demand`.
double interpolate_allocated(const std::vector<CurvePoint>& curve, double demand) {
  const auto next = std::ranges::lower_bound(curve, demand, {}, &CurvePoint::demand);
  if (next == curve.end()) return curve.back().allocated;
  if (next == curve.begin()) return next->allocated;
  const CurvePoint& before = *(next - 1);
  const double part = (demand - before.demand) / (next->demand - before.demand);
  return before.allocated + part * (next->allocated - before.allocated);
}

}  // namespace

PolicySummary summarize_runs(const std::vector<TraceRunResult>& runs) {
  PolicySummary summary;
  summary.policy = runs.front().policy;
  summary.runs = runs.size();
  summary.allocated = spread_of(runs, [](const TraceRunResult& run) { return run.allocated; });
  summary.allocated_at_demand =
      spread_of(runs, [](const TraceRunResult& run) { return run.allocated_at_demand; });
  summary.placed =
      spread_of(runs, [](const TraceRunResult& run) { return static_cast<double>(run.placed.size()); }).mean;
  summary.dropped =
      spread_of(runs, [](const TraceRunResult& run) { return static_cast<double>(run.dropped); }).mean;
  double end = runs.front().curve.back().demand;
  for (const TraceRunResult& run : runs) end = std::min(end, run.curve.back().demand);
  const auto steps = static_cast<std::size_t>(std::floor(end / kCurveStep + 1e-9));
  for (std::size_t step = 0; step <= steps; ++step) {
    const double demand = static_cast<double>(step) * kCurveStep;
    summary.curve.push_back({demand, spread_of(runs, [&](const TraceRunResult& run) {
                               return interpolate_allocated(run.curve, demand);
                             })});
  }
  return summary;
}

namespace {

// Colour-blind safe (Okabe and Ito).
constexpr std::array<const char*, 8> kColours = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                                 "#E69F00", "#56B4E9", "#000000", "#8A6D00"};
constexpr double kWidth = 1120, kTop = 56, kBottom = 400;
// The enlarged panel starts at this demand.
constexpr double kEndFrom = 0.8;

std::string format_number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

std::string escape_xml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string svg_text(double x, double y, std::string_view anchor, std::string_view what,
                     std::string_view more = "") {
  return "<text x=\"" + format_number(x) + "\" y=\"" + format_number(y) + "\" text-anchor=\"" +
         std::string(anchor) + "\"" + std::string(more) + ">" + escape_xml(what) + "</text>\n";
}

std::string svg_line(double x1, double y1, double x2, double y2, std::string_view style) {
  return "<line x1=\"" + format_number(x1) + "\" y1=\"" + format_number(y1) + "\" x2=\"" + format_number(x2) +
         "\" y2=\"" + format_number(y2) + "\" " + std::string(style) + "/>\n";
}

// One frame with its own range of demand and allocation.
struct Panel {
  double left, right;  // in the picture
  double demand_from, demand_to;
  double share_from, share_to;
  double demand_step, share_step;

  double x(double demand) const {
    return left + (demand - demand_from) / (demand_to - demand_from) * (right - left);
  }
  double y(double share) const {
    return kBottom - (share - share_from) / (share_to - share_from) * (kBottom - kTop);
  }
};

std::string draw_grid(const Panel& panel) {
  std::string out;
  constexpr double kRounding = 1e-9;
  for (double share = panel.share_from; share <= panel.share_to + kRounding; share += panel.share_step) {
    out += svg_line(panel.left, panel.y(share), panel.right, panel.y(share), "stroke=\"#ddd\"");
    out += svg_text(panel.left - 6, panel.y(share) + 4, "end", format_number(100 * share) + " %");
  }
  for (double demand = panel.demand_from; demand <= panel.demand_to + kRounding;
       demand += panel.demand_step) {
    out += svg_line(panel.x(demand), kBottom, panel.x(demand), kBottom + 4, "stroke=\"#333\"");
    out +=
        svg_text(panel.x(demand), kBottom + 18, "middle", std::to_string(std::lround(100 * demand)) + " %");
  }
  out += svg_line(panel.left, kBottom, panel.right, kBottom, "stroke=\"#333\"");
  out += svg_text((panel.left + panel.right) / 2, kBottom + 38, "middle",
                  "requested GPUs, as a share of the cluster's");
  return out;
}

// The allocation if everything fitted.
std::string draw_ideal(const Panel& panel) {
  constexpr const char* kStyle = "stroke=\"#999\" stroke-dasharray=\"4 4\"";
  const double corner = std::clamp(1.0, panel.demand_from, panel.demand_to);
  std::string out;
  const double from = std::max(panel.demand_from, panel.share_from);
  if (from < corner) {
    out += svg_line(panel.x(from), panel.y(from), panel.x(corner), panel.y(std::min(corner, panel.share_to)),
                    kStyle);
  }
  if (panel.demand_to > 1)
    out += svg_line(panel.x(corner), panel.y(1), panel.x(panel.demand_to), panel.y(1), kStyle);
  return out;
}

std::string draw_curve(const Panel& panel, const PolicySummary& summary, const char* colour,
                       std::string_view clip) {
  std::string mean;
  std::string above;
  std::string below;
  for (const PolicySummary::Step& step : summary.curve) {
    if (step.demand < panel.demand_from || step.demand > panel.demand_to) continue;
    const std::string x = format_number(panel.x(step.demand)) + ",";
    mean += x + format_number(panel.y(step.allocated.mean)) + " ";
    above += x + format_number(panel.y(step.allocated.greatest)) + " ";
    below.insert(0, x + format_number(panel.y(step.allocated.least)) + " ");
  }
  std::string out = "<g clip-path=\"url(#" + std::string(clip) + ")\">\n";
  if (summary.runs > 1) {
    out += "<polygon points=\"" + above + below + "\" fill=\"" + colour + "\" fill-opacity=\"0.15\"/>\n";
  }
  out += "<polyline points=\"" + mean + "\" fill=\"none\" stroke=\"" + colour +
         "\" stroke-width=\"2\"/>\n</g>\n";
  return out;
}

// A summary with its colour, by its position in the input, so that a policy keeps its colour from plot to
// plot.
struct LegendEntry {
  const PolicySummary* summary = nullptr;
  const char* colour = nullptr;
};

std::string draw_legend(const std::vector<LegendEntry>& order, double x) {
  std::string out = svg_text(x, kTop + 4, "start", "allocated at the end", " font-weight=\"bold\"");
  for (std::size_t at = 0; at < order.size(); ++at) {
    const double y = kTop + 28 + 22 * static_cast<double>(at);
    const PolicySummary& summary = *order[at].summary;
    out += svg_line(x, y - 4, x + 22, y - 4,
                    std::string("stroke-width=\"3\" stroke=\"") + order[at].colour + "\"");
    out += svg_text(x + 30, y, "start",
                    summary.policy + "  " + format_number(100 * summary.allocated.mean) + " %");
  }
  return out;
}

std::string svg_clip_path(std::string_view name, const Panel& panel) {
  return "<clipPath id=\"" + std::string(name) + "\"><rect x=\"" + format_number(panel.left) + "\" y=\"" +
         format_number(kTop) + "\" width=\"" + format_number(panel.right - panel.left) + "\" height=\"" +
         format_number(kBottom - kTop) + "\"/></clipPath>\n";
}

// Just below the lowest value of any policy there, in steps of a twentieth.
double lowest_share(const std::vector<PolicySummary>& summaries, double from) {
  double least = 1;
  for (const PolicySummary& summary : summaries) {
    for (const PolicySummary::Step& step : summary.curve) {
      if (step.demand >= from) least = std::min(least, step.allocated.least);
    }
  }
  return std::max(0.0, std::floor(least * 20) / 20);
}

}  // namespace

std::string draw_allocation_plot(std::string_view title, const std::vector<PolicySummary>& summaries) {
  std::vector<LegendEntry> order;
  double most_demand = 0;
  for (const PolicySummary& summary : summaries) {
    order.push_back({&summary, kColours[order.size() % kColours.size()]});
    most_demand = std::max(most_demand, summary.curve.back().demand);
  }
  std::ranges::stable_sort(order, std::greater{},
                           [](const LegendEntry& one) { return one.summary->allocated.mean; });

  const double to = std::max(0.1, std::ceil(most_demand * 10 - 1e-6) / 10);
  const Panel whole{70, 430, 0, to, 0, 1, to > 2 ? 1 : 0.2, 0.2};
  const double from = to > kEndFrom + 0.05 ? kEndFrom : 0;
  const double share_from = std::min(0.95, lowest_share(summaries, from));
  const Panel end{510, 890, from, to, share_from, 1, to > 2 ? 1 : 0.1, share_from < 0.7 ? 0.1 : 0.05};

  std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + format_number(kWidth) + " " +
                    format_number(kBottom + 56) +
                    "\" font-family=\"sans-serif\" font-size=\"12\" role=\"img\">\n";
  out += "<title>" + escape_xml(title) + "</title>\n";
  out += "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  out += svg_text(whole.left, 28, "start", title, " font-size=\"16\" font-weight=\"bold\"");
  for (const auto& [panel, clip, caption] :
       {std::tuple{whole, "whole", "GPUs allocated"}, std::tuple{end, "end", "the end, enlarged"}}) {
    out += svg_clip_path(clip, panel) + svg_text(panel.left, kTop - 8, "start", caption) + draw_grid(panel) +
           draw_ideal(panel);
    for (std::size_t at = order.size(); at > 0; --at) {  // the best on top
      out += draw_curve(panel, *order[at - 1].summary, order[at - 1].colour, clip);
    }
  }
  out += draw_legend(order, 920);
  return out + "</svg>\n";
}

}  // namespace gpulet::scheduler
