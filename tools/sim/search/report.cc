// What a search has found: for people, and as JSON.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/sim/print.h"
#include "tools/sim/search/search.h"

namespace canarynet::sim {
namespace {

constexpr std::size_t kLines = 40;  // of the table

std::string line_of(const Tried& t, bool knee) {
  const RatioCost& c = t.costs.cost;
  return printed("%c %-20s %-16s %9.4g %12.4g %12.4g %8.4f\n", knee ? '*' : ' ', to_text(t.design.codec).c_str(),
                 std::string(name_of(t.design.planner)).c_str(), static_cast<double>(t.design.piece_bytes) / 1024,
                 c.compress_seconds * 1e3, c.sync_seconds * 1e3, t.costs.gain);
}

nlohmann::ordered_json json_of(const Tried& t) {
  return {{"codec", to_text(t.design.codec)},
          {"planner", name_of(t.design.planner)},
          {"piece_bytes", t.design.piece_bytes},
          {"compress_seconds", t.costs.cost.compress_seconds},
          {"exchange_seconds", t.costs.cost.sync_seconds},
          {"gain", t.costs.gain}};
}

std::string speed_of(const SearchStudy& study) {
  return study.run.codec_speed > 0 ? printed("%.4g bytes of f32 a second, as given", study.run.codec_speed)
                                   : "measured here, on one core";
}

// What was assumed, a line each.
std::vector<std::string> assumptions_of(const SearchStudy& study) {
  return {"every rank is a host with one NIC, all meet, and links carry nothing else; " +
              printed("a message takes %.4g us to post", study.run.network.post * 1e6),
          "codecs' speeds: " + speed_of(study) + "; compressing does not overlap with the exchange",
          "gain: of a made-up gradient, with error feedback, to the power of the encodings on a value's way",
          printed("designs with a gain below %g are passed over", study.least_gain)};
}

}  // namespace

std::string text_of(const SearchStudy& study, const SearchResult& result) {
  const Network& net = study.run.network;
  std::string out = printed("%d ranks, %.6g parameters of 4 bytes, alpha %.4g ms, %.4g Gbit/s\n", net.ranks,
                            study.run.parameters, net.alpha * 1e3, net.bits_per_second / 1e9);
  out += "codecs: " + result.codecs + "\n";
  for (const std::string& assumption : assumptions_of(study)) out += "assumes: " + assumption + "\n";
  out += printed("%zu of %zu designs tried", result.tried, result.designs);
  out += study.exhaustive ? ": all\n"
                          : printed(" by NSGA-II: %u generations of %u, seed %u\n", study.nsga2.generations,
                                    study.nsga2.population, study.nsga2.seed);
  if (result.front.empty()) return out + "no design that was tried has the gain that was asked for\n";
  out += "\n  codec                planner          piece KiB  compress ms  exchange ms     gain\n";
  // Of a long front every so many, with the ends and the knee.
  const std::size_t size = result.front.size(), step = (size + kLines - 1) / kLines;
  std::size_t left_out = 0;
  for (std::size_t i = 0; i < size; ++i) {
    if (i % step == 0 || i + 1 == size || i == result.knee) {
      out += line_of(result.front[i], i == result.knee);
    } else {
      ++left_out;
    }
  }
  out += printed("a front of %zu designs", size);
  if (left_out != 0) out += printed(", of which %zu are left out here; --json has all", left_out);
  const Tried& knee = result.front[result.knee];
  return out + "\nknee: " + to_text(knee.design.codec) + " by " + std::string(name_of(knee.design.planner)) +
         printed(" in pieces of %.4g KiB\n", static_cast<double>(knee.design.piece_bytes) / 1024);
}

std::string json_of(const SearchStudy& study, const SearchResult& result) {
  const Network& net = study.run.network;
  nlohmann::ordered_json json = {{"ranks", net.ranks},
                                 {"parameters", study.run.parameters},
                                 {"alpha_seconds", net.alpha},
                                 {"bandwidth_bits_per_second", net.bits_per_second},
                                 {"post_seconds", net.post},
                                 {"least_gain", study.least_gain},
                                 {"codecs", result.codecs},
                                 {"assumptions", assumptions_of(study)},
                                 {"method", study.exhaustive ? "exhaustive" : "nsga2"}};
  if (!study.exhaustive) {
    json["generations"] = study.nsga2.generations;
    json["population"] = study.nsga2.population;
    json["seed"] = study.nsga2.seed;
  }
  json["designs"] = result.designs;
  json["tried"] = result.tried;
  json["front"] = nlohmann::ordered_json::array();
  for (const Tried& t : result.front) json["front"].push_back(json_of(t));
  json["knee"] = result.front.empty() ? nlohmann::ordered_json() : json_of(result.front[result.knee]);
  return json.dump(1) + "\n";
}

}  // namespace canarynet::sim
