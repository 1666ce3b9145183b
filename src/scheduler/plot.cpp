#include "scheduler/plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <tuple>

namespace gpulet::scheduler {
namespace {

// Told apart by those who see few colours too (Okabe and Ito).
constexpr std::array<const char*, 8> kColours = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                                 "#E69F00", "#56B4E9", "#000000", "#8A6D00"};
constexpr double kWidth = 1120, kTop = 56, kBottom = 400;
// The enlarged panel begins at this demand.
constexpr double kEndFrom = 0.8;

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

std::string escaped(std::string_view text) {
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

std::string text_at(double x, double y, std::string_view anchor, std::string_view what,
                    std::string_view more = "") {
  return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" text-anchor=\"" + std::string(anchor) + "\"" +
         std::string(more) + ">" + escaped(what) + "</text>\n";
}

std::string line(double x1, double y1, double x2, double y2, std::string_view style) {
  return "<line x1=\"" + number(x1) + "\" y1=\"" + number(y1) + "\" x2=\"" + number(x2) + "\" y2=\"" +
         number(y2) + "\" " + std::string(style) + "/>\n";
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

std::string grid(const Panel& panel) {
  std::string out;
  constexpr double kRounding = 1e-9;
  for (double share = panel.share_from; share <= panel.share_to + kRounding; share += panel.share_step) {
    out += line(panel.left, panel.y(share), panel.right, panel.y(share), "stroke=\"#ddd\"");
    out += text_at(panel.left - 6, panel.y(share) + 4, "end", number(100 * share) + " %");
  }
  for (double demand = panel.demand_from; demand <= panel.demand_to + kRounding;
       demand += panel.demand_step) {
    out += line(panel.x(demand), kBottom, panel.x(demand), kBottom + 4, "stroke=\"#333\"");
    out += text_at(panel.x(demand), kBottom + 18, "middle", std::to_string(std::lround(100 * demand)) + " %");
  }
  out += line(panel.left, kBottom, panel.right, kBottom, "stroke=\"#333\"");
  out += text_at((panel.left + panel.right) / 2, kBottom + 38, "middle", "GPUs asked for, of the cluster's");
  return out;
}

// What could be had if everything fitted.
std::string ideal(const Panel& panel) {
  constexpr const char* kStyle = "stroke=\"#999\" stroke-dasharray=\"4 4\"";
  const double corner = std::clamp(1.0, panel.demand_from, panel.demand_to);
  std::string out;
  const double from = std::max(panel.demand_from, panel.share_from);
  if (from < corner) {
    out += line(panel.x(from), panel.y(from), panel.x(corner), panel.y(std::min(corner, panel.share_to)),
                kStyle);
  }
  if (panel.demand_to > 1)
    out += line(panel.x(corner), panel.y(1), panel.x(panel.demand_to), panel.y(1), kStyle);
  return out;
}

std::string curve(const Panel& panel, const Summary& summary, const char* colour, std::string_view clip) {
  std::string mean;
  std::string above;
  std::string below;
  for (const Summary::Step& step : summary.curve) {
    if (step.demand < panel.demand_from || step.demand > panel.demand_to) continue;
    const std::string x = number(panel.x(step.demand)) + ",";
    mean += x + number(panel.y(step.allocated.mean)) + " ";
    above += x + number(panel.y(step.allocated.greatest)) + " ";
    below.insert(0, x + number(panel.y(step.allocated.least)) + " ");
  }
  std::string out = "<g clip-path=\"url(#" + std::string(clip) + ")\">\n";
  if (summary.runs > 1) {
    out += "<polygon points=\"" + above + below + "\" fill=\"" + colour + "\" fill-opacity=\"0.15\"/>\n";
  }
  out += "<polyline points=\"" + mean + "\" fill=\"none\" stroke=\"" + colour +
         "\" stroke-width=\"2\"/>\n</g>\n";
  return out;
}

// A summary with its colour: by its place in what the caller gave, so that a policy keeps it from plot to
// plot.
struct Line {
  const Summary* summary = nullptr;
  const char* colour = nullptr;
};

std::string legend(const std::vector<Line>& order, double x) {
  std::string out = text_at(x, kTop + 4, "start", "allocated at the end", " font-weight=\"bold\"");
  for (std::size_t at = 0; at < order.size(); ++at) {
    const double y = kTop + 28 + 22 * static_cast<double>(at);
    const Summary& summary = *order[at].summary;
    out +=
        line(x, y - 4, x + 22, y - 4, std::string("stroke-width=\"3\" stroke=\"") + order[at].colour + "\"");
    out += text_at(x + 30, y, "start", summary.policy + "  " + number(100 * summary.allocated.mean) + " %");
  }
  return out;
}

std::string clip_path(std::string_view name, const Panel& panel) {
  return "<clipPath id=\"" + std::string(name) + "\"><rect x=\"" + number(panel.left) + "\" y=\"" +
         number(kTop) + "\" width=\"" + number(panel.right - panel.left) + "\" height=\"" +
         number(kBottom - kTop) + "\"/></clipPath>\n";
}

// From just below the least that any policy has there, in steps of a twentieth.
double end_share(const std::vector<Summary>& summaries, double from) {
  double least = 1;
  for (const Summary& summary : summaries) {
    for (const Summary::Step& step : summary.curve) {
      if (step.demand >= from) least = std::min(least, step.allocated.least);
    }
  }
  return std::max(0.0, std::floor(least * 20) / 20);
}

}  // namespace

std::string allocation_plot(std::string_view title, const std::vector<Summary>& summaries) {
  std::vector<Line> order;
  double most_demand = 0;
  for (const Summary& summary : summaries) {
    order.push_back({&summary, kColours[order.size() % kColours.size()]});
    most_demand = std::max(most_demand, summary.curve.back().demand);
  }
  std::ranges::stable_sort(order, std::greater{},
                           [](const Line& one) { return one.summary->allocated.mean; });

  const double to = std::max(0.1, std::ceil(most_demand * 10 - 1e-6) / 10);
  const Panel whole{70, 430, 0, to, 0, 1, to > 2 ? 1 : 0.2, 0.2};
  const double from = to > kEndFrom + 0.05 ? kEndFrom : 0;
  const double share_from = std::min(0.95, end_share(summaries, from));
  const Panel end{510, 890, from, to, share_from, 1, to > 2 ? 1 : 0.1, share_from < 0.7 ? 0.1 : 0.05};

  std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + number(kWidth) + " " +
                    number(kBottom + 56) + "\" font-family=\"sans-serif\" font-size=\"12\" role=\"img\">\n";
  out += "<title>" + escaped(title) + "</title>\n";
  out += "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  out += text_at(whole.left, 28, "start", title, " font-size=\"16\" font-weight=\"bold\"");
  for (const auto& [panel, clip, caption] :
       {std::tuple{whole, "whole", "GPUs allocated"}, std::tuple{end, "end", "the end of it, enlarged"}}) {
    out +=
        clip_path(clip, panel) + text_at(panel.left, kTop - 8, "start", caption) + grid(panel) + ideal(panel);
    for (std::size_t at = order.size(); at > 0; --at) {  // the best on top
      out += curve(panel, *order[at - 1].summary, order[at - 1].colour, clip);
    }
  }
  out += legend(order, 920);
  return out + "</svg>\n";
}

}  // namespace gpulet::scheduler
