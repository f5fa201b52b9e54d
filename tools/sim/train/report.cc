#include "tools/sim/train/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/sim/print.h"

namespace canarynet::sim {
namespace {

constexpr int kCurveLines = 20;  // of the table

std::string slow_of(const TrainOptions& o) {
  std::string text;
  for (const Slowness& slow : o.slow) {
    text += text.empty() ? ", slow: " : ", ";
    text += slow.added > 0 ? printed("worker %d +%gx", slow.worker, slow.added)
                           : printed("worker %d %gx", slow.worker, slow.factor);
    if (slow.share < 1) text += printed(" in %g %% of its iterations", 100 * slow.share);
  }
  return text;
}

std::string lossy_of(const TrainOptions& o) {
  std::string text;
  for (const LossyNic& lossy : o.lossy) {
    text += text.empty() ? ", lossy: " : ", ";
    text += lossy.host < 0 ? printed("NIC %d of every host %g %%", lossy.nic, 100 * lossy.loss)
                           : printed("NIC %d of host %d %g %%", lossy.nic, lossy.host, 100 * lossy.loss);
  }
  return text;
}

std::string line_of(const CurvePoint& p) {
  return printed("%12.3f %10.1f %12.4g %10.2f %%\n", p.seconds, p.steps, p.bytes / 1e9, 100 * p.accuracy);
}

nlohmann::ordered_json json_of(const CurvePoint& p) {
  return {{"seconds", p.seconds}, {"steps", p.steps}, {"bytes", p.bytes}, {"accuracy", p.accuracy}};
}

}  // namespace

std::string text_of(const TrainOptions& o, const Training& t, const std::string& assumption) {
  std::string out = sync::to_string(o.policy) + printed(": %d workers on %d hosts, ", o.workers(), o.hosts()) +
                    o.topology.name() +
                    printed(" of %g Gbit/s NICs, seed %llu", o.nic_bits_per_second / 1e9,
                            static_cast<unsigned long long>(o.learner.seed)) +
                    slow_of(o) + lossy_of(o) + (o.codec ? ", codec " + to_text(*o.codec) : "") + "\n";
  out += "profile: " + o.profile.source + "\nassumption: " + assumption + "\n";
  out += "  virtual s      steps           GB   accuracy\n";
  const std::size_t every = std::max<std::size_t>(1, (t.curve.size() + kCurveLines - 1) / kCurveLines);
  for (std::size_t i = 0; i < t.curve.size(); ++i) {
    if (i % every == 0 || i + 1 == t.curve.size()) out += line_of(t.curve[i]);
  }
  if (t.target) {
    out += printed("target %.4g %%: %.3f virtual s, %.1f steps, %.4g GB\n", 100 * o.target, t.target->seconds,
                   t.target->steps, t.target->bytes / 1e9);
  } else {
    out += printed("target %.4g %%: not reached\n", 100 * o.target);
  }
  out += printed("final accuracy %.2f %% of all test images after %.3f virtual s, %.1f steps per worker, %.4g GB\n",
                 100 * t.end.accuracy, t.end.seconds, t.end.steps, t.end.bytes / 1e9);
  const auto [fewest, most] = std::minmax_element(t.iterations.begin(), t.iterations.end());
  const auto [idle, busy] = std::minmax_element(t.computing.begin(), t.computing.end());
  out += printed("iterations per worker %lld to %lld; workers computed %.1f to %.1f %% of the time\n",
                 static_cast<long long>(*fewest), static_cast<long long>(*most), 100 * *idle, 100 * *busy);
  out +=
      printed("divergence of parameters %.2g; hash %016llx\n", t.divergence, static_cast<unsigned long long>(t.hash));
  if (t.rounds > 0) {
    out += printed("%lld rounds of colayers with %.2f gradients each; %llu gradients of colayers dropped, %lld pulls\n",
                   static_cast<long long>(t.rounds), t.gradients, static_cast<unsigned long long>(t.dropped),
                   static_cast<long long>(t.pulls));
  }
  return out;
}

std::string json_of(const TrainOptions& o, const Training& t, const std::string& assumption) {
  nlohmann::ordered_json json = {{"policy", sync::to_string(o.policy)},
                                 {"workers", o.workers()},
                                 {"hosts", o.hosts()},
                                 {"seed", o.learner.seed},
                                 {"topology", o.topology.name()},
                                 {"nic_bits_per_second", o.nic_bits_per_second},
                                 {"profile", o.profile.name},
                                 {"profile_source", o.profile.source},
                                 {"iteration_seconds", o.profile.seconds()},
                                 {"codec", o.codec ? to_text(*o.codec) : "dense"},
                                 {"assumption", assumption},
                                 {"target", o.target}};
  const auto reached = [&](double CurvePoint::*field) {
    return t.target ? nlohmann::ordered_json((*t.target).*field) : nlohmann::ordered_json();
  };
  json["seconds_to_target"] = reached(&CurvePoint::seconds);
  json["steps_to_target"] = reached(&CurvePoint::steps);
  json["bytes_to_target"] = reached(&CurvePoint::bytes);
  json["final_accuracy"] = t.end.accuracy;
  json["seconds"] = t.end.seconds;
  json["steps"] = t.end.steps;
  json["bytes"] = t.end.bytes;
  json["exchanges"] = t.exchanges;
  json["divergence"] = t.divergence;
  json["rounds"] = t.rounds;
  json["gradients"] = t.gradients;
  json["dropped"] = t.dropped;
  json["pulls"] = t.pulls;
  json["iterations"] = t.iterations;
  json["computing"] = t.computing;
  json["hash"] = printed("%016llx", static_cast<unsigned long long>(t.hash));
  for (const CurvePoint& p : t.curve) json["curve"].push_back(json_of(p));
  return json.dump(1) + "\n";
}

std::string plot_of(const TrainOptions& o, const Training& t) {
  constexpr double kLeft = 60, kWidth = 700, kTop = 40, kHeight = 300;
  const double span = std::max(t.curve.back().seconds, 1e-9);
  const auto x = [&](double seconds) { return kLeft + kWidth * seconds / span; };
  const auto y = [&](double accuracy) { return kTop + kHeight * (1 - accuracy); };
  std::string out = printed(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" font-family=\"sans-serif\" "
      "font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      kLeft + kWidth + 30, kTop + kHeight + 50);
  out += "<text x=\"10\" y=\"20\" font-size=\"14\">" + sync::to_string(o.policy) +
         printed(", %d workers, ", o.workers()) + o.topology.name() + slow_of(o) + lossy_of(o) + "</text>\n";
  for (int percent = 0; percent <= 100; percent += 20) {
    const double at = y(percent / 100.0);
    out += printed("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", kLeft, at,
                   kLeft + kWidth, at);
    out += printed("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%d %%</text>\n", kLeft - 8, at + 4, percent);
  }
  for (int part = 0; part <= 4; ++part) {
    out += printed("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.4g s</text>\n", x(span * part / 4),
                   kTop + kHeight + 18, span * part / 4);
  }
  out += printed("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#d55e00\" stroke-dasharray=\"4\"/>\n",
                 kLeft, y(o.target), kLeft + kWidth, y(o.target));
  out += "<polyline fill=\"none\" stroke=\"#0072b2\" stroke-width=\"2\" points=\"";
  for (const CurvePoint& p : t.curve) out += printed("%.1f,%.1f ", x(p.seconds), y(p.accuracy));
  return out + "\"/>\n</svg>\n";
}

}  // namespace canarynet::sim
