#include <string>
#include <vector>

#include "base/text.h"
#include "dra/claim_fit.h"

namespace gpulet::dra {

std::string claim_fit_text(const ClaimFit& fit, std::size_t limit) {
  std::string text = "claim " + fit.claim + " requests " + fit.requests + "\n";
  std::vector<std::string> pods;
  for (const auto& pod : fit.pods) pods.push_back(pod.name);
  if (!fit.allocation.empty()) text += "Allocated: " + fit.allocation + "\n";
  if (!pods.empty()) text += "Used by Pods: " + text::join(pods, ", ") + "\n";
  std::vector<std::string> fitting;
  std::size_t rejected = 0;
  for (const auto& node : fit.nodes) {
    if (node.fits)
      fitting.push_back(node.node);
    else
      ++rejected;
  }
  if (!fitting.empty()) text += "Fits on " + text::join_limited(fitting, limit) + "\n";
  if (fit.allocation.empty() && fitting.empty())
    text += fit.nodes.empty() ? "Fits on no node: no ResourceSlice has a device\n" : "Fits on no node.\n";
  if (rejected != 0) text += "Rejected:\n";
  std::size_t shown = 0;
  for (const auto& node : fit.nodes) {
    if (!node.fits && shown++ < limit) text += "  " + node.node + "  " + node.reason + "\n";
  }
  if (rejected > limit) text += "  and " + std::to_string(rejected - limit) + " more\n";
  if (!fit.unjudged.empty()) text += "Taken for met: " + text::join(fit.unjudged, "; ") + "\n";
  return text;
}

}  // namespace gpulet::dra
