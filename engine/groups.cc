// Groups of the engine: made when the coordinator has handed out their number, found by it, freed when no rank served
// here wants them.
//
// A caller that asked for a group hears of it when all its members have, so peers speak of groups that are not known
// here yet only while a request of ours is open: then what comes early is kept. At any other time an unknown number is
// that of a group that is over here, and what comes late for it is acknowledged and forgotten.
#include <algorithm>
#include <climits>
#include <functional>

#include "base/check.h"
#include "base/random.h"
#include "base/serial.h"
#include "collectives/ring_order.h"
#include "engine/engine.h"
#include "engine/group_message_flow.h"
#include "engine/operation_flow.h"

namespace canarynet {
namespace {

// The first epoch of a group: every member finds the same one, and no other job and no other group is likely to. A
// number of the wire that is equal by chance (in a frame of an earlier run, or of a flow whose bits were flipped) does
// not make a frame one of this group's.
std::uint32_t first_epoch(std::uint64_t seed, std::uint32_t flow) {
  Random random(seed ^ std::uint64_t{flow} << 32);
  std::uint32_t epoch = 0;
  while (epoch == 0) epoch = static_cast<std::uint32_t>(random.next() >> 32);
  return epoch;
}

// The rates that the roster tells, or nothing where one is unknown: they then count as alike. Nor where every host
// reaches all others over the same rails: nobody asks for them then.
std::vector<double> told_rates(const Roster& roster, const Reachability& reach,
                               const std::vector<std::uint32_t>& engine_of) {
  std::uint32_t first = 0;
  const bool one_way = reach.all_pairs([&](std::uint32_t rails) {
    if ((rails & (Reachability::kLocalBit | Reachability::kHostBit)) != 0) return true;
    if (first == 0) first = rails;
    return rails == first;
  });
  if (one_way) return {};
  std::vector<double> rates(engine_of.size() * kRailsMax, 1.0);
  for (std::size_t r = 0; r < engine_of.size(); ++r) {
    const auto& rails = roster.engines[engine_of[r]].rails;
    for (std::size_t l = 0; l < std::min<std::size_t>(rails.size(), kRailsMax); ++l) {
      if (rails[l].address.family == Address::Family::kSharedMemory) continue;
      const auto rate = static_cast<double>(rails[l].nominal.count);
      if (rate <= 0) return {};
      rates[r * kRailsMax + l] = rate;
    }
  }
  return rates;
}

}  // namespace

// `parent` and `number`: of a partial all-reduce's, or one of a session's.
Group& Engine::add_group(std::uint32_t flow, std::vector<int> members, GroupEpoch parent, std::uint64_t number,
                         bool of_session) {
  auto g = std::make_unique<Group>();
  g->flow = flow;
  if (wire::is_partial(flow)) {
    g->epoch = partial_group(parent.flow, parent.epoch, number, members.front()).epoch;
    if (!of_session) {
      g->partial = std::make_unique<PartialOperation>();
      g->partial->number = number;
      g->partial->parent = parent.flow;
      g->partial->parent_epoch = parent.epoch;
    }
  } else {
    g->epoch = first_epoch(roster_->epoch_seed, flow);
  }
  for (const int r : members)
    g->engine_of.push_back(static_cast<std::uint32_t>(roster_->engine_of[static_cast<std::size_t>(r)]));
  for (const int r : members) g->host_of.push_back(host_of_[static_cast<std::size_t>(r)]);
  // Within one host its engines are what memory is shared in.
  if (std::adjacent_find(g->host_of.begin(), g->host_of.end(), std::not_equal_to<>()) == g->host_of.end())
    g->host_of.assign(g->engine_of.begin(), g->engine_of.end());
  const int host = host_of_[static_cast<std::size_t>(members.front())];
  if (std::all_of(members.begin(), members.end(), [&](int r) { return host_of_[static_cast<std::size_t>(r)] == host; }))
    g->cores = roster_->engines[g->engine_of.front()].cores;
  // Groups of the same ranks share the matrix of who meets whom: it is by far the largest part of one.
  const auto same = std::find_if(groups_.begin(), groups_.end(), [&](const auto& o) { return o->members == members; });
  if (same != groups_.end()) {
    g->reach = (*same)->reach;
    g->bcube = (*same)->bcube;
    g->rail_rates = (*same)->rail_rates;
  } else {
    g->reach = groups_.empty() ? reach_ : std::make_shared<const Reachability>(reach_->subset(members));
    g->bcube = find_bcube(*g->reach, kRailsMax);
    g->rail_rates = told_rates(*roster_, *g->reach, g->engine_of);
  }
  g->entered.assign(members.size(), options_.first_operation - 1);
  g->left.resize(members.size());
  for (std::size_t r = 0; r < members.size(); ++r) g->left[r] = peers_[g->engine_of[r]].left;
  g->members = std::move(members);
  g->ring_order = ring_order_of(*g, parent);
  for (std::size_t r = 0; r < g->members.size(); ++r) {
    if (g->engine_of[r] == my_engine_) add_member(*g, static_cast<int>(r));
  }
  g->operations_flow = std::make_unique<OperationFlow>(*this, *g);
  g->messages_flow = std::make_unique<GroupMessageFlow>(*this, *g);
  flows_.add(g->flow, *g->operations_flow);
  flows_.add(g->messages_number(), *g->messages_flow);
  if (!wire::is_partial(flow) && DecisionFlow::serves(*this, *g)) {
    g->decisions = std::make_unique<DecisionFlow>(*this, *g);
    flows_.add(g->decisions_number(), *g->decisions);
  }
  return **groups_.insert(place_of(flow), std::move(g));
}

// All members have to find the same one, whatever other groups each of them has now.
std::vector<std::uint16_t> Engine::ring_order_of(const Group& g, GroupEpoch parent) {
  if (wire::is_partial(g.flow)) {
    // It is made for one operation, which is not worth a search. All its members have the parent.
    const Group* const whole = find_group(parent.flow);
    return whole != nullptr && whole->members == g.members ? whole->ring_order : std::vector<std::uint16_t>{};
  }
  const auto same = std::find_if(groups_.begin(), groups_.end(), [&](const auto& other) {
    return !wire::is_partial(other->flow) && other->members == g.members;
  });
  if (same != groups_.end()) return (*same)->ring_order;
  const PlanRequest request = plan_request(g);
  return request.ranks <= kCostedRanksMax && needs_order(request) ? best_ring_order(request)
                                                                  : std::vector<std::uint16_t>{};
}

// Made, and its channel opened, when something is to be said to it. nullptr: no rail leads there.
GroupPeer* Engine::group_peer(Group& g, std::uint32_t engine) {
  if (!open(peers_[engine])) return nullptr;
  const auto at = std::lower_bound(g.peers.begin(), g.peers.end(), engine,
                                   [](const auto& p, std::uint32_t e) { return p->engine < e; });
  if (at != g.peers.end() && (*at)->engine == engine) return at->get();
  GroupPeer& peer = **g.peers.insert(at, std::make_unique<GroupPeer>());
  peer.engine = engine;
  for (Turn* turn : {&peer.operations, &peer.urgent_operations}) turn->set_flow(g.operations_flow.get());
  peer.messages.set_flow(g.messages_flow.get());
  return &peer;
}

void Engine::add_member(Group& g, int rank) {
  auto m = std::make_unique<GroupMember>();
  m->group = &g;
  m->rank = rank;
  m->world_rank = g.members[static_cast<std::size_t>(rank)];
  m->entered = options_.first_operation - 1;
  m->operations.reserve(2 * static_cast<std::size_t>(options_.settings.ops_in_flight));
  m->early.reserve(64);
  const auto [place, use] = member_ids_.add(m.get());
  m->id = {place, use};
  g.local.push_back(std::move(m));
  active_.reserve(++members_);
  waiting_.reserve(members_);
}

Group* Engine::find_group(std::uint32_t flow) {
  const auto at = place_of(flow);
  return at != groups_.end() && (*at)->flow == flow ? at->get() : nullptr;
}

GroupMember* Engine::world(int local_rank) {
  if (!ready_) return nullptr;
  for (auto& m : groups_.front()->local) {
    if (m->world_rank == local_rank) return m.get();
  }
  return nullptr;
}

// Groups of several ranks served here are known when the first of them hears: the others have asked as well.
void Engine::on_group(int local_rank, std::uint64_t cookie, std::uint32_t flow_handed_out) {
  const auto pending = std::find_if(pending_groups_.begin(), pending_groups_.end(),
                                    [&](const PendingGroup& p) { return p.cookie == cookie; });
  if (pending == pending_groups_.end()) return;
  const std::uint32_t flow = kWorldFlow + flow_handed_out;
  Group* g = find_group(flow);
  if (g == nullptr) {
    g = &add_group(flow, pending->members);
    admit_strays(*g);
    drop_early(*g);
    kill_if_lost(*g, ", before the group was formed");
  }
  const auto member =
      std::find_if(g->local.begin(), g->local.end(), [&](const auto& m) { return m->world_rank == local_rank; });
  CANARY_CHECK(member != g->local.end(), "a group without the rank that asked for it");
  OpTicket* ticket = pending->ticket;
  const Status given_up = pending->given_up;
  pending_groups_.erase(pending);
  drop_early_of_unknown_groups();
  if (!given_up.ok()) {
    Verdict v;
    v.code = given_up.code();
    v.rank = given_up.detail().rank;
    v.text = given_up.text();
    kill(*g, v, true);
    forget((*member)->id);
    return;
  }
  ticket->member = (*member)->id;
  ticket->shape = (*member)->shape();
  ticket->finish(Status());
}

// Gives up groups that wait to be formed: those without hope or, told why, all. Their callers hear it now. The
// requests stay, and a group that is formed all the same (a rank that was silent speaks again) ends at once, for the
// others, too.
void Engine::give_up_groups(const Status& why) {
  for (PendingGroup& p : pending_groups_) {
    if (!p.given_up.ok()) continue;
    p.given_up = why.ok() ? group_hope(p.members) : why;
    if (!p.given_up.ok()) std::exchange(p.ticket, nullptr)->finish(p.given_up);
  }
}

Status Engine::group_hope(const std::vector<int>& members) const {
  for (const int r : members) {
    if (r < 0 || static_cast<std::size_t>(r) >= roster_->engine_of.size()) continue;  // the desk refuses it
    const EnginePeer& peer = peers_[static_cast<std::size_t>(roster_->engine_of[static_cast<std::size_t>(r)])];
    if (peer.gone) return peer.why_gone;
  }
  const EnginePeer& coordinator = peers_[membership_->coordinator()];
  if (!coordinator.gone) return {};
  return Status(CANARY_COORDINATOR_LOST,
                coordinator.label + ", which hands out groups, is gone: " + coordinator.why_gone.text(),
                coordinator.why_gone.detail());
}

void Engine::on_group_failed(int, std::uint64_t cookie, const Status& why) {
  const auto pending = std::find_if(pending_groups_.begin(), pending_groups_.end(),
                                    [&](const PendingGroup& p) { return p.cookie == cookie; });
  if (pending == pending_groups_.end()) return;
  OpTicket* ticket = pending->ticket;
  pending_groups_.erase(pending);
  drop_early_of_unknown_groups();
  if (ticket != nullptr) ticket->finish(why);
}

// Takes in the signatures that came for the group before we knew it.
void Engine::admit_strays(Group& g) {
  for (std::size_t i = 0; i < strays_.size();) {
    const StraySignature stray = strays_[i];
    if (stray.flow != g.flow) {
      ++i;
      continue;
    }
    strays_.erase(strays_.begin() + static_cast<std::ptrdiff_t>(i));
    if (g.partial && stray.epoch == g.epoch && !lists_agree(g, stray.engine, stray.payload)) return;
    if (stray.epoch != g.epoch || stray.source >= g.entered.size() || g.engine_of[stray.source] != stray.engine)
      continue;
    g.entered[stray.source] = later_of(g.entered[stray.source], stray.op);
    if (GroupMember* m = g.member(stray.destination)) admit_signature(*m, stray.source, stray.op, stray.payload);
  }
}

// Drops early pieces of another epoch: nobody would ever take them out.
void Engine::drop_early(Group& g) {
  for (EnginePeer& p : peers_) {
    if (!p.channel) continue;
    for (EagerStore* store : {p.eager.get(), &p.messages->parked}) {
      store->for_each([&](EagerStore::Entry& e) {
        if (e.complete && (e.header.flow & ~wire::kMessageFlow) == g.flow && e.header.epoch != g.epoch)
          store->release(&e);
      });
    }
  }
}

// With no request open, what was kept for groups to come is of groups that are over; but not what is kept for partial
// all-reduces, which nobody requests.
void Engine::drop_early_of_unknown_groups() {
  if (!pending_groups_.empty()) return;
  std::erase_if(strays_, [](const StraySignature& s) { return !wire::is_partial(s.flow); });
  for (EnginePeer& p : peers_) {
    if (!p.channel) continue;
    for (EagerStore* store : {p.eager.get(), &p.messages->parked}) {
      store->for_each([&](EagerStore::Entry& e) {
        // One that is not complete yet is dropped when it is.
        if (e.complete && !wire::is_partial(e.header.flow) &&
            find_group(e.header.flow & ~wire::kMessageFlow) == nullptr)
          store->release(&e);
      });
    }
  }
}

GroupMember* Engine::member(port::MemberId id) const {
  GroupMember* const m = member_ids_.at(id.place);
  return m != nullptr && m->id == id ? m : nullptr;
}

const char* Engine::algorithm(port::MemberId id) const {
  const GroupMember* const m = member(id);
  return m != nullptr ? m->last_algorithm.load(std::memory_order_acquire) : "";
}

bool Engine::pending(port::MemberId id) {
  if (abandoned_) return false;
  do take_commands();
  while (commands_left_);
  GroupMember* const m = member(id);
  if (m != nullptr) post_messages(*m, INT_MAX);
  return m != nullptr && (m->pending() || partial_pending(*m) || has_session(*m) || has_post(*m));
}

bool Engine::forget(port::MemberId id) {
  if (abandoned_) return true;
  if (pending(id)) return false;
  GroupMember* const member = this->member(id);
  if (member == nullptr) return true;
  drop_sessions_of(id);
  Group& g = *member->group;
  dismiss(*member);
  if (g.local.empty()) close_group(g);
  return true;
}

// One that has nothing pending leaves its group, which may be left without any.
void Engine::dismiss(GroupMember& m) {
  Group& g = *m.group;
  for (auto& e : m.programs) {
    for (auto& run : e->idle) runs_[run->index] = nullptr;
  }
  m.programs.clear();
  retire_messages(m);
  std::erase(waiting_, &m);
  std::erase(chains_due_, &m);
  member_ids_.remove(m.id.place);
  const auto at = std::find_if(g.local.begin(), g.local.end(), [&](const auto& local) { return local.get() == &m; });
  g.forgotten.push_back(std::move(*at));
  g.local.erase(at);
}

// No rank served here is in it any more. Everything sent is the channels' own by now; what comes late is known by the
// number alone.
void Engine::close_group(Group& g) {
  if (!g.dead) {
    // Others may wait for ranks that have nothing to do with these, and must not take these for ones that did not call.
    std::vector<std::uint32_t> engines = g.engine_of;
    std::sort(engines.begin(), engines.end());
    engines.erase(std::unique(engines.begin(), engines.end()), engines.end());
    for (const std::uint32_t e : engines) {
      const EnginePeer& p = peers_[e];
      if (p.channel && !p.gone && !p.left) tell_entered(*p.channel, g, now_);
    }
  }
  for (EnginePeer& p : peers_) {
    if (!p.channel) continue;
    for (EagerStore* store : {p.eager.get(), &p.messages->parked}) {
      store->for_each([&](EagerStore::Entry& e) {
        if (e.complete && (e.header.flow & ~wire::kMessageFlow) == g.flow) store->release(&e);
      });
    }
  }
  if (g.decisions) {
    g.decisions->close();
    flows_.remove(g.decisions_number());
  }
  flows_.remove(g.flow);
  flows_.remove(g.messages_number());
  for (auto& peer : g.peers) {
    Mux* const mux = peers_[peer->engine].mux.get();
    if (mux == nullptr) continue;
    for (Turn* turn : {&peer->operations, &peer->urgent_operations}) mux->forget(*turn);
    peer->messages.leave(*mux);
  }
  constexpr std::size_t kPastGroups = 64;
  if (past_groups_.size() < kPastGroups) past_groups_.emplace_back();
  // By itself: GCC 12 destroys what is made already twice when a later part of an aggregate throws.
  auto words = words_of(g);
  past_groups_[next_past_group_++ % kPastGroups] = {{{g.flow, g.epoch}, std::move(g.entered), {}}, std::move(words)};
  members_ -= g.forgotten.size();
  const auto at = place_of(g.flow);
  closed_groups_.push_back(std::move(*at));
  groups_.erase(at);
}

void Engine::retire(int local_rank) {
  const SoleUser::Use use(user_);
  retire_posts(local_rank);
  for (auto& g : groups_) {
    for (std::size_t r = 0; r < g->members.size(); ++r) {
      if (g->members[r] == local_rank) g->left[r] = 1;
    }
  }
}

}  // namespace canarynet
