#include "control/member.h"

#include <algorithm>

#include "base/log.h"
#include "control/text.h"
#include "control/ways.h"
#include "transport/frames.h"

namespace canarynet::control {

namespace {

constexpr Nanos kBackoffMin = 20_ms;
constexpr Nanos kBackoffMax = 500_ms;
constexpr Nanos kAnswerSlack = 2_s;     // for what the coordinator has to say when its own time-out passes
constexpr Nanos kRoundMax = 500_ms;     // of dialling: what comes back after an outage is found that soon
constexpr Nanos kAnswerPatience = 8_s;  // where the coordinator's machine answers and its process does not
constexpr std::size_t kClosingWordsKept = 64;
constexpr std::size_t kAttemptsMax = 16;  // unanswered connections kept open
constexpr Nanos kSuccessorsTurn = 20_ms;  // it hears of the death about when we do, and has to take over
constexpr Nanos kEarlyLimit = 10_s;       // a member that came before this engine coordinates is kept so long
constexpr std::size_t kGroupsKept = 64;   // for a successor; the coordinator tells all ranks of one in one breath
constexpr std::size_t kQuestionsKept = 64;
constexpr Nanos kPartlyRefused = 3_s;  // where other addresses may still answer: a SYN that got lost is sent again

}  // namespace

Member::Member(MembershipOptions options, LaneFactory& factory, MembershipListener& listener)
    : options_(std::move(options)), factory_(factory), listener_(listener), attention_(options_.heartbeat_interval) {}

Status Member::start(Nanos now) {
  now_ = started_ = now;
  if (!options_.coordinator.valid() || options_.coordinator.port == 0) {
    return Status(CANARY_INVALID_SETTING,
                  "the coordinator's address \"" + options_.coordinator.to_string() + "\" needs host and port");
  }
  // For those who come when this engine's turn to coordinate has come. Without it the turn is the next one's.
  Address at = options_.coordinator;
  at.port = 0;
  if (!at.loopback()) at.bytes = {};
  const Result<Address> bound = factory_.listen_control(at);
  if (bound.ok()) {
    control_port_ = bound.value().port;
  } else {
    log(LogLevel::kDebug, "this engine could not coordinate: %s", bound.status().text().c_str());
  }
  phase_ = Phase::kJoining;
  backoff_ = kBackoffMin;
  join_deadline_ = now + options_.join_timeout;
  dial_to_join(now);
  return {};
}

// --- joining ---------------------------------------------------------------------------------------------------------

void Member::dial_to_join(Nanos now) {
  answered_ = false;
  next_dial_ = Nanos::max();
  link_ = std::make_unique<ControlLink>(*this, now_);
  const Status status = link_->dial(factory_, options_.coordinator);
  if (status.ok()) return;
  link_.reset();  // never had a lane
  last_error_ = status.text();
  take_next_address();
  next_dial_ = now + backoff_;
  backoff_ = std::min(backoff_ * 2, kBackoffMax);
}

void Member::join_again(const std::string& why) {
  bury(std::move(link_));
  last_error_ = why;
  take_next_address();
  next_dial_ = now_ + backoff_;
  backoff_ = std::min(backoff_ * 2, kBackoffMax);
}

// A unique id names several addresses of one coordinator: the one that did not answer goes to the end.
void Member::take_next_address() {
  std::vector<Address>& others = options_.coordinator_others;
  if (others.empty()) return;
  std::swap(options_.coordinator, others.front());
  std::rotate(others.begin(), others.begin() + 1, others.end());
}

void Member::on_link_up(ControlLink& link) {
  wire::HelloPayload hello{
      .engine = 0xffffffff, .target = 0, .rail = 0xffff, .peer_rail = 0xffff, .purpose = wire::kHelloControl};
  if (phase_ == Phase::kJoining) {
    hello.job = options_.join_token;
    link.send_hello(hello);
    Join join;
    join.engine.ranks = options_.local_ranks;
    join.engine.host_id = options_.host_id;
    join.engine.host_name = options_.host_name;
    join.engine.pid = options_.pid;
    join.engine.caller_driven = options_.caller_driven;
    join.engine.cores = options_.cores;
    join.engine.control.port = control_port_;
    join.engine.rails.assign(factory_.rails().begin(), factory_.rails().end());
    join.world_size = static_cast<std::uint32_t>(options_.world_size);
    join.must_agree = options_.must_agree;
    link.send(join);
    return;
  }
  // The first connection of the round that stands carries the REJOIN; the others are not needed.
  const auto found = std::find_if(dialling_.begin(), dialling_.end(), [&](const auto& l) { return l.get() == &link; });
  if (found == dialling_.end()) return;
  auto standing = std::move(*found);
  dialling_.erase(found);
  bury_all(&dialling_);
  hello.engine = me_;
  hello.target = coordinator_;
  hello.job = roster_->job;
  link.send_hello(hello);
  link.attempt = ++attempt_;
  link.send(Rejoin{roster_->job, me_, attempt_, coordinator_, forgotten_});
  attempts_.push_back(std::move(standing));
}

void Member::on_link_hello(ControlLink& link, const wire::HelloPayload& hello) {
  if (phase_ != Phase::kJoining || &link != link_.get()) return;
  answered_ = true;
  // It knows of us and will speak when its own time-out passes.
  join_deadline_ = now_ + options_.join_timeout + kAnswerSlack;
  if (wire::speaks_our_version(hello)) return;
  fail(failure(CANARY_VERSION,
               "rank 0 (" + link.description() + ") speaks protocol version " + wire::version_text(hello) +
                   ", this rank " + std::to_string(wire::kVersion),
               0));
}

void Member::welcome(Welcome& part) {
  const auto wrong = [&](const char* what) {
    fail(failure(CANARY_JOIN, std::string("rank 0 sent a roster with ") + what, 0));
  };
  if (part.first != roster_->engines.size()) return wrong("a part missing");
  if (part.first == 0) {
    if (part.world_size != static_cast<std::uint32_t>(options_.world_size)) return wrong("another world size");
    roster_->job = part.job;
    roster_->epoch_seed = part.epoch_seed;
    roster_->world_size = static_cast<int>(part.world_size);
    roster_->piece_bytes = Bytes{part.piece_bytes};
    roster_->engine_of.assign(part.world_size, -1);
    roster_->engines.reserve(std::min(part.engines, part.world_size));
  } else if (part.job != roster_->job || part.world_size != static_cast<std::uint32_t>(roster_->world_size)) {
    return wrong("parts of two jobs");
  }
  for (EngineInfo& engine : part.part) {
    for (const int rank : engine.ranks) {
      int& slot = roster_->engine_of[static_cast<std::size_t>(rank)];
      if (slot >= 0) return wrong("a rank twice");
      slot = static_cast<int>(engine.engine);
    }
    roster_->engines.push_back(std::move(engine));
  }
  if (roster_->engines.size() < part.engines) return;
  for (const int engine : roster_->engine_of) {
    if (engine < 0) return wrong("a rank missing");
  }
  roster_->pairing = settled_pairing(options_.pairing, roster_->rails_of_ranks(), roster_->engine_of);
  me_ = static_cast<std::uint32_t>(roster_->engine_of[static_cast<std::size_t>(options_.local_ranks.front())]);
  if (me_ == 0 || roster_->engines[me_].ranks != options_.local_ranks) return wrong("other ranks for this engine");
  phase_ = Phase::kJoined;
  join_deadline_ = Nanos::max();
  just_heard_ = true;
  next_beat_ = now_;
  heard_.assign(roster_->engines.size(), now_);
  surely_heard_ = heard_;
  told_at_ = now_;
  ended_engines_.resize(roster_->engines.size());
  passed_over_.assign(roster_->engines.size(), false);
  notices_.joined();
}

void Member::fail(const Status& why) {
  phase_ = Phase::kFailed;
  join_deadline_ = next_dial_ = Nanos::max();
  bury(std::move(link_));
  notices_.join_failed(why);
}

// --- links -----------------------------------------------------------------------------------------------------------

void Member::on_link_message(ControlLink& link, Message& message) {
  if (phase_ == Phase::kJoining) {
    if (&link != link_.get()) return;
    if (auto* part = std::get_if<Welcome>(&message)) return welcome(*part);
    if (std::holds_alternative<Retract>(message)) return join_again("rank 0 could not read what came from here");
    if (auto* refusal = std::get_if<Refuse>(&message)) fail(to_status(*refusal));
    return;
  }
  if (phase_ != Phase::kJoined || leaving_) return;
  if (EarlyMember* const early = find_early(link); early != nullptr) {
    const auto* const rejoin = std::get_if<Rejoin>(&message);
    if (rejoin == nullptr || rejoin->job != roster_->job) return;
    early->asked = true;
    early->rejoin = *rejoin;
    return;
  }
  if (auto* rejoined = std::get_if<Rejoined>(&message)) {
    if (&link != link_.get()) settle(link, rejoined->attempt);
  } else if (auto* refusal = std::get_if<Refuse>(&message)) {
    on_refuse(*refusal);
  } else if (auto* created = std::get_if<GroupCreated>(&message)) {
    answer(created->request, created->flow, {});
  } else if (auto* failed = std::get_if<GroupFailed>(&message)) {
    answer(failed->request, 0, failure(failed->code, failed->text, failed->rank, failed->host, "entry"));
  } else if (auto* note = std::get_if<VerdictNote>(&message)) {
    if (verdicts_.add(note->verdict)) notices_.verdict(note->verdict);
  } else if (auto* death = std::get_if<Death>(&message)) {
    if (death->engine >= ended_engines_.size() || death->engine == me_) return;
    Ended& ended = ended_engines_[death->engine];
    if (std::exchange(ended.died, true)) return;
    ended.why = death->why;
    ended.sure = death->sure;
    notices_.died(death->engine, death->why, death->sure);
  } else if (auto* left = std::get_if<Left>(&message)) {
    if (left->engine >= ended_engines_.size() || left->engine == me_) return;
    Ended& ended = ended_engines_[left->engine];
    if (std::exchange(ended.left, true)) return;
    ended.words = left->words;
    notices_.left(left->engine, std::move(left->words));
  } else if (auto* question = std::get_if<EntryQuestion>(&message)) {
    notices_.entry_question(question->group);
  } else if (auto* state = std::get_if<EntryState>(&message)) {
    std::erase(questions_, state->entered.group);
    notices_.entered(std::move(state->entered));
  } else if (auto* reply = std::get_if<PolicyReply>(&message)) {
    std::erase_if(words_, [&](const PolicyWord& word) {
      return word.policy == reply->policy && word.rank == reply->rank && word.serial <= reply->heard;
    });
    notices_.policy_reply(std::move(*reply));
  } else if (auto* wanted = std::get_if<ConnectRequest>(&message)) {
    notices_.connect_wanted(wanted->engine);
  } else if (auto* heartbeat = std::get_if<Heartbeat>(&message)) {
    heard_bits_ = std::move(heartbeat->heard);
  } else if (std::holds_alternative<Retract>(message)) {
    link.retracted = true;
    if (&link == link_.get()) lose_way();  // stays open: its end would look like our death
  }
}

void Member::on_link_down(ControlLink& link, const Status& reason, bool hangup) {
  if (phase_ == Phase::kJoining) {
    if (hangup && answered_) {
      bury(std::move(link_));
      return fail(
          failure(CANARY_COORDINATOR_LOST, "rank 0's process ended while the job was joining: " + reason.text(), 0));
    }
    // Behind a hello comes the roster: a member that lost it is not in the job.
    if (!hangup && !answered_) link.send(Retract{});
    return join_again(reason.text());
  }
  if (const EarlyMember* const early = find_early(link); early != nullptr) {
    bury(std::move(early_[static_cast<std::size_t>(early - early_.data())].link));
    early_.erase(early_.begin() + (early - early_.data()));
    return;
  }
  const bool attempted =
      std::any_of(attempts_.begin(), attempts_.end(), [&](const auto& l) { return l.get() == &link; });
  if (!hangup && (&link == link_.get() || attempted)) return on_link_broken(link, reason);
  if (&link == link_.get()) {
    just_heard_ |= link.heard;
    bury(std::move(link_));
    // Proof of a death only on the connection that the coordinator holds for ours: not when we are on the way to
    // another.
    ended_ = attempts_.empty() && link.attempt == attempt_;
    lose_way();
    return;
  }
  for (auto* list : {&dialling_, &attempts_}) {
    const auto found = std::find_if(list->begin(), list->end(), [&](const auto& l) { return l.get() == &link; });
    if (found == list->end()) continue;
    const bool refused = hangup && list == &dialling_;
    const bool own_address = refused && coordinator_ == 0 && link.address() == options_.coordinator;
    bury(std::move(*found));
    list->erase(found);
    if (!refused || gone()) return;
    // Its machine answers, and nobody listens there any more. Rank 0 listens where it was named. Others are known by
    // their NICs, one of which might be another machine's by now: all have to refuse, or those that answer at all.
    ++refusals_;
    if (own_address || (coordinator_ != 0 && refusals_ == ways_)) on_refused();
    return;
  }
}

void Member::on_link_broken(ControlLink& link, const Status& reason) {
  if (phase_ == Phase::kJoining)
    return fail(failure(CANARY_JOIN, "rank 0 answers with something else: " + reason.text(), 0));
  // Stays open, unread, until another has taken its place: its end would look like our death.
  link.send(Retract{});
  if (find_early(link) != nullptr) return;
  if (&link == link_.get()) lose_way();
}

void Member::bury_all(std::vector<std::unique_ptr<ControlLink>>* links) {
  for (auto& link : *links) bury(std::move(link));
  links->clear();
}

// --- the way to the coordinator --------------------------------------------------------------------------------------

std::string Member::coordinator_text() const {
  return "rank " + std::to_string(roster_->engines[coordinator_].ranks.front());
}

// The connection is silent or gone; poll() dials again, at once.
void Member::lose_way() {
  if (phase_ != Phase::kJoined || leaving_ || gone()) return;
  if (ended_engines_[coordinator_].left) return;
  if (way_ == Way::kOpen) {
    way_ = Way::kLost;
    redialled_ = false;
    round_ends_ = now_;
  }
}

void Member::dial_again(Nanos now) {
  bury_all(&dialling_);
  if (attempts_.size() >= kAttemptsMax) {
    attempts_.front()->send(Retract{});
    bury(std::move(attempts_.front()));
    attempts_.erase(attempts_.begin());
  }
  redialled_ = true;
  dialled_at_ = now;
  round_ends_ = now + std::clamp(options_.heartbeat_interval * 3, 200_ms, kRoundMax);
  for (const Address& way : ways_to(roster_->engines[coordinator_], options_)) {
    auto link = std::make_unique<ControlLink>(*this, now_);
    if (link->dial(factory_, way).ok()) dialling_.push_back(std::move(link));
  }
  ways_ = dialling_.size();
  refusals_ = 0;
}

// The coordinator took up this connection: it is the one from now on.
void Member::settle(ControlLink& link, std::uint32_t attempt) {
  if (link.attempt != attempt || gone()) return;
  const auto found = std::find_if(attempts_.begin(), attempts_.end(), [&](const auto& l) { return l.get() == &link; });
  if (found == attempts_.end()) return;
  auto taken = std::move(*found);
  attempts_.erase(found);
  // Later attempts may still reach it: they stay open, as this one would be replaced by them.
  for (auto it = attempts_.begin(); it != attempts_.end();) {
    if ((*it)->attempt < attempt) {
      bury(std::move(*it));
      it = attempts_.erase(it);
    } else {
      ++it;
    }
  }
  bury_all(&dialling_);
  bury(std::move(link_));
  link_ = std::move(taken);
  way_ = Way::kOpen;
  settled_ = true;
  refusals_ = 0;
  ended_ = false;
  round_ends_ = Nanos::max();
  // Rank 0 knew all of this first.
  for (std::uint32_t e = 0; e < ended_engines_.size() && coordinator_ != 0; ++e) {
    if (ended_engines_[e].died) link_->send(Death{e, ended_engines_[e].why, ended_engines_[e].sure});
    if (ended_engines_[e].left) link_->send(Left{e, ended_engines_[e].words});
  }
  for (const OwnGroup& g : groups_) {
    if (coordinator_ != 0) link_->send(GroupKnown{g.ranks, g.flow, g.members});
  }
  for (const Pending& p : pending_) send_request(p);
  for (const Verdict& v : own_verdicts_.all()) link_->send(VerdictNote{v});
  link_->send(MissReport{missed_});
  for (const GroupEpoch& group : questions_) link_->send(EntryQuestion{group});
  for (PolicyWord word : words_) {
    if (word.kind == PolicyWord::Kind::kResume) word.ago += now_ - sought_at_;
    link_->send(std::move(word));
  }
  link_->send(Testified{});
}

// The coordinator has died or left: the next one takes its place.
void Member::lose_coordinator(Way way, const Status& why) {
  if (way == Way::kDied && !ended_engines_[coordinator_].died) {
    ended_engines_[coordinator_].died = true;
    ended_engines_[coordinator_].why = why.text();
    // One that succeeded rank 0 and refuses may have left, with its word lost. Lanes tell.
    const bool sure = coordinator_ == 0 || refusals_ == 0;
    ended_engines_[coordinator_].sure = sure;
    notices_.died(coordinator_, why.text(), sure);
  }
  const std::uint32_t before = coordinator_;
  seek();
  if (coordinator_ == before) return end_way(way, why);
  log(LogLevel::kInfo, "%s is gone (%s): %s coordinates from now on",
      control::engine_text(roster_->engines[before]).c_str(), why.text().c_str(), coordinator_text().c_str());
}

void Member::on_refused() {
  if (coordinator_ != 0 && listener_.stands(coordinator_)) {
    refused_warning_.say(
        now_, coordinator_text() + " is to coordinate and lives, but refuses control connections: does a firewall?");
  } else if (settled_) {
    lose_coordinator(Way::kDied, Status(CANARY_COORDINATOR_LOST, "control connection refused after a silence"));
  } else {
    pass_over("it refused the connection");
  }
}

// It was to coordinate, and its process has ended before that. Whether it has died or left others can tell.
void Member::pass_over(const std::string& why) {
  passed_over_[coordinator_] = true;
  const std::uint32_t before = coordinator_;
  seek();
  if (coordinator_ == before) return end_way(Way::kDied, Status(CANARY_COORDINATOR_LOST, why));
  log(LogLevel::kDebug, "%s is passed over, %s: %s coordinates", control::engine_text(roster_->engines[before]).c_str(),
      why.c_str(), coordinator_text().c_str());
}

// The first engine that lives, as far as is known here, and can be found by the others.
void Member::seek() {
  std::uint32_t next = 0;
  const auto can = [&](std::uint32_t e) {
    return roster_->engines[e].control.port != 0 && !ended_engines_[e].died && !ended_engines_[e].left &&
           !passed_over_[e];
  };
  while (next < ended_engines_.size() && !can(next)) ++next;
  if (next == ended_engines_.size()) return;
  bury(std::move(link_));
  bury_all(&dialling_);
  bury_all(&attempts_);
  coordinator_ = next;
  sought_at_ = now_;
  settled_ = false;
  way_ = Way::kLost;
  redialled_ = ended_ = false;
  round_ends_ = next == me_ ? Nanos::max() : now_ + kSuccessorsTurn;
  refusals_ = 0;
  // Nobody brought word meanwhile.
  last_heard_ = told_at_ = now_;
  std::fill(heard_.begin(), heard_.end(), now_);
  surely_heard_ = heard_;
  heard_bits_.clear();
  words_.clear();  // the listener says what counts (kResume)
  notices_.coordinator(next);
}

Inheritance Member::bequeath() {
  Inheritance out;
  out.roster = roster_;
  out.me = me_;
  out.ended = std::move(ended_engines_);
  out.passed_over = std::move(passed_over_);
  out.early = std::move(early_);
  out.groups.assign(groups_.begin(), groups_.end());
  out.forgotten = forgotten_;
  out.last_request = last_request_;
  out.requests.assign(pending_.begin(), pending_.end());
  out.verdicts = std::move(verdicts_);
  out.missed = std::move(missed_);
  out.questions = std::move(questions_);
  out.words = std::move(words_);
  out.given_up = std::move(given_up_);
  return out;
}

// No coordinator any more: nobody answers requests, nobody tells of deaths.
void Member::end_way(Way way, const Status& why) {
  way_ = way;
  round_ends_ = next_beat_ = Nanos::max();
  bury(std::move(link_));
  bury_all(&dialling_);
  bury_all(&attempts_);
  const EngineInfo& it = roster_->engines[coordinator_];
  for (const Pending& p : pending_) {
    notices_.group_failed(p.rank, p.cookie,
                          failure(CANARY_COORDINATOR_LOST, coordinator_text() + " is gone: " + why.text(),
                                  it.ranks.front(), it.host_name, "entry"));
  }
  pending_.clear();
  notices_.coordinator_lost(Status(CANARY_COORDINATOR_LOST, coordinator_text() + " is gone: " + why.text()));
}

// After the join: the others go on without this engine.
void Member::on_refuse(const Refuse& refuse) {
  if (gone()) return;
  const Status why = to_status(refuse);
  end_way(Way::kEvicted, why);
  for (const int rank : options_.local_ranks) {
    Verdict v;
    v.code = refuse.code;
    v.rank = rank;
    v.reporter = 0;
    v.text = refuse.text;
    if (verdicts_.add(v)) notices_.verdict(v);
  }
}

// --- groups and verdicts ---------------------------------------------------------------------------------------------

void Member::request_group(Nanos now, int local_rank, std::vector<int> members, std::uint64_t cookie) {
  now_ = now;
  if (phase_ != Phase::kJoined || leaving_) {
    return notices_.group_failed(local_rank, cookie,
                                 Status(CANARY_CLOSED, leaving_ ? "this rank has left the job" : "not joined"));
  }
  if (gone()) {
    return notices_.group_failed(
        local_rank, cookie,
        failure(CANARY_COORDINATOR_LOST, coordinator_text() + ", which hands out groups, is gone",
                roster_->engines[coordinator_].ranks.front(), roster_->engines[coordinator_].host_name, "entry"));
  }
  // Longer than the coordinator's own limit: it names the ranks that did not ask.
  const Nanos deadline = now + options_.entry_limit + std::max(options_.heartbeat_interval * 10, kAnswerSlack);
  pending_.push_back({{++last_request_, local_rank, cookie, std::move(members)}, deadline});
  if (link_ != nullptr) send_request(pending_.back());
}

void Member::send_request(const Pending& p) {
  link_->send(GroupRequest{p.request, pending_.front().request, static_cast<std::uint32_t>(p.rank), p.members});
}

void Member::answer(std::uint32_t request, std::uint32_t flow, const Status& why) {
  const auto found =
      std::find_if(pending_.begin(), pending_.end(), [&](const Pending& p) { return p.request == request; });
  if (found == pending_.end()) return;
  if (flow != 0) {
    notices_.group(found->rank, found->cookie, flow);
    remember(found->rank, flow, std::move(found->members));
  } else {
    notices_.group_failed(found->rank, found->cookie, why);
  }
  pending_.erase(found);
}

void Member::remember(int rank, std::uint32_t flow, std::vector<int> members) {
  const auto known = std::find_if(groups_.rbegin(), groups_.rend(), [&](const OwnGroup& g) { return g.flow == flow; });
  if (known != groups_.rend()) return known->ranks.push_back(rank);
  groups_.push_back({flow, std::move(members), {rank}});
  if (groups_.size() <= kGroupsKept) return;
  forgotten_ = std::max(forgotten_, groups_.front().flow);
  groups_.pop_front();
}

void Member::flood(const Verdict& verdict) {
  if (phase_ != Phase::kJoined || !verdicts_.add(verdict)) return;
  own_verdicts_.add(verdict);
  if (link_ != nullptr && !leaving_) link_->send(VerdictNote{verdict});
}

void Member::report_missed(Nanos now, std::vector<Missed> missed) {
  now_ = now;
  missed_ = std::move(missed);
  if (phase_ == Phase::kJoined && link_ != nullptr && !leaving_) link_->send(MissReport{missed_});
}

void Member::say(Nanos now, PolicyWord word) {
  now_ = now;
  if (phase_ != Phase::kJoined || leaving_ || gone()) return;
  // It says all that went before.
  if (word.kind == PolicyWord::Kind::kResume) {
    std::erase_if(words_, [&](const PolicyWord& w) { return w.policy == word.policy && w.rank == word.rank; });
  }
  // Nobody may be there to take the answer to a kLeave, and what was asked before it need not be asked again.
  std::erase_if(words_, [&](const PolicyWord& before) {
    const bool same = before.policy == word.policy && before.rank == word.rank;
    return (same && word.kind == PolicyWord::Kind::kLeave && before.kind == PolicyWord::Kind::kAsk) ||
           (before.kind == PolicyWord::Kind::kLeave && words_.size() > kClosingWordsKept);
  });
  words_.push_back(word);
  if (link_ != nullptr) link_->send(std::move(word));
}

void Member::ask_entered(Nanos now, GroupEpoch group) {
  now_ = now;
  if (phase_ != Phase::kJoined || leaving_) return;
  if (questions_.size() >= kQuestionsKept) questions_.erase(questions_.begin());
  std::erase(questions_, group);
  questions_.push_back(group);
  if (link_ != nullptr) link_->send(EntryQuestion{group});
}

void Member::tell_entered(Nanos now, const Entered& entered) {
  now_ = now;
  if (phase_ == Phase::kJoined && link_ != nullptr && !leaving_) link_->send(EntryState{entered});
}

void Member::ask_to_connect(Nanos now, std::uint32_t engine) {
  now_ = now;
  // A coordinator that does not read is asked again later: a request for each of a thousand peers fills the link.
  if (phase_ == Phase::kJoined && link_ != nullptr && !leaving_ && link_->idle()) link_->send(ConnectRequest{engine});
}

void Member::abandon() noexcept {
  abandoned_ = true;
  phase_ = Phase::kFailed;
  link_.reset();
  dialling_.clear();
  attempts_.clear();
  early_.clear();
  graveyard_.clear();
}

void Member::leave(Nanos now, std::vector<LastWord> words) {
  now_ = now;
  if (leaving_) return;
  leaving_ = true;
  next_beat_ = round_ends_ = join_deadline_ = next_dial_ = Nanos::max();
  const Bytestring farewell = share(Leave{std::move(words)});
  if (phase_ == Phase::kJoined && link_ != nullptr) link_->send(farewell);
  // On attempts as well: whichever the coordinator holds for ours, it must not take the end for a death.
  for (const auto& link : attempts_) link->send(farewell);
}

// Somebody takes this engine for the coordinator. It may hear why in a moment.
void Member::adopt(std::unique_ptr<Lane>&& lane, const wire::Header&, const wire::HelloPayload& hello) {
  const bool kept =
      phase_ == Phase::kJoined && !leaving_ && wire::speaks_our_version(hello) && hello.job == roster_->job;
  auto link = std::make_unique<ControlLink>(*this, now_);
  ControlLink& l = *link;
  if (kept) {
    while (early_.size() >= options_.strangers_max) drop_early(0);
    early_.push_back({std::move(link), now_, false, {}});
  }
  l.adopt(std::move(lane));
  l.token = hello.job;
  // Closed in poll(): it is inside the lane's callback here.
  if (!kept) bury(std::move(link));
}

EarlyMember* Member::find_early(const ControlLink& link) {
  const auto found =
      std::find_if(early_.begin(), early_.end(), [&](const EarlyMember& e) { return e.link.get() == &link; });
  return found != early_.end() ? &*found : nullptr;
}

void Member::drop_early(std::size_t index) {
  early_[index].link->send(Retract{});
  bury(std::move(early_[index].link));
  early_.erase(early_.begin() + static_cast<std::ptrdiff_t>(index));
}

// --- time ------------------------------------------------------------------------------------------------------------

// Nobody looked for so long.
void Member::move_clocks(Nanos missed) {
  last_heard_ += missed;
  told_at_ += missed;
  for (auto* clocks : {&heard_, &surely_heard_}) {
    for (Nanos& heard : *clocks) heard += missed;
  }
}

std::size_t Member::poll(Nanos now) {
  const Nanos missed = attention_.missed(now);
  now_ = now;
  graveyard_.clear();
  if (phase_ == Phase::kJoining) {
    if (now >= join_deadline_) {
      fail(answered_ ? failure(CANARY_JOIN,
                               "rank 0 at " + options_.coordinator.to_string() + " did not complete the join within " +
                                   duration_text(now - started_),
                               0)
                     : failure(CANARY_JOIN,
                               "no connection to rank 0 at " + options_.coordinator.to_string() + " within " +
                                   duration_text(options_.join_timeout) +
                                   (last_error_.empty() ? "" : ", last error: " + last_error_),
                               0));
    } else if (now >= next_dial_) {
      dial_to_join(now);
    }
  } else if (phase_ == Phase::kJoined && !leaving_) {
    if (link_ != nullptr && link_->heard) {
      link_->heard = false;
      just_heard_ = true;
    }
    while (!early_.empty() && now - early_.front().since > kEarlyLimit) drop_early(0);
    const Nanos patience = options_.heartbeat_interval * 3;
    if (missed.count != 0) move_clocks(missed);
    if (just_heard_) {
      just_heard_ = false;
      last_heard_ = now;
      heard_[coordinator_] = now;
    }
    for (std::size_t e = 0; e < heard_.size() && e / 64 < heard_bits_.size(); ++e) {
      if ((heard_bits_[e / 64] >> (e % 64) & 1) == 0) continue;
      heard_[e] = now;
      surely_heard_[e] = told_at_;
    }
    if (!heard_bits_.empty()) told_at_ = now;
    heard_bits_.clear();
    if (ended_) {
      ended_ = false;
      if (ended_engines_[coordinator_].left) {
        lose_coordinator(Way::kLeft, Status(CANARY_CLOSED, "it has left the job"));
      } else if (now - last_heard_ <= patience) {
        lose_coordinator(Way::kDied, Status(CANARY_COORDINATOR_LOST, "control connection closed"));
      }
    } else if (ended_engines_[coordinator_].left && !gone() && (link_ == nullptr || now - last_heard_ > patience)) {
      lose_coordinator(Way::kLeft, Status(CANARY_CLOSED, "it has left the job"));
    }
    if (way_ == Way::kOpen && now - last_heard_ > patience && silence_counts()) lose_way();
    if (way_ == Way::kLost && now >= round_ends_) {
      // A coordinator that stands still has the last attempt waiting already: more would only give it more to do.
      if (redialled_ && !attempts_.empty() && attempts_.back()->delivers() && now - dialled_at_ < kAnswerPatience) {
        round_ends_ = now + options_.heartbeat_interval;
      } else if (coordinator_ != 0 && refusals_ != 0 && attempts_.empty() &&
                 now - partly_refused_at_ > kPartlyRefused) {
        on_refused();
        refusals_ = 0;
      } else {
        if (refusals_ == 0) partly_refused_at_ = now;
        dial_again(now);
      }
    }
    if (now >= next_beat_) {
      next_beat_ = now + options_.heartbeat_interval;
      if (link_ != nullptr && link_->idle()) link_->send(Heartbeat{});
    }
    for (std::size_t i = 0; i < pending_.size();) {
      if (now < pending_[i].deadline) {
        ++i;
        continue;
      }
      const Pending late = std::move(pending_[i]);
      pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
      notices_.group_failed(
          late.rank, late.cookie,
          failure(CANARY_ENTRY_TIMEOUT,
                  coordinator_text() + ", which hands out groups, gave no answer within " +
                      duration_text(options_.entry_limit),
                  roster_->engines[coordinator_].ranks.front(), roster_->engines[coordinator_].host_name, "entry"));
    }
  }
  return notices_.empty() ? 0 : notices_.tell(listener_, roster_);  // nearly always empty
}

// A coordinator that runs only inside its caller's calls is not lost for being silent.
bool Member::silence_counts() const {
  return phase_ == Phase::kJoined &&
         (!roster_->engines[coordinator_].caller_driven || ended_engines_[coordinator_].left);
}

Nanos Member::next_deadline() const {
  if (abandoned_) return Nanos::max();
  if (!notices_.empty() || !graveyard_.empty()) return now_;
  Nanos next = std::min({next_dial_, join_deadline_, next_beat_, round_ends_});
  if (way_ == Way::kOpen && silence_counts() && !leaving_) {
    next = std::min(next, last_heard_ + options_.heartbeat_interval * 3 + 1_ns);
  }
  for (const Pending& p : pending_) next = std::min(next, p.deadline);
  if (!early_.empty()) next = std::min(next, early_.front().since + kEarlyLimit + 1_ns);
  return leaving_ ? Nanos::max() : next;
}

Nanos Member::last_heard(std::uint32_t engine) const {
  if (phase_ != Phase::kJoined || engine >= heard_.size()) return {};
  // Without a coordinator nobody can tell: what lanes say decides.
  if (engine == me_ || gone()) return now_;
  return engine == coordinator_ ? last_heard_ : heard_[engine];
}

Nanos Member::surely_heard(std::uint32_t engine) const {
  if (phase_ != Phase::kJoined || engine >= heard_.size() || engine == me_ || engine == coordinator_ || gone())
    return last_heard(engine);
  return surely_heard_[engine];
}

}  // namespace canarynet::control
