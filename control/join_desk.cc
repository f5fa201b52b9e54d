#include "control/join_desk.h"

#include <algorithm>

#include "base/text.h"
#include "control/text.h"

namespace canarynet::control {
namespace {

constexpr std::size_t kRefusedKept = 16;  // reasons, for the job's own failure
constexpr std::size_t kRefusedTold = 4;   // of them, in its text

// "algo" and "ring" of "algo=ring".
std::string name_part(const std::string& setting) { return setting.substr(0, setting.find('=')); }
std::string value_part(const std::string& setting) {
  const std::size_t at = setting.find('=');
  return at == std::string::npos ? std::string() : setting.substr(at + 1);
}

std::string value_of(const std::vector<std::string>& settings, const std::string& name) {
  for (const std::string& s : settings) {
    if (name_part(s) == name) return "\"" + value_part(s) + "\"";
  }
  return "unknown";
}

}  // namespace

void JoinDesk::enter(const EngineInfo& engine) {
  claimed_by_.resize(static_cast<std::size_t>(options_.world_size), -1);
  for (const int rank : engine.ranks) claimed_by_[static_cast<std::size_t>(rank)] = static_cast<int>(entries_.size());
  there_ += static_cast<int>(engine.ranks.size());
  entries_.push_back({engine});
}

void JoinDesk::leave(std::size_t engine) {
  Entry& entry = entries_[engine];
  if (!entry.away) there_ -= static_cast<int>(entry.info.ranks.size());
  entry.away = true;
}

bool JoinDesk::come_back(std::size_t engine) {
  Entry& entry = entries_[engine];
  if (!entry.away) return false;
  entry.away = false;
  there_ += static_cast<int>(entry.info.ranks.size());
  return true;
}

Status JoinDesk::check_token(std::uint64_t token, const EngineInfo& engine) const {
  if (token == options_.join_token) return {};
  return failure(CANARY_JOIN,
                 engine_text(engine) + " was turned away: " +
                     (token == 0                 ? "this job is joined by a unique id, it came by address"
                      : options_.join_token == 0 ? "it brought a unique id, this job is joined by address"
                                                 : "it brought the unique id of another job"),
                 engine.ranks.front(), engine.host_name);
}

Status JoinDesk::check(const Join& join) const {
  const EngineInfo& their = join.engine;
  const EngineInfo& mine = entries_.front().info;
  const auto culprit = [&](canary_status code, const std::string& text) {
    return failure(code, text, their.ranks.front(), their.host_name);
  };
  if (join.world_size != static_cast<std::uint32_t>(options_.world_size)) {
    return culprit(CANARY_JOIN, "the world sizes differ: " + std::to_string(options_.world_size) + " on " +
                                    engine_text(mine) + ", " + std::to_string(join.world_size) + " on " +
                                    engine_text(their));
  }
  if (their.ranks.back() >= options_.world_size) {
    return culprit(CANARY_JOIN,
                   engine_text(their) + " does not exist in a job of " + std::to_string(options_.world_size));
  }
  for (const int rank : their.ranks) {
    const int other = claimed_by_[static_cast<std::size_t>(rank)];
    if (other < 0) continue;
    const EngineInfo& first = entries_[static_cast<std::size_t>(other)].info;
    return culprit(CANARY_JOIN, "rank " + std::to_string(rank) + " joined twice: from host " + first.host_name +
                                    ", pid " + std::to_string(first.pid) + " and from host " + their.host_name +
                                    ", pid " + std::to_string(their.pid));
  }
  for (const auto* settings : {&options_.must_agree, &join.must_agree}) {
    for (const std::string& s : *settings) {
      const std::string name = name_part(s);
      const std::string here = value_of(options_.must_agree, name), there = value_of(join.must_agree, name);
      if (here == there) continue;
      std::string text = "setting " + name;
      text.append(" differs: ").append(here).append(" on ").append(engine_text(mine));
      text.append(", ").append(there).append(" on ").append(engine_text(their));
      make_printable(&text);
      return culprit(CANARY_MISMATCH, text);
    }
  }
  return {};
}

bool JoinDesk::remember(const std::vector<int>& ranks, const Status& why) {
  const auto same = [&](const Refused& r) { return r.why.text() == why.text(); };
  if (std::any_of(refused_.begin(), refused_.end(), same)) return false;
  const bool full = refused_.size() >= kRefusedKept;
  if (full) refused_.erase(refused_.begin());
  refused_.push_back({ranks, why});
  return !full;
}

Status JoinDesk::incomplete(const std::string& trouble) const {
  std::vector<int> missing;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    const int number = claimed_by_[static_cast<std::size_t>(rank)];
    if (number < 0 || entries_[static_cast<std::size_t>(number)].away) missing.push_back(rank);
  }
  const auto is_missed = [&](const Refused& r) {
    return std::any_of(r.ranks.begin(), r.ranks.end(),
                       [&](int rank) { return std::find(missing.begin(), missing.end(), rank) != missing.end(); });
  };
  std::vector<Refused> refused = refused_;
  const auto others = std::stable_partition(refused.begin(), refused.end(), is_missed);
  const Status& cause = others != refused.begin() ? refused.front().why : Status();
  std::string text = ranks_text(missing) + " did not join within " + duration_text(options_.join_timeout) + " (" +
                     std::to_string(there_) + " of " + std::to_string(options_.world_size) + " are there)";
  for (std::size_t i = 0; i < refused.size() && i < kRefusedTold; ++i)
    text += (i == 0 ? "; turned away: " : "; ") + refused[i].why.text();
  if (refused.size() > kRefusedTold) text += "; and " + std::to_string(refused.size() - kRefusedTold) + " more";
  if (!trouble.empty()) text += "; " + trouble;
  return cause.ok() ? failure(CANARY_JOIN, text, missing.front())
                    : failure(cause.code(), text, cause.detail().rank, cause.detail().host);
}

}  // namespace canarynet::control
