// The composition: joining, accepting lanes, groups, and the poll loop.
#include "engine/engine.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_map>

#include "base/check.h"
#include "base/log.h"
#include "base/serial.h"
#include "engine/policy_post.h"
#include "engine/session.h"

namespace canarynet {
namespace {

constexpr Nanos kFarewellLimit = 1_s;
// For the peer to begin what this engine has begun, and to dial for its own sake.
constexpr Nanos kAskAfter = 5_ms;
constexpr std::size_t kCommands = 256;
// Memory to memory between local ranks before lanes are looked at again: some 200 us.
constexpr std::uint64_t kLocalBytesPerCycle = 1 << 20;

}  // namespace

Engine::Engine(const EngineOptions& options, LaneFactory& factory)
    : Engine(options, std::make_shared<SharedRails>(factory, options.strangers_max)) {}

Engine::Engine(EngineOptions options, std::shared_ptr<SharedRails> rails)
    : options_(std::move(options)),
      rails_(std::move(rails)),
      factory_(rails_->factory),
      greeter_(rails_->greeter),
      everybody_(options_.settings, {options_.channel_records, options_.channel_copies}, *rails_),
      watch_(options_.settings, everybody_, *this),
      commands_(kCommands),
      messages_(*this) {
  greeter_.serve(*this);
}

Engine::~Engine() { greeter_.leave(*this); }

Status Engine::start(Nanos now) {
  now_ = now;
  const Settings& s = options_.settings;
  auto decisions = DecisionTable::parse(s.algo);
  if (!decisions.ok()) {
    return Status(CANARY_INVALID_SETTING, "CANARY_ALGO=\"" + s.algo + "\": " + decisions.status().text());
  }
  decisions_ = std::move(decisions.value());
  if (Status st = kernels_status(); !st.ok()) return st;
  MembershipOptions m;
  m.coordinator = options_.coordinator;
  m.coordinator_others = options_.coordinator_others;
  m.join_token = options_.join_token;
  m.world_size = options_.world_size;
  m.local_ranks = options_.local_ranks;
  m.host_id = options_.host_id;
  m.host_name = options_.host_name;
  m.pid = options_.pid;
  m.caller_driven = !s.progress_thread;
  m.cores = options_.cores;
  m.join_timeout = s.join_timeout;
  m.heartbeat_interval = s.heartbeat_interval;
  m.entry_limit = s.entry_limit;
  m.piece_bytes = s.piece_bytes;
  m.must_agree = s.must_agree();
  m.pairing = parse_rail_pairing(s.rail_pairing).value_or(RailPairing::kAuto);
  m.strangers_max = options_.strangers_max;
  m.job_token = options_.job_token;
  m.epoch_seed = options_.epoch_seed;
  membership_ = make_membership(std::move(m), factory_, *this);
  return membership_->start(now);
}

// --- joining ---------------------------------------------------------------------------------------------------------

void Engine::on_join_failed(const Status& why) {
  if (join_status_.ok()) join_status_ = why;
}

void Engine::on_joined(std::shared_ptr<const Roster> roster) {
  roster_ = std::move(roster);
  joined_ = true;
  my_engine_ = static_cast<std::uint32_t>(roster_->engine_of[static_cast<std::size_t>(options_.local_ranks.front())]);

  reach_ = std::make_shared<const Reachability>(
      Reachability::from_rails(roster_->rails_of_ranks(), roster_->engine_of, roster_->pairing));
  std::unordered_map<std::string_view, int> first_on_host;
  std::vector<int> host_of_engine;
  for (const EngineInfo& e : roster_->engines)
    host_of_engine.push_back(first_on_host.emplace(e.host_id, static_cast<int>(e.engine)).first->second);
  for (const int e : roster_->engine_of) host_of_.push_back(host_of_engine[static_cast<std::size_t>(e)]);

  watch_.set_host(roster_->engines[my_engine_].host_id, options_.pulse_of);
  peers_.resize(roster_->engines.size());
  for (std::uint32_t e = 0; e < peers_.size(); ++e) {
    peers_[e].number = e;
    if (e == my_engine_) continue;
    meet(peers_[e]);
    if (connects_at_join(e)) peers_[e].awaited = open(peers_[e]);
  }
  std::vector<int> everybody(static_cast<std::size_t>(roster_->world_size));
  for (int r = 0; r < roster_->world_size; ++r) everybody[static_cast<std::size_t>(r)] = r;
  add_group(kWorldFlow, std::move(everybody));
  check_ready();
}

// A small job connects everybody at once, which proves every link before the first operation. A large one connects only
// neighbours in the order of ranks, which every ring needs: they prove that NICs, routes and ports are right.
bool Engine::connects_at_join(std::uint32_t engine) const {
  const std::size_t all = peers_.size();
  if (all <= static_cast<std::size_t>(options_.settings.connect_at_join)) return true;
  const std::size_t apart = engine > my_engine_ ? engine - my_engine_ : my_engine_ - engine;
  return apart == 1 || apart == all - 1;
}

void Engine::meet(EnginePeer& p) {
  const EngineInfo& info = roster_->engines[p.number];
  p.label = "rank " + std::to_string(info.ranks.front());
  if (info.ranks.size() > 1) p.label += "-" + std::to_string(info.ranks.back());
  p.host = info.host_id;
  p.pid = info.pid;
  p.neighbour = watch_.sees_pulses() && host_of_engine(p.number) == host_of_engine(my_engine_);
  p.speaks = !info.caller_driven;
  everybody_.add(p, now_);
}

// The channel to it is made on first use, by whichever of the two needs it first. The lower number dials: the other one
// asks over control if nothing came of its own accord, as it does where both begin the same operation. False: the two
// share no rail.
bool Engine::open(EnginePeer& p) {
  if (p.channel) return true;
  if (abandoned_) return false;
  const EngineInfo& info = roster_->engines[p.number];
  const auto& mine = roster_->engines[my_engine_].rails;
  ChannelOptions c;
  c.paths = everybody_.paths(mine, info.rails, roster_->pairing);
  if (c.paths.empty()) return false;
  c.job = roster_->job;
  c.my_engine = my_engine_;
  c.peer_engine = p.number;
  c.dialer = my_engine_ < p.number;
  c.piece_bytes = roster_->piece_bytes;
  const auto eager_bytes = static_cast<std::size_t>(options_.settings.eager_bytes.count);
  p.eager = std::make_unique<EagerStore>(eager_bytes, EagerStore::Keeps::kOperations);
  p.debts = std::make_unique<HashedBag<EagerDebt>>();
  p.debts->reserve(eager_bytes / EagerStore::kBlock);
  const bool dialled_from_there = !c.dialer;
  everybody_.connect(p, std::move(c), &flows_, newcomers_, *this, mine, info.rails, now_);
  if (dialled_from_there && !p.ended() && !connects_at_join(p.number)) {
    p.next_ask = now_ + kAskAfter;
    asking_.push_back(p.number);
    next_housekeeping_ = std::min(next_housekeeping_, p.next_ask);
  }
  return true;
}

void Engine::ask_to_be_dialled(Nanos now) {
  knocker_.sweep(now);
  const std::uint32_t coordinator = membership_->coordinator();
  const bool nobody_passes_it_on = peers_[coordinator].ended() || now - membership_->last_heard(coordinator) >
                                                                      options_.settings.heartbeat_interval * 3;
  std::erase_if(asking_, [&](std::uint32_t e) {
    EnginePeer& p = peers_[e];
    if (!p.channel->ever_up() && !p.ended() && !farewell_said_) {
      if (now < p.next_ask) return false;
      membership_->ask_to_connect(now, e);
      if (nobody_passes_it_on) knock(p, now);
      // The longer it has not come, the less a further request helps. A channel that never was up was opened then.
      const Nanos waited = now - p.channel->last_heard();
      p.next_ask = now + std::clamp(waited / 2, options_.settings.heartbeat_interval, Nanos{2_s});
      return false;
    }
    p.next_ask = Nanos::max();
    return true;
  });
  for (const std::uint32_t e : asking_) next_housekeeping_ = std::min(next_housekeeping_, peers_[e].next_ask);
}

// On all its rails, some of which may be dark.
void Engine::knock(const EnginePeer& p, Nanos now) {
  for (const Path& path : p.channel->paths()) {
    const PathSpec& spec = path.spec;
    if (spec.lane_index != 0) continue;
    wire::HelloPayload hello;
    hello.job = roster_->job;
    hello.engine = my_engine_;
    hello.target = p.number;
    hello.rail = static_cast<std::uint16_t>(spec.local_rail);
    hello.peer_rail = static_cast<std::uint16_t>(spec.remote_rail);
    hello.purpose = wire::kHelloChannel;
    knocker_.knock(hello, spec.remote, now);
  }
}

void Engine::on_connect_wanted(std::uint32_t engine) {
  if (engine >= peers_.size() || engine == my_engine_ || farewell_said_ || peers_[engine].ended()) return;
  open(peers_[engine]);
}

void Engine::check_ready() {
  if (ready_ || !joined_ || !join_status_.ok()) return;
  for (std::uint32_t e = 0; e < peers_.size(); ++e) {
    const EnginePeer& p = peers_[e];
    if (!p.awaited || p.gone || p.channel->ever_up()) continue;
    if (now_ - p.met > options_.settings.join_timeout) {
      ErrorDetail d;
      d.rank = roster_->engines[e].ranks.front();
      d.host = roster_->engines[e].host_name;
      d.device = p.channel->describe_paths();
      d.phase = "join";
      join_status_ =
          Status(CANARY_NO_PATH,
                 "no lane to " + ranks_text(e) + " could be opened over " + d.device + everybody_.no_lane(p).why, d);
    }
    return;
  }
  ready_ = true;
}

int Engine::ranks_on_this_host() const {
  if (host_of_.empty()) return static_cast<int>(options_.local_ranks.size());
  const int host = host_of_[static_cast<std::size_t>(options_.local_ranks.front())];
  return static_cast<int>(std::count(host_of_.begin(), host_of_.end(), host));
}

void Engine::on_hello(std::unique_ptr<Lane>& lane, const wire::Header& h, const wire::HelloPayload& hello) {
  if (hello.purpose == wire::kHelloControl) {
    if (lane->rail() != kControlRail) return greeter_.turn_away(*lane, "a member's hello, where lanes are taken");
    membership_->adopt(std::move(lane), h, hello);
    return;
  }
  if (!joined_) return;  // before our own roster has come the dialling side simply tries again
  if (hello.job != roster_->job || hello.target != my_engine_ || hello.engine >= peers_.size())
    return greeter_.turn_away(*lane, "of another job");
  EnginePeer& peer = peers_[hello.engine];
  // A peer whose last operation needs this engine may come until the farewell, which goes over all channels.
  if (peer.gone || (farewell_said_ && !peer.channel)) return;
  if (hello.engine == my_engine_ || !open(peer))
    return greeter_.turn_away(*lane, "no rail leads to the rank that it says it is");
  if (peer.channel->dials()) return;  // it knocks, and is dialled from here now
  if (const char* why = peer.channel->adopt(lane, hello, now_); why != nullptr) greeter_.turn_away(*lane, why);
}

// --- heartbeats ------------------------------------------------------------------------------------------------------

// Beats take turns over (group, rank): what this engine knows of who entered which operation, its own ranks' and
// others'. Ranks that share no rail learn of each other this way.
void Engine::fill_heartbeat(Mux& to, wire::Header* h) {
  std::uint32_t entries = 0;
  for (const auto& g : groups_) entries += static_cast<std::uint32_t>(g->members.size());
  if (entries == 0) return;
  std::uint32_t turn = peers_[to.peer()].beat_turn++ % entries;
  for (const auto& g : groups_) {
    if (turn >= g->members.size()) {
      turn -= static_cast<std::uint32_t>(g->members.size());
      continue;
    }
    h->flow = g->flow;
    h->epoch = g->epoch;
    h->source = static_cast<std::uint16_t>(turn);
    h->op = g->entered[turn];
    return;
  }
}

// The last word on what the ranks served here have entered: later beats won't come, and who has left without calling is
// an error.
void Engine::tell_entered(Channel& channel, const Group& g, Nanos now) {
  wire::HeartbeatPayload beat;
  beat.sent_ns = static_cast<std::uint64_t>(now.count);
  wire::Header h;
  h.kind = wire::Kind::kHeartbeat;
  h.payload_bytes = sizeof beat;
  h.flow = g.flow;
  h.epoch = g.epoch;
  for (const auto* members : {&g.local, &g.forgotten}) {
    for (const auto& m : *members) {
      h.source = static_cast<std::uint16_t>(m->rank);
      h.op = m->entered;
      channel.broadcast(h, &beat, now);
    }
  }
}

// Likewise, for those who have no channel to this engine.
std::vector<LastWord> Engine::words_of(const Group& g) {
  std::vector<LastWord> out;
  for (const auto* members : {&g.local, &g.forgotten}) {
    for (const auto& m : *members) out.push_back({{g.flow, g.epoch}, static_cast<std::uint32_t>(m->rank), m->entered});
  }
  return out;
}

std::vector<LastWord> Engine::last_words() const {
  std::vector<LastWord> out;
  const auto add = [&](const std::vector<LastWord>& words) { out.insert(out.end(), words.begin(), words.end()); };
  for (const auto& g : groups_) {
    if (!g->dead && g->members.size() != 1) add(words_of(*g));
  }
  for (const ClosedGroup& g : past_groups_) add(g.words);
  return out;
}

void Engine::on_heartbeat(Mux&, const wire::Header& h) {
  Group* g = find_group(h.flow);
  if (g == nullptr || g->epoch != h.epoch || h.source >= g->members.size()) return;
  g->entered[h.source] = later_of(g->entered[h.source], h.op);
}

void Engine::on_path_event(Mux& peer, const std::string& what) {
  log(LogLevel::kInfo, "engine %u, path to %s: %s", my_engine_, ranks_text(peer.peer()).c_str(), what.c_str());
}

// --- the loop --------------------------------------------------------------------------------------------------------

void Engine::begin_cycle(Nanos now) {
  now_ = now;
  greeter_.set_time(now);
  if (const Nanos missed = everybody_.begin_cycle(now); missed.count != 0) move_clocks(missed);
}

std::size_t Engine::poll(Nanos now) {
  const SoleUser::Use use(user_);
  const DenormalGuard guard;
  begin_cycle(now);
  closed_groups_.clear();
  const std::size_t moved = factory_.poll(now);
  return moved + end_cycle(now);
}

void Engine::begin_poll(Nanos now) {
  const SoleUser::Use use(user_);
  begin_cycle(now);
  closed_groups_.clear();
}

std::size_t Engine::end_poll(Nanos now) {
  const SoleUser::Use use(user_);
  return end_cycle(now);
}

std::size_t Engine::end_cycle(Nanos now) {
  if (!greeter_.empty()) greeter_.sweep();
  std::size_t work = membership_->poll(now);
  everybody_.on_timers(now);
  if (now >= decisions_due_) decide(now);
  work += send(now);
  if (now >= next_housekeeping_) {
    const Nanos beat = options_.settings.heartbeat_interval;
    next_housekeeping_ = now + (ready_ ? std::min(beat, kLooksEvery) : std::min(beat, 10_ms));
    housekeeping(now);
  } else if (!ready_) {
    check_ready();
  }
  if (leaving_ && !left_) {
    bool drained = true;
    for (const EnginePeer& p : peers_) {
      if (!p.channel || p.ended() || p.channel->peer_left() || p.channel->drained()) continue;
      drained = false;
      // It can have what it lacks when it is back: nobody proved its death.
      if (watch_.unheard(p, now)) farewell_due_ = now + kFarewellLimit;
    }
    if (!farewell_said_ && (drained || now > farewell_due_)) {
      farewell_said_ = true;
      for (EnginePeer& p : peers_) {
        if (!p.channel || p.gone) continue;
        for (const auto& g : groups_) {
          if (!g->dead && g->members.size() != 1) tell_entered(*p.channel, *g, now);
        }
        p.channel->goodbye(now);
        p.channel->pump(now);
      }
      membership_->leave(now, last_words());
      membership_->poll(now);
      left_ = true;
    }
  }
  return work;
}

void Engine::abandon() noexcept {
  abandoned_ = true;
  for (EnginePeer& p : peers_) everybody_.disconnect(p);
  greeter_.leave(*this);
  greeter_.abandon();
  knocker_.abandon();
  if (membership_ != nullptr) membership_->abandon();  // its end is what proves this engine's
}

void Engine::hurry(Nanos now) {
  const SoleUser::Use use(user_);
  const DenormalGuard guard;
  begin_cycle(now);
  send(now);
}

// Sends what was submitted, and what submissions, arrivals and timers have made ready.
std::size_t Engine::send(Nanos now) {
  if (called() || !chains_due_.empty()) {
    if (ready_ && !leaving_) take_commands();
    enter_waiting();
  }
  const std::uint64_t ended = operations_ended_;
  std::size_t work = local_dirty_ ? settle_local() : 0;
  settle_partials();
  sessions_due_ |= now >= sessions_deadline_;
  if (sessions_due_) settle_sessions();
  work += everybody_.pump(now);
  if (local_dirty_) work += settle_local();  // what pumping completed
  settle_partials();
  if (operations_ended_ != ended) enter_waiting();  // that made room
  return work;
}

// Groups look whether what was measured asks for another table.
void Engine::decide(Nanos now) {
  decisions_due_ = Nanos::max();
  for (const auto& g : groups_) {
    if (g->decisions) decisions_due_ = std::min(decisions_due_, g->decisions->poll(now));
  }
}

// Steps between local ranks, and operations that are complete. Bounded, since lanes wait meanwhile: what is left over
// is due at once.
std::size_t Engine::settle_local() {
  std::size_t work = 0;
  std::uint64_t budget = kLocalBytesPerCycle;
  while (local_dirty_ && budget != 0) {
    local_dirty_ = false;
    while (neighbourly_ != 0 && pump_local(&budget)) ++work;
    local_dirty_ |= budget == 0;
    for (std::size_t i = 0; i < to_look_at_.size(); ++i) {
      Run* const run = run_at(to_look_at_[i]);
      if (run == nullptr) continue;  // its program was given up
      run->looked_at_soon = false;
      work += finish_if_complete(*run);
    }
    to_look_at_.clear();
  }
  return work;
}

void Engine::flush_acks(Nanos now, bool all) {
  const SoleUser::Use use(user_);
  everybody_.flush_acks(now, all);
}

Nanos Engine::next_deadline() const {
  const Nanos t = std::min({factory_.next_deadline(), membership_->next_deadline(), next_housekeeping_, decisions_due_,
                            everybody_.next_deadline(), sessions_deadline_});
  const bool entering_left = std::any_of(waiting_.begin(), waiting_.end(),
                                         [&](const GroupMember* m) { return m->waiting.ready() && has_room(*m); });
  const bool left = commands_left_ || entering_left || messages_left_ || local_dirty_ || partials_due_ ||
                    sessions_due_ || !closed_groups_.empty();
  return left ? Nanos{} : t;
}

void Engine::leave(Nanos now) {
  const SoleUser::Use use(user_);
  leaving_ = true;
  farewell_due_ = now + kFarewellLimit;
}

Engine::Counters Engine::counters() const {
  Counters out;
  out.peers = everybody_.connected();
  out.operations_in_flight = operations_in_flight_;
  out.operations = operations_ended_;
  out.operation_failures = operations_failed_;
  out.null_pieces = null_pieces_;
  out.null_value_bytes = null_value_bytes_;
  count_codecs(&out);
  return out;
}

}  // namespace canarynet
