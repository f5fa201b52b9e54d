#include "control/coordinator.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "control/text.h"
#include "transport/frames.h"
#include "transport/strangers.h"

namespace canarynet::control {

namespace {

constexpr Nanos kNewcomerLimit = 10_s;  // a member says who it is in one breath with its hello
constexpr const char* kRefused = "its process has ended, control connections are refused";

// Two engines of one process differ in the ports of their listeners.
bool same_engine(const EngineInfo& a, const EngineInfo& b) {
  return a.pid == b.pid && a.host_id == b.host_id && a.ranks == b.ranks &&
         std::equal(a.rails.begin(), a.rails.end(), b.rails.begin(), b.rails.end(),
                    [](const Rail& x, const Rail& y) { return x.address == y.address; });
}

}  // namespace

Coordinator::Coordinator(MembershipOptions options, LaneFactory& factory, MembershipListener& listener)
    : options_(std::move(options)),
      factory_(factory),
      listener_(listener),
      attention_(options_.heartbeat_interval),
      joining_(options_),
      desk_(options_.world_size, options_.entry_limit),
      missing_(options_.heartbeat_interval / 2),
      entries_(options_.heartbeat_interval * 3),
      policies_(options_.world_size, options_.epoch_seed),
      roll_call_(options_, factory_) {}

Status Coordinator::start(Nanos now) {
  now_ = now;
  peers_.emplace_back();
  EngineInfo& me = peers_[0].info;
  me.ranks = options_.local_ranks;
  me.host_id = options_.host_id;
  me.host_name = options_.host_name;
  me.pid = options_.pid;
  me.caller_driven = options_.caller_driven;
  me.cores = options_.cores;
  me.rails.assign(factory_.rails().begin(), factory_.rails().end());
  joining_.enter(me);
  phase_ = Phase::kGathering;
  if (joining_.complete()) {
    complete();
    return {};
  }
  if (!options_.coordinator.valid() || options_.coordinator.port == 0) {
    return Status(CANARY_INVALID_SETTING,
                  "the coordinator's address \"" + options_.coordinator.to_string() + "\" needs host and port");
  }
  // On every address of the host, so that a rank whose way to one of them is dead comes back over another.
  Address at = options_.coordinator;
  if (!at.loopback()) at.bytes = {};
  Result<Address> bound = factory_.listen_control(at);
  if (!bound.ok()) return bound.status().wrap("rank 0 cannot listen for the others");
  join_deadline_ = now + options_.join_timeout;
  return {};
}

void Coordinator::succeed(Nanos now, Inheritance inheritance) {
  now_ = now;
  phase_ = Phase::kJoined;
  me_ = inheritance.me;
  roster_ = std::move(inheritance.roster);
  missing_.open(*roster_);
  entries_.open(roster_->engines.size());
  next_beat_ = now;
  gathers_until_ = now + grace();
  policies_.know(roster_);
  desk_.succeed();
  policies_.succeed(gathers_until_);
  peers_.resize(roster_->engines.size());
  for (std::uint32_t e = 0; e < peers_.size(); ++e) {
    Peer& peer = peers_[e];
    peer.info = roster_->engines[e];
    peer.last_heard = now;  // until now it had nobody to speak to
  }
  verdicts_ = std::move(inheritance.verdicts);
  // Nobody is there yet to be told.
  for (std::uint32_t e = 0; e < peers_.size(); ++e) {
    const Ended& ended = inheritance.ended[e];
    if (ended.died) declare_dead(e, ended.why, ended.sure);
    if (ended.left) take_leave(e, ended.words);
  }
  notices_ = {};  // it has been told here
  for (std::uint32_t e = 0; e < peers_.size(); ++e) {
    if (inheritance.passed_over[e]) found_ended(e);
  }
  roll_call_.begin(gathers_until_);
  for (EarlyMember& early : inheritance.early) {
    ControlLink& link = *early.link;
    link.hand_to(*this, now_);
    link.send_hello({.engine = me_, .target = 0, .rail = 0xffff, .peer_rail = 0xffff, .purpose = wire::kHelloControl});
    newcomers_.push_back({std::move(early.link), early.since});
    if (early.asked) readmit(link, early.rejoin);
  }
  std::vector<GroupAnswer> answers;
  const std::vector<int>& mine = peers_[me_].info.ranks;
  desk_.forgotten(mine, inheritance.forgotten);
  for (const OwnGroup& g : inheritance.groups) desk_.recall(now, g.ranks, g.flow, g.members, &answers);
  peers_[me_].last_request = inheritance.last_request;
  for (const OpenRequest& r : inheritance.requests) {
    own_requests_.push_back({r.request, r.cookie});
    desk_.ask(now, me_, r.request, r.rank, r.members, &answers, /*carried=*/true);
  }
  answer(answers);
  report_missed(now, std::move(inheritance.missed));
  for (const GroupEpoch& group : inheritance.questions) ask_entered(now, group);
  for (const std::uint32_t engine : inheritance.given_up) give_up_workers(now, engine);
  for (PolicyWord& word : inheritance.words) say(now, std::move(word));
  peers_[me_].testified = true;
  std::vector<PolicyReply> replies;
  policies_.testified(now, mine, &replies);
  send_replies(replies);
}

std::string Coordinator::my_name() const {
  return "rank " + std::to_string(peers_.empty() ? 0 : peers_[me_].info.ranks.front());
}

Nanos Coordinator::grace() const { return std::max(options_.heartbeat_interval * 5, 500_ms); }

Message Coordinator::to_message(const Status& why) { return to_refuse(why); }

// --- joining ---------------------------------------------------------------------------------------------------------

void Coordinator::adopt(std::unique_ptr<Lane>&& lane, const wire::Header&, const wire::HelloPayload& hello) {
  if (leaving_) {
    auto link = std::make_unique<ControlLink>(*this, now_);
    link->adopt(std::move(lane));
    return bury(std::move(link));
  }
  while (newcomers_.size() >= options_.strangers_max) {
    drop_newcomer(one_to_drop(newcomers_, [](const Newcomer& n) { return n.link->remote(); }));
  }
  // Where memory runs out the lane has an owner all the time: it is inside its callback here.
  auto link = std::make_unique<ControlLink>(*this, now_);
  ControlLink& l = *link;
  newcomers_.push_back({std::move(link), now_});
  l.adopt(std::move(lane));
  l.token = hello.job;
  l.send_hello(
      {.engine = me_, .target = hello.engine, .rail = 0xffff, .peer_rail = 0xffff, .purpose = wire::kHelloControl});
  if (wire::speaks_our_version(hello)) return;
  turn_away(
      l, {},
      failure(CANARY_VERSION, "a rank (" + l.description() + ") speaks protocol version " + wire::version_text(hello) +
                                  ", " + my_name() + " " + std::to_string(wire::kVersion)));
}

// A process that shows the unique id is a member of this job, and without it the job can't form: it fails, for all to
// hear. By address anybody may come: that one alone is told, and remembered in case that its rank never comes.
void Coordinator::turn_away(ControlLink& link, const std::vector<int>& ranks, const Status& why) {
  const bool gathering = phase_ == Phase::kGathering;
  if (gathering && options_.join_token != 0 && link.token == options_.join_token) return fail(why);
  refuse(link, why);
  if (gathering && joining_.remember(ranks, why)) {
    log(LogLevel::kWarn, "turned away: %s", why.text().c_str());
  } else {
    refused_warning_.say(now_, "turned away: " + why.text());
  }
}

// It may be a member, in whose eyes a connection that just ends would be this process's end: it comes again.
void Coordinator::drop_newcomer(std::size_t index) {
  newcomers_[index].link->send(Retract{});
  bury(std::move(newcomers_[index].link));
  newcomers_.erase(newcomers_.begin() + static_cast<std::ptrdiff_t>(index));
}

std::unique_ptr<ControlLink> Coordinator::take_newcomer(ControlLink& link) {
  const auto found =
      std::find_if(newcomers_.begin(), newcomers_.end(), [&](const Newcomer& n) { return n.link.get() == &link; });
  if (found == newcomers_.end()) return nullptr;
  auto taken = std::move(found->link);
  newcomers_.erase(found);
  return taken;
}

void Coordinator::admit(ControlLink& link, Join& join) {
  // Somebody of another job: it is told, and this job does not mind.
  if (const Status strange = joining_.check_token(link.token, join.engine); !strange.ok())
    return turn_away(link, join.engine.ranks, strange);
  if (phase_ == Phase::kFailed) return refuse(link, failure_);
  if (phase_ == Phase::kJoined) {
    return refuse(link, failure(CANARY_JOIN, engine_text(join.engine) + " came after the job had started"));
  }
  // The same engine again: its first connection failed on its own side.
  for (std::size_t e = 1; e < peers_.size(); ++e) {
    Peer& peer = peers_[e];
    if (!same_engine(peer.info, join.engine)) continue;
    link.entry = static_cast<int>(e);
    bury(std::move(peer.link));
    peer.link = take_newcomer(link);
    peer.ended = false;
    if (joining_.come_back(e) && joining_.complete()) complete();
    return;
  }
  if (const Status wrong = joining_.check(join); !wrong.ok()) return turn_away(link, join.engine.ranks, wrong);
  joining_.enter(join.engine);
  link.entry = static_cast<int>(peers_.size());
  Peer& peer = peers_.emplace_back();
  peer.info = std::move(join.engine);
  // It knows its port, and we from where it comes: perhaps over a network of none of its NICs.
  if (const std::uint16_t port = peer.info.control.port; port != 0) {
    peer.info.control = link.remote();
    peer.info.control.port = port;
    peer.info.control.prefix_bits = 0;
  }
  peer.link = take_newcomer(link);
  peer.last_heard = now_;
  log(LogLevel::kDebug, "%s has joined: %d of %d ranks are there", engine_text(peer.info).c_str(), joining_.there(),
      options_.world_size);
  if (joining_.complete()) complete();
}

// A roster said on its connection would be lost: the job waits until it has joined again.
void Coordinator::mislay(const Peer& peer) {
  if (phase_ == Phase::kGathering) joining_.leave(static_cast<std::size_t>(&peer - peers_.data()));
}

void Coordinator::complete() {
  std::sort(peers_.begin(), peers_.end(),
            [](const Peer& a, const Peer& b) { return a.info.ranks.front() < b.info.ranks.front(); });
  CANARY_CHECK(options_.job_token != 0, "a job's token must be drawn");
  roster_->job = options_.job_token;
  roster_->epoch_seed = options_.epoch_seed;
  roster_->world_size = options_.world_size;
  roster_->engine_of.assign(static_cast<std::size_t>(options_.world_size), 0);
  roster_->piece_bytes = options_.piece_bytes;
  for (std::size_t e = 0; e < peers_.size(); ++e) {
    peers_[e].info.engine = static_cast<std::uint32_t>(e);
    if (peers_[e].link) peers_[e].link->entry = static_cast<int>(e);
    peers_[e].last_heard = Nanos::max();  // now: before the join nobody had to speak
    for (const int rank : peers_[e].info.ranks)
      roster_->engine_of[static_cast<std::size_t>(rank)] = static_cast<int>(e);
    roster_->engines.push_back(peers_[e].info);
  }
  roster_->pairing = settled_pairing(options_.pairing, roster_->rails_of_ranks(), roster_->engine_of);
  missing_.open(*roster_);
  entries_.open(roster_->engines.size());
  policies_.know(roster_);
  log(LogLevel::kInfo, "all %d ranks are there, in %zu processes", options_.world_size, peers_.size());
  phase_ = Phase::kJoined;
  join_deadline_ = Nanos::max();
  next_beat_ = now_ + options_.heartbeat_interval;
  notices_.joined();

  Welcome part;
  part.job = roster_->job;
  part.epoch_seed = roster_->epoch_seed;
  part.world_size = static_cast<std::uint32_t>(roster_->world_size);
  part.engines = static_cast<std::uint32_t>(roster_->engines.size());
  part.piece_bytes = roster_->piece_bytes.count;
  for (std::size_t e = 0; e < roster_->engines.size() && peers_.size() > 1;) {
    part.first = static_cast<std::uint32_t>(e);
    part.part.clear();
    for (std::size_t bytes = 0; e < roster_->engines.size() && bytes < kWelcomeBytes; ++e) {
      part.part.push_back(roster_->engines[e]);
      bytes += welcome_bytes(roster_->engines[e]);
    }
    tell_all(part, me_);
  }
}

void Coordinator::fail(const Status& why) {
  phase_ = Phase::kFailed;
  failure_ = why;
  join_deadline_ = Nanos::max();
  for (const Peer& peer : peers_) {
    if (peer.link) refuse(*peer.link, why);
  }
  for (const Newcomer& newcomer : newcomers_) refuse(*newcomer.link, why);
  notices_.join_failed(why);
}

// --- links -----------------------------------------------------------------------------------------------------------

void Coordinator::on_link_message(ControlLink& link, Message& message) {
  if (link.entry < 0) {
    if (auto* join = std::get_if<Join>(&message)) return admit(link, *join);
    if (auto* rejoin = std::get_if<Rejoin>(&message)) return readmit(link, *rejoin);
    return on_link_broken(link, Status(CANARY_SYSTEM, "a control connection begins with join"));
  }
  const auto from = static_cast<std::uint32_t>(link.entry);
  Peer& peer = peers_[from];
  if (std::holds_alternative<Retract>(message)) {
    link.retracted = true;  // another is on its way
    mislay(peer);
    return;
  }
  if (phase_ != Phase::kJoined || peer.dead) return;
  if (auto* request = std::get_if<GroupRequest>(&message)) {
    std::erase_if(peer.answers, [&](const GroupAnswer& a) { return a.request < request->settled; });
    if (request->request <= peer.last_request) {
      // Asked again after a rejoin. If the answer is known it was lost; else it will come.
      for (const GroupAnswer& a : peer.answers) {
        if (a.request == request->request) send_answer(a);
      }
      return;
    }
    peer.last_request = request->request;
    const int rank = static_cast<int>(request->rank);
    std::vector<GroupAnswer> answers;
    if (std::find(peer.info.ranks.begin(), peer.info.ranks.end(), rank) == peer.info.ranks.end()) {
      answers.push_back(
          {from, request->request, rank, 0, Status(CANARY_INVALID_ARGUMENT, "asked for another engine's rank")});
    } else {
      desk_.ask(now_, from, request->request, rank, request->members, &answers,
                /*carried=*/succeeds() && !peer.testified);
    }
    answer(answers);
  } else if (auto* note = std::get_if<VerdictNote>(&message)) {
    if (!verdicts_.add(note->verdict)) return;
    spread(note->verdict, from);
    if (!leaving_) notices_.verdict(note->verdict);
  } else if (auto* report = std::get_if<MissReport>(&message)) {
    missing_.report(now_, from, std::move(report->missed));
  } else if (auto* question = std::get_if<EntryQuestion>(&message)) {
    ask_entered(now_, question->group);
  } else if (auto* state = std::get_if<EntryState>(&message)) {
    entries_.answer(from, state->entered);
  } else if (auto* wanted = std::get_if<ConnectRequest>(&message)) {
    pass_on(*wanted, from);
  } else if (auto* word = std::get_if<PolicyWord>(&message)) {
    const auto& ranks = peer.info.ranks;
    if (std::find(ranks.begin(), ranks.end(), static_cast<int>(word->rank)) == ranks.end()) return;
    std::vector<PolicyReply> replies;
    policies_.hear(now_, *word, &replies);
    send_replies(replies);
  } else if (auto* leave = std::get_if<Leave>(&message)) {
    take_leave(from, std::move(leave->words));
  } else if (succeeds()) {
    take_testimony(from, message);
  }
}

void Coordinator::take_leave(std::uint32_t engine, std::vector<LastWord> words) {
  Peer& peer = peers_[engine];
  if (peer.left) return;
  peer.left = true;
  peer.words = std::move(words);
  missing_.forget(engine);
  entries_.forget(engine);
  tell_all(Left{engine, peer.words}, engine);
  if (!leaving_) notices_.left(engine, peer.words);
  ranks_gone(peer.info.ranks, failure(CANARY_CLOSED, engine_text(peer.info) + " has left the job",
                                      peer.info.ranks.front(), peer.info.host_name, "entry"));
}

// What a coordinator before this one has told.
void Coordinator::take_testimony(std::uint32_t from, const Message& message) {
  // The word of others does not count against one that has come itself since.
  const auto is_away = [&](std::uint32_t e) {
    return e < peers_.size() && e != me_ && !peers_[e].dead && !peers_[e].left && peers_[e].last_attempt == 0;
  };
  Peer& peer = peers_[from];
  if (const auto* death = std::get_if<Death>(&message)) {
    if (is_away(death->engine)) declare_dead(death->engine, death->why, death->sure);
  } else if (const auto* left = std::get_if<Left>(&message)) {
    if (is_away(left->engine)) take_leave(left->engine, left->words);
  } else if (const auto* known = std::get_if<GroupKnown>(&message)) {
    const auto is_its = [&](int rank) {
      return std::find(peer.info.ranks.begin(), peer.info.ranks.end(), rank) != peer.info.ranks.end();
    };
    if (!std::all_of(known->ranks.begin(), known->ranks.end(), is_its)) return;
    if (peer.testified) return;  // it had told already, and the rest is of this coordinator
    std::vector<GroupAnswer> answers;
    desk_.recall(now_, known->ranks, known->flow, known->members, &answers);
    answer(answers);
  } else if (std::holds_alternative<Testified>(message)) {
    peer.testified = true;
    const auto owes = [&](const Peer& p) { return !p.testified && !p.dead && !p.left; };
    if (std::none_of(peers_.begin(), peers_.end(), owes)) gathers_until_ = {};
    std::vector<PolicyReply> replies;
    policies_.testified(now_, peer.info.ranks, &replies);
    send_replies(replies);
  }
}

void Coordinator::on_link_down(ControlLink& link, const Status& reason, bool hangup) {
  if (link.entry < 0) {
    if (std::unique_ptr<ControlLink> newcomer = take_newcomer(link); newcomer != nullptr) {
      if (!hangup) link.send(Retract{});
      bury(std::move(newcomer));
    }
    return;
  }
  Peer& peer = peers_[static_cast<std::size_t>(link.entry)];
  // Deaf, or given up by the network (ETIMEDOUT, EHOSTUNREACH): no proof that its process has ended.
  if (!hangup && !peer.left) return on_link_broken(link, reason);
  const bool was_heard = link.heard;
  bury(std::move(peer.link));
  switch (phase_) {
    case Phase::kGathering:
      if (link.retracted || joining_.away(static_cast<std::size_t>(link.entry))) {
        mislay(peer);  // it dials again, and is known by its process
        return;
      }
      return fail(failure(CANARY_PEER_DIED,
                          engine_text(peer.info) + " ended while the job was joining: " + reason.text(),
                          peer.info.ranks.front(), peer.info.host_name));
    case Phase::kJoined:
      if (peer.left || peer.dead) return;
      peer.ended = !link.retracted;
      peer.heard_since_beat |= was_heard;
      if (was_heard) peer.last_heard = Nanos::max();  // just now: poll() knows the time
      return;
    case Phase::kIdle:
    case Phase::kFailed:
      return;
  }
}

void Coordinator::on_link_broken(ControlLink& link, const Status& reason) {
  // After the join it may be a member on its way back, which is not to blame for what the way did to its REJOIN.
  if (link.entry < 0 && phase_ != Phase::kJoined) return refuse(link, reason);
  link.send(Retract{});  // it comes back over a new connection; the end of this one would look like ours
  if (link.entry >= 0) mislay(peers_[static_cast<std::size_t>(link.entry)]);
}

void Coordinator::readmit(ControlLink& link, const Rejoin& rejoin) {
  if (phase_ != Phase::kJoined || rejoin.job != roster_->job || rejoin.engine == me_ ||
      rejoin.engine >= peers_.size()) {
    return refuse(link, failure(CANARY_JOIN, my_name() + " coordinates another job"));
  }
  if (rejoin.coordinator != me_) return link.send(Retract{});
  Peer& peer = peers_[rejoin.engine];
  if (peer.dead) {
    return refuse(link, failure(CANARY_PEER_DIED, engine_text(peer.info) + " was declared dead: " + peer.why_dead,
                                peer.info.ranks.front(), peer.info.host_name, "exchange"));
  }
  if (peer.left || rejoin.attempt <= peer.last_attempt) return;  // overtaken by a later attempt
  peer.last_attempt = rejoin.attempt;
  peer.ended = false;
  peer.suspect_until = Nanos::max();
  bury(std::move(peer.link));  // its end is no death
  link.entry = static_cast<int>(rejoin.engine);
  peer.link = take_newcomer(link);
  peer.link->send(Rejoined{rejoin.attempt});
  if (succeeds() && !peer.testified) desk_.forgotten(peer.info.ranks, rejoin.forgotten);
  // The old connection may have lost these words. All of them may be repeated.
  for (std::uint32_t e = 0; e < peers_.size(); ++e) {
    if (e == rejoin.engine) continue;
    if (peers_[e].dead) peer.link->send(Death{e, peers_[e].why_dead, peers_[e].surely_dead});
    if (peers_[e].left || (e == me_ && leaving_)) peer.link->send(Left{e, peers_[e].words});
  }
  for (const GroupEpoch& group : entries_.questions()) peer.link->send(EntryQuestion{group});
  for (const Verdict& v : verdicts_.all()) peer.link->send(VerdictNote{v});
  std::vector<PolicyReply> replies;
  policies_.repeat(peer.info.ranks, &replies);
  send_replies(replies);
}

void Coordinator::tell_all(const Message& message, std::uint32_t except) {
  const Bytestring bytes = share(message);
  for (std::uint32_t e = 0; e < peers_.size(); ++e) {
    if (e != except && peers_[e].link != nullptr && !peers_[e].left) peers_[e].link->send(bytes);
  }
}

// --- deaths, verdicts, groups ----------------------------------------------------------------------------------------

void Coordinator::judge_ended(Nanos now) {
  next_judgement_ = Nanos::max();
  for (std::uint32_t e = 0; e < peers_.size(); ++e) {
    Peer& peer = peers_[e];
    if (peer.ended) {
      peer.ended = false;
      if (now - peer.last_heard <= options_.heartbeat_interval * 3) {
        declare_dead(e, "control connection closed");
      } else if (peer.suspect_until == Nanos::max()) {
        peer.suspect_until = now + grace();
      }
    } else if (now >= peer.suspect_until) {
      declare_dead(e, "control connection closed after a silence");
    }
    next_judgement_ = std::min(next_judgement_, peer.suspect_until);
  }
}

void Coordinator::declare_dead(std::uint32_t engine, const std::string& why, bool sure) {
  Peer& peer = peers_[engine];
  peer.dead = true;
  peer.surely_dead = sure;
  peer.why_dead = why;
  missing_.forget(engine);
  entries_.forget(engine);
  peer.suspect_until = Nanos::max();
  bury(std::move(peer.link));
  tell_all(Death{engine, why, sure}, engine);
  if (!leaving_) notices_.died(engine, why, sure);
  ranks_gone(peer.info.ranks, failure(CANARY_PEER_DIED, engine_text(peer.info) + " died: " + why,
                                      peer.info.ranks.front(), peer.info.host_name, "entry"));
}

void Coordinator::call_absent(Nanos now) {
  const auto absent = [&](std::uint32_t e) {
    return e != me_ && !peers_[e].dead && !peers_[e].left && peers_[e].last_attempt == 0;
  };
  std::vector<std::uint32_t> ended;
  roll_call_.poll(now, roster_->engines, absent, &ended);
  for (const std::uint32_t e : ended) found_ended(e);
}

void Coordinator::found_ended(std::uint32_t engine) {
  const Peer& peer = peers_[engine];
  if (!peer.dead && !peer.left && peer.last_attempt == 0 && !listener_.stands(engine))
    declare_dead(engine, kRefused, /*sure=*/false);
}

// Nothing waits for them any more.
void Coordinator::ranks_gone(const std::vector<int>& ranks, const Status& why) {
  std::vector<GroupAnswer> answers;
  desk_.ranks_gone(ranks, why, &answers);
  answer(answers);
  std::vector<PolicyReply> replies;
  policies_.ranks_gone(now_, ranks, &replies);
  send_replies(replies);
}

void Coordinator::spread(const Verdict& verdict, std::uint32_t from) { tell_all(VerdictNote{verdict}, from); }

void Coordinator::flood(const Verdict& verdict) {
  if (phase_ == Phase::kJoined && verdicts_.add(verdict)) spread(verdict, me_);
}

void Coordinator::report_missed(Nanos now, std::vector<Missed> missed) {
  now_ = now;
  if (phase_ == Phase::kJoined) missing_.report(now, me_, std::move(missed));
}

void Coordinator::ask_entered(Nanos now, GroupEpoch group) {
  now_ = now;
  if (phase_ != Phase::kJoined || leaving_ || !entries_.ask(now, group)) return;
  tell_all(EntryQuestion{group}, me_);
  notices_.entry_question(group);
}

void Coordinator::tell_entered(Nanos now, const Entered& entered) {
  now_ = now;
  if (phase_ == Phase::kJoined) entries_.answer(me_, entered);
}

void Coordinator::ask_to_connect(Nanos now, std::uint32_t engine) {
  now_ = now;
  if (phase_ == Phase::kJoined && !leaving_) pass_on(ConnectRequest{engine}, me_);
}

// Tells the engine that the request names who made it. One that has ended, is on its way back or does not read (it is
// stopped, perhaps) is told nothing: whoever still waits asks again, and thousands of requests would fill its link for
// good.
void Coordinator::pass_on(const ConnectRequest& request, std::uint32_t from) {
  if (request.engine >= peers_.size() || request.engine == from) return;
  if (request.engine == me_) {
    if (!leaving_) notices_.connect_wanted(from);
    return;
  }
  const Peer& peer = peers_[request.engine];
  if (peer.link != nullptr && !peer.left && peer.link->idle()) peer.link->send(ConnectRequest{from});
}

void Coordinator::request_group(Nanos now, int local_rank, std::vector<int> members, std::uint64_t cookie) {
  now_ = now;
  if (phase_ != Phase::kJoined || leaving_) {
    return notices_.group_failed(local_rank, cookie,
                                 Status(CANARY_CLOSED, leaving_ ? "this rank has left the job" : "not joined"));
  }
  const std::uint32_t request = ++peers_[me_].last_request;
  own_requests_.push_back({request, cookie});
  std::vector<GroupAnswer> answers;
  desk_.ask(now, me_, request, local_rank, members, &answers);
  answer(answers);
}

void Coordinator::answer(std::vector<GroupAnswer>& answers) {
  for (GroupAnswer& a : answers) {
    if (a.engine != me_) {
      send_answer(a);
      peers_[a.engine].answers.push_back(std::move(a));
      continue;
    }
    const auto own = std::find_if(own_requests_.begin(), own_requests_.end(),
                                  [&](const OwnRequest& r) { return r.request == a.request; });
    if (own == own_requests_.end()) continue;
    if (a.flow != 0) {
      notices_.group(a.rank, own->cookie, a.flow);
    } else {
      notices_.group_failed(a.rank, own->cookie, a.why);
    }
    own_requests_.erase(own);
  }
}

void Coordinator::send_answer(const GroupAnswer& a) {
  ControlLink* link = peers_[a.engine].link.get();
  if (link == nullptr) return;
  if (a.flow != 0) return link->send(GroupCreated{a.request, a.flow});
  link->send(GroupFailed{a.request, a.why.code(), a.why.detail().rank, a.why.detail().host, a.why.text()});
}

void Coordinator::say(Nanos now, PolicyWord word) {
  now_ = now;
  if (phase_ != Phase::kJoined || leaving_) return;
  std::vector<PolicyReply> replies;
  policies_.hear(now, word, &replies);
  send_replies(replies);
}

void Coordinator::give_up_workers(Nanos now, std::uint32_t engine) {
  now_ = now;
  if (phase_ != Phase::kJoined || leaving_) return;
  std::vector<PolicyReply> replies;
  policies_.ranks_gone(now, peers_[engine].info.ranks, &replies);
  send_replies(replies);
}

void Coordinator::send_replies(std::vector<PolicyReply>& replies) {
  for (PolicyReply& reply : replies) {
    const auto engine = static_cast<std::uint32_t>(roster_->engine_of[reply.rank]);
    if (engine == me_) {
      notices_.policy_reply(std::move(reply));
    } else if (ControlLink* link = peers_[engine].link.get(); link != nullptr) {
      link->send(std::move(reply));
    }
  }
}

// --- time ------------------------------------------------------------------------------------------------------------

void Coordinator::beat(Nanos now) {
  next_beat_ = now + options_.heartbeat_interval;
  Heartbeat heartbeat;
  heartbeat.heard.resize((peers_.size() + 63) / 64);
  heartbeat.heard[me_ / 64] |= std::uint64_t{1} << (me_ % 64);
  for (std::size_t e = 0; e < peers_.size(); ++e) {
    if (peers_[e].heard_since_beat) heartbeat.heard[e / 64] |= std::uint64_t{1} << (e % 64);
    peers_[e].heard_since_beat = false;
  }
  const Bytestring bytes = share(heartbeat);
  for (Peer& peer : peers_) {
    if (peer.link != nullptr && !peer.left && peer.link->idle()) peer.link->send(bytes);
  }
}

std::size_t Coordinator::poll(Nanos now) {
  const Nanos missed = attention_.missed(now);
  now_ = now;
  graveyard_.clear();
  // Most polls bring nothing, and a job may have thousands of peers.
  const bool look = std::exchange(news, false) || missed.count != 0;
  for (Peer& peer : std::span(peers_).first(look ? peers_.size() : 0)) {
    peer.last_heard = peer.last_heard == Nanos::max() ? now : peer.last_heard + missed;
    if (peer.suspect_until != Nanos::max()) peer.suspect_until += missed;
    if (peer.link == nullptr || !peer.link->heard) continue;
    peer.link->heard = false;
    peer.last_heard = now;
    peer.heard_since_beat = true;
  }
  while (!newcomers_.empty() && now - newcomers_.front().since > kNewcomerLimit) drop_newcomer(0);
  if (phase_ == Phase::kGathering && now >= join_deadline_) {
    fail(joining_.incomplete(factory_.trouble()));
  }
  if (phase_ == Phase::kJoined) {
    if (look || now >= next_judgement_) judge_ended(now);
    if (now >= next_beat_) beat(now);
    if (now >= roll_call_.next_deadline()) call_absent(now);
    if (now >= std::max(missing_.next_deadline(), gathers_until_)) {
      for (const Verdict& v : missing_.poll(now)) {
        flood(v);
        if (!leaving_) notices_.verdict(v);
      }
    }
    if (now >= entries_.next_deadline()) {
      for (Entered& entered : entries_.poll(now)) {
        tell_all(EntryState{entered}, me_);
        if (!leaving_) notices_.entered(std::move(entered));
      }
    }
    if (now >= policies_.next_deadline()) {
      std::vector<PolicyReply> replies;
      policies_.poll(now, &replies);
      send_replies(replies);
    }
    if (now >= desk_.next_deadline()) {
      std::vector<GroupAnswer> answers;
      desk_.poll(now, &answers);
      answer(answers);
    }
  }
  return notices_.empty() ? 0 : notices_.tell(listener_, roster_);  // nearly always empty
}

Nanos Coordinator::next_deadline() const {
  if (abandoned_) return Nanos::max();
  if (!notices_.empty() || !graveyard_.empty()) return now_;
  Nanos next = std::min({join_deadline_, next_beat_, next_judgement_, desk_.next_deadline(), roll_call_.next_deadline(),
                         std::max(missing_.next_deadline(), gathers_until_), entries_.next_deadline(),
                         policies_.next_deadline()});
  if (!newcomers_.empty()) next = std::min(next, newcomers_.front().since + kNewcomerLimit + 1_ns);
  return next;
}

Nanos Coordinator::last_heard(std::uint32_t engine) const {
  if (phase_ != Phase::kJoined || engine >= peers_.size()) return {};
  if (engine == me_) return now_;
  return peers_[engine].last_heard == Nanos::max() ? now_ : peers_[engine].last_heard;
}

void Coordinator::abandon() noexcept {
  abandoned_ = true;
  phase_ = Phase::kFailed;
  for (Peer& peer : peers_) peer.link.reset();
  newcomers_.clear();
  roll_call_.abandon();
  graveyard_.clear();
}

void Coordinator::leave(Nanos now, std::vector<LastWord> words) {
  now_ = now;
  if (leaving_) return;
  leaving_ = true;
  if (peers_.empty()) return;
  Peer& mine = peers_[me_];
  mine.words = std::move(words);
  if (phase_ == Phase::kJoined) tell_all(Left{me_, mine.words}, me_);
  ranks_gone(mine.info.ranks, failure(CANARY_CLOSED, engine_text(mine.info) + " has left the job",
                                      mine.info.ranks.front(), options_.host_name, "entry"));
}

}  // namespace canarynet::control
