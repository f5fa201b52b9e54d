// `canaryctl explain`: what each group's operations run by, and why, as text and as JSON.
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/settings.h"
#include "base/units.h"
#include "tools/ctl/view.h"

namespace canarynet::ctl {
namespace {

using Json = nlohmann::ordered_json;
using ipc::ChoiceReason;
using ipc::ChoiceRow;
using ipc::ChoiceTimes;
using ipc::ChosenBy;

std::string size_text(std::uint64_t bytes) {
  return bytes == 0 ? "0" : as_written(Bytes{static_cast<std::int64_t>(bytes & ~(std::uint64_t{1} << 63))});
}

// "to 4KiB", "16KiB to 64KiB", "from 256MiB".
std::string sizes_text(const ChoiceRow& c) {
  if (c.to_bytes == 0) return "from " + size_text(c.from_bytes);
  if (c.from_bytes == 0) return "to " + size_text(c.to_bytes);
  return size_text(c.from_bytes) + " to " + size_text(c.to_bytes);
}

std::string table_text(const ChoiceRow& c) {
  char text[32];
  std::snprintf(text, sizeof text, "table %u (%05x)", c.table_version, c.table_checksum);
  return text;
}

// Whether the row tells of a choice among codecs. Other rows with a codec tell what carries that one's bytes.
bool chooses_codec(const ChoiceRow& c) { return std::string_view(c.asked).find("auto") != std::string_view::npos; }

std::string why_text(const ChoiceRow& c) {
  if (chooses_codec(c)) return c.chosen_by == ChosenBy::kMeasured ? table_text(c) : "nothing is known yet";
  switch (c.chosen_by) {
    case ChosenBy::kForced:
      return "CANARY_ALGO";
    case ChosenBy::kMeasured:
      return table_text(c);
    case ChosenBy::kKept:
      return "size, topology; " + table_text(c);
    case ChosenBy::kStatic:
      break;
  }
  return "size, topology";
}

const char* why_word(ChosenBy by) {
  switch (by) {
    case ChosenBy::kForced:
      return "forced";
    case ChosenBy::kMeasured:
      return "measured";
    case ChosenBy::kKept:
      return "kept";
    case ChosenBy::kStatic:
      break;
  }
  return "static";
}

// For the text, and for JSON.
struct ReasonWords {
  const char *text, *word;
};
ReasonWords reason_of(const ChoiceRow& c) {
  switch (c.reason) {
    case ChoiceReason::kTrial:
      return {"on trial", "trial"};
    case ChoiceReason::kFastest:
      return {"fastest", "fastest"};
    case ChoiceReason::kAsFastAsStatic:
      return {"as fast", "as_fast_as_static"};
    case ChoiceReason::kStays:
      return {"stays", "stays"};
    case ChoiceReason::kNone:
      break;
  }
  return {"-", nullptr};
}

// "mesh 8.51 ms (120)"; "-, before: ring 9.12 ms (8, table 2)": nothing has run since.
std::string times_text(const ChoiceRow& c) {
  std::string now, before;
  for (const ChoiceTimes& t : c.times) {
    if (t.operations == 0) continue;
    std::string& out = t.before != 0 ? before : now;
    out += (out.empty() ? "" : ", ") + std::string(t.planner) + " " + time_text(t.mean_ns) + " (" +
           std::to_string(t.operations);
    if (t.before != 0) out += t.table_version == 0 ? ", no table" : ", table " + std::to_string(t.table_version);
    out += ")";
  }
  if (now.empty()) now = "-";
  return before.empty() ? now : now + "; before: " + before;
}

std::string line_of(const ipc::ScannedTable& scanned, const ChoiceRow& c) {
  std::string operation = c.collective;
  if (c.asked[0] != '\0') operation += "/" + std::string(c.asked);
  std::string planner = c.planner;
  if (c.piece_bytes != 0) planner += "/" + size_text(c.piece_bytes);
  const std::string next = c.runner_up[0] == '\0' ? "-" : std::string(c.runner_up) + " " + time_text(c.runner_up_ns);
  char text[512];
  std::snprintf(text, sizeof text, "%7d %-15.15s %5d %6u %6u %-26.26s %-19.19s %-21.21s %-33.33s %-8s %9s %-26.26s ",
                scanned.pid, scanned.table->process, scanned.table->rank, c.group, c.ranks, operation.c_str(),
                sizes_text(c).c_str(), planner.c_str(), why_text(c).c_str(), reason_of(c).text,
                time_text(c.predicted_ns).c_str(), next.c_str());
  return text + times_text(c) + "\n";
}

Json seconds(std::uint64_t ns) { return ns == 0 ? Json(nullptr) : Json(static_cast<double>(ns) * 1e-9); }

Json json_of(const ipc::ScannedTable& scanned, const ChoiceRow& c) {
  Json out = {{"pid", scanned.pid},
              {"process", scanned.table->process},
              {"rank", scanned.table->rank},
              {"group", c.group},
              {"ranks", c.ranks},
              {"op", c.collective},
              {"asked_codec", c.asked[0] == '\0' ? Json(nullptr) : Json(c.asked)},
              {"from_bytes", c.from_bytes},
              {"to_bytes", c.to_bytes == 0 ? Json(nullptr) : Json(c.to_bytes)},
              {"algo", c.planner},
              {"piece_bytes", c.piece_bytes == 0 ? Json(nullptr) : Json(c.piece_bytes)},
              {"chosen_by", why_word(c.chosen_by)},
              {"table_version", c.table_version == 0 ? Json(nullptr) : Json(c.table_version)},
              {"table_checksum", c.table_version == 0 ? Json(nullptr) : Json(c.table_checksum)},
              {"reason", reason_of(c).word == nullptr ? Json(nullptr) : Json(reason_of(c).word)},
              {"predicted_seconds", seconds(c.predicted_ns)},
              {"runner_up", nullptr},
              {"measured", Json::array()},
              {"measured_before", Json::array()}};
  if (c.runner_up[0] != '\0')
    out["runner_up"] = {{"algo", c.runner_up}, {"predicted_seconds", seconds(c.runner_up_ns)}};
  for (const ChoiceTimes& t : c.times) {
    if (t.operations == 0) continue;
    Json times = {{"algo", t.planner}, {"operations", t.operations}, {"mean_seconds", seconds(t.mean_ns)}};
    if (t.before != 0) times["table_version"] = t.table_version == 0 ? Json(nullptr) : Json(t.table_version);
    out[t.before != 0 ? "measured_before" : "measured"].push_back(std::move(times));
  }
  return out;
}

}  // namespace

std::string explain_text(const Look& look) {
  char head[256];
  std::snprintf(head, sizeof head, "%7s %-15s %5s %6s %6s %-26s %-19s %-21s %-33s %-8s %9s %-26s %s\n", "PID",
                "PROCESS", "RANK", "GROUP", "RANKS", "OPERATION", "BYTES", "ALGORITHM", "CHOSEN BY", "REASON",
                "EXPECTED", "NEXT BEST", "TOOK SINCE (TIMES)");
  std::string out = head;
  for (const ipc::ScannedTable& scanned : look.scan.tables) {
    for (std::uint32_t i = 0; i < scanned.table->choices; ++i) out += line_of(scanned, scanned.table->choice[i]);
    const std::uint64_t more = scanned.table->at(ipc::ProcessMetric::kChoicesLeftOut);
    if (more != 0) out += std::to_string(scanned.pid) + " and " + std::to_string(more) + " more\n";
  }
  print_notes(&out, look);
  return out;
}

std::string explain_json(const Look& look) {
  Json out = {{"hidden_processes", look.scan.hidden}, {"passed_over", look.scan.notes}, {"choices", Json::array()}};
  for (const ipc::ScannedTable& scanned : look.scan.tables) {
    for (std::uint32_t i = 0; i < scanned.table->choices; ++i)
      out["choices"].push_back(json_of(scanned, scanned.table->choice[i]));
  }
  // A note may quote text that is not printable.
  return out.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace canarynet::ctl
