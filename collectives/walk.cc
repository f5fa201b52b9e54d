// Time goes from moment to moment. In each, first everything that happens then is noted: bytes that are there release
// what depended on them, messages join the queues of their ports. Then every port that may be free starts the best of
// what waits for it. So no result depends on the order in which ranks are looked at, and ranks whose plans are alike do
// the same at the same time.
#include "collectives/walk.h"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "base/check.h"
#include "collectives/plan_builder.h"
#include "collectives/walk_events.h"

namespace canarynet {
namespace {

// A message that waits for a port. Those of one step that are next to each other take one place in the heap: that of
// the first, which goes before the others anyway.
struct Item {
  double at;
  std::uint32_t piece;
  std::uint32_t step, task;  // on the port's side
};
struct Behind {
  bool operator()(const Item& a, const Item& b) const {
    return a.piece != b.piece ? a.piece > b.piece
           : a.at != b.at     ? a.at > b.at
           : a.step != b.step ? a.step > b.step
                              : a.task > b.task;
  }
};
// Messages that take the same rails of a port.
struct Queue {
  std::uint32_t port = 0, rails = 0;
  std::uint32_t gate = 0;
  double free = 0;               // when its rails are
  std::vector<Item> items = {};  // a heap
};
// Queues of one port whose rails overlap, so that they wait for each other.
struct Gate {
  std::uint32_t queue_begin = 0, queue_end = 0;
  double wakes_at = -1;  // when it next looks for work; < 0: not planned
  bool dirty = false;
};
// One direction of all ports.
struct Side {
  std::vector<Queue> queues;
  std::vector<Gate> gates;
  std::vector<std::uint32_t> dirty;
};

class Walk {
 public:
  Walk(PlannerId id, const PlanRequest& request, int rails, const CostModel& model, const Symmetry& symmetry)
      : request_(request),
        model_(model),
        rails_(static_cast<std::uint32_t>(std::max(rails, 1))),
        n_(static_cast<std::uint32_t>(request.ranks)),
        symmetry_(symmetry),
        walked_(symmetry.cell > 0 ? static_cast<std::uint32_t>(symmetry.cell) : n_) {
    find_hosts();
    if (model_.links != nullptr) find_nic_rates();
    cut_pieces(id);
    make_steps(id);
    match_messages();
    make_gates(out_);
    make_gates(in_);
  }

  double run() {
    std::vector<Task> first;
    for (std::uint32_t i = 0; i < steps_.size(); ++i) {
      const Step& s = steps_[i];
      for (std::uint32_t t = 0; t < pieces_in(s); ++t) {
        if (pending_[s.task_begin + t] == 0) first.push_back({i, t});
      }
    }
    for (const Task t : first) ready(t.step, t.task);
    finish_all();
    serve_all();
    for (std::vector<WalkEvents::Event> moment; events_.next(&now_, &moment);) {
      for (const WalkEvents::Event& e : moment) {
        switch (e.kind()) {
          case WalkEvents::kArrival: {
            const Step& send = steps_[e.index()];
            wait(in_, send.in_queue, {now_, piece_of(send, e.task), send.mate, e.task});
            break;
          }
          case WalkEvents::kHere: {
            const Step& send = steps_[e.index()];
            look_again(send.in_queue);
            finish(e.index(), e.task);
            if (--pending_[steps_[send.mate].task_begin + e.task] == 0) ready(send.mate, e.task);
            break;
          }
          case WalkEvents::kDone:
            if (steps_[e.index()].kind == StepKind::kReceiveReduce) look_again(steps_[steps_[e.index()].mate].in_queue);
            finish(e.index(), e.task);
            break;
          case WalkEvents::kOutFree:
            out_.gates[e.index()].wakes_at = -1;
            touch(out_, e.index());
            break;
          case WalkEvents::kInFree:
            in_.gates[e.index()].wakes_at = -1;
            touch(in_, e.index());
            break;
        }
      }
      finish_all();
      serve_all();
    }
    CANARY_CHECK(done_ == tasks_, "a proven plan ends");
    return end_;
  }
  WalkWork work() const { return {tasks_, events_.heaped(), longest_}; }

 private:
  struct Step {
    StepKind kind = StepKind::kCopy;
    std::uint32_t task_begin = 0;
    std::uint32_t piece_begin = 0, piece_end = 0;
    std::uint32_t dependents_begin = 0, dependents_end = 0;
    std::uint32_t mate = 0;  // the other end's step
    // Of a send.
    std::uint32_t out_queue = 0, in_queue = 0, link = 0, way = 0;
    // What waits for a port: the task that stands for others in the heap, and how many follow it. kNone: none does.
    std::uint32_t head = kNone, behind = 0;
    std::uint64_t bytes = 0;
  };
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  // What many sends have in common, so that steps stay small: a walk is as fast as they are in the caches.
  struct Way {
    bool local = false;
    double alpha = 0, out_beta = 0, in_beta = 0, link_beta = 0;
    bool operator==(const Way&) const = default;
  };

  // --- hosts, ports, rails

  void find_hosts() {
    host_.resize(n_);
    std::vector<std::pair<int, std::uint32_t>> first;  // host, its first rank
    for (std::uint32_t r = 0; r < n_; ++r) host_[r] = r;
    if (request_.host_of.empty()) return;
    for (std::uint32_t r = 0; r < n_; ++r) first.emplace_back(request_.host_of[r], r);
    std::sort(first.begin(), first.end());
    for (std::size_t i = 1; i < first.size(); ++i) {
      if (first[i].first == first[i - 1].first) host_[first[i].second] = host_[first[i - 1].second];
    }
  }
  bool is_local(std::uint32_t port) const { return port >= n_; }
  // The port that rank a uses towards b: its host's, under the number of the host's first rank, or, on the same host,
  // its own, which follow all of those.
  std::uint32_t port_of(std::uint32_t a, std::uint32_t b) const { return host_[a] == host_[b] ? a + n_ : host_[a]; }
  // The rails of a that a message to or from b takes: the step's own if it reaches b, otherwise all that do.
  std::uint32_t rails_between(std::uint32_t a, std::uint32_t b, int preferred) const {
    const std::uint32_t all = (1u << rails_) - 1;
    if (host_[a] == host_[b]) return all;
    const std::uint32_t known = request_.reach->rails(static_cast<int>(a), static_cast<int>(b)) & all;
    const std::uint32_t reaching = known == 0 ? all : known;
    const std::uint32_t own = preferred >= 0 && preferred < static_cast<int>(rails_) ? 1u << preferred : 0;
    return (reaching & own) != 0 ? own : reaching;
  }
  double beta_of(std::uint32_t port, std::uint32_t rails) const {
    if (is_local(port)) return model_.local_beta;
    const std::span<const double> rates = model_.links != nullptr ? std::span(nic_rates_) : request_.rail_rates;
    if (rates.empty()) return model_.beta / std::popcount(rails);
    double rate = 0;
    for (std::uint32_t left = rails; left != 0; left &= left - 1)
      rate += rates[std::size_t{port} * kRailsMax + static_cast<std::size_t>(std::countr_zero(left))];
    return rate > 0 ? 1 / rate : 0;
  }
  // A NIC carries at least as much as its fastest link, in either direction.
  void find_nic_rates() {
    nic_rates_.assign(std::size_t{n_} * kRailsMax, 0);
    for (std::uint32_t a = 0; a < n_; ++a) {
      for (std::uint32_t b = 0; b < n_; ++b) {
        if (host_[a] != a || host_[b] != b || a == b) continue;
        const std::uint32_t out = rails_between(a, b, -1), in = rails_between(b, a, -1);
        // The k-th rail of one host meets the k-th of the other; surplus rails start over at the first.
        std::uint32_t theirs = in;
        for (std::uint32_t mine = out; mine != 0; mine &= mine - 1, theirs &= theirs - 1) {
          if (theirs == 0) theirs = in;
          const int rail = std::countr_zero(mine);
          const double beta = model_.links->of(static_cast<int>(a), static_cast<int>(b), rail).beta;
          if (beta <= 0) continue;
          double& of_a = nic_rates_[std::size_t{a} * kRailsMax + static_cast<std::size_t>(rail)];
          double& of_b = nic_rates_[std::size_t{b} * kRailsMax + static_cast<std::size_t>(std::countr_zero(theirs))];
          of_a = std::max(of_a, 1 / beta);
          of_b = std::max(of_b, 1 / beta);
        }
      }
    }
  }

  // --- steps, tasks, messages

  bool whole() const { return model_.piece_bytes == 0; }
  // Cuts each leaf into pieces; one piece holds the whole leaf if messages are not cut.
  void cut_pieces(PlannerId id) {
    std::vector<std::uint64_t> leaves;
    planner(id).leaves(request_, &leaves);
    std::uint64_t longest = 0;
    for (std::size_t leaf = 0; leaf + 1 < leaves.size(); ++leaf)
      longest = std::max(longest, leaves[leaf + 1] - leaves[leaf]);
    piece_begin_.reserve(leaves.size());
    piece_begin_.push_back(0);
    for (std::size_t leaf = 0; leaf + 1 < leaves.size(); ++leaf) {
      // Ranks that stand for others have the longest leaves of all.
      const std::uint64_t elements = symmetry_.cell > 0 ? longest : leaves[leaf + 1] - leaves[leaf];
      const std::uint64_t bytes = elements * request_.element_bytes, most = model_.piece_bytes;
      const std::uint64_t pieces = most == 0 ? 1 : (bytes + most - 1) / most;
      for (std::uint64_t c = 0; c < pieces; ++c) {
        piece_bytes_.push_back(most == 0 ? bytes : std::min(most, bytes - c * most));
        // The piece's number within its leaf, so that the trees of a double tree are served alike.
        piece_number_.push_back(static_cast<std::uint32_t>(c));
      }
      piece_begin_.push_back(static_cast<std::uint32_t>(piece_bytes_.size()));
    }
  }
  std::uint32_t pieces_in(const Step& s) const { return whole() ? 1 : s.piece_end - s.piece_begin; }

  void make_steps(PlannerId id) {
    first_step_.push_back(0);
    std::vector<std::uint32_t> count;
    for (std::uint32_t r = 0; r < walked_; ++r) {
      Plan plan;
      planner(id).plan(request_, static_cast<int>(r), &plan);
      const auto base = static_cast<std::uint32_t>(steps_.size());
      for (const canarynet::Step& planned : plan.steps) {
        Step s{.kind = planned.kind, .task_begin = static_cast<std::uint32_t>(pending_.size())};
        s.piece_begin = piece_begin_[planned.leaf_begin];
        s.piece_end = piece_begin_[planned.leaf_end];
        if (whole() || model_.links != nullptr) {
          for (std::uint32_t p = s.piece_begin; p < s.piece_end; ++p) s.bytes += piece_bytes_[p];
        }
        const bool receives = planned.kind == StepKind::kReceive || planned.kind == StepKind::kReceiveReduce;
        pending_.insert(pending_.end(), pieces_in(s), receives ? 1 : 0);  // its bytes
        steps_.push_back(s);
        wire_.push_back({planned.peer, planned.tag, planned.rail});
      }
      // Dependents of each step, in the order of the steps.
      count.assign(plan.steps.size() + 1, 0);
      for (const std::uint32_t before : plan.deps) ++count[before];
      auto at = static_cast<std::uint32_t>(dependents_.size());
      for (std::size_t i = 0; i < plan.steps.size(); ++i) {
        steps_[base + i].dependents_begin = steps_[base + i].dependents_end = at;
        at += count[i];
      }
      dependents_.resize(at);
      for (std::uint32_t i = 0; i < plan.steps.size(); ++i) {
        for (const std::uint32_t before : plan.deps_of(plan.steps[i])) {
          Step& b = steps_[base + before];
          dependents_[b.dependents_end++] = base + i;
          each_shared(b, steps_[base + i], [&](std::uint32_t task) { ++pending_[task]; });
        }
      }
      first_step_.push_back(static_cast<std::uint32_t>(steps_.size()));
    }
    tasks_ = pending_.size();
    CANARY_CHECK(steps_.size() < std::size_t{1} << WalkEvents::kIndexBits, "steps are numbered in 29 bits");
    came_.resize(tasks_);
    if (model_.links != nullptr) link_busy_.resize(tasks_);
  }
  // Visits the tasks of `b` for the pieces that `a` covers too.
  template <typename Visit>
  void each_shared(const Step& a, const Step& b, Visit visit) const {
    if (whole()) return visit(b.task_begin);
    const std::uint32_t begin = std::max(a.piece_begin, b.piece_begin), end = std::min(a.piece_end, b.piece_end);
    for (std::uint32_t c = begin; c < end; ++c) visit(b.task_begin + c - b.piece_begin);
  }

  // Finds the receive of every send. Where ranks stand for others, the receiver is moved into the cell, and the sender
  // with it.
  void match_messages() {
    // The receives of each rank by peer, in the order of its steps, which is that of the tags unless a plan numbers
    // them in another way.
    std::vector<std::uint32_t> order(steps_.size()), group((std::size_t{n_} + 1) * walked_, 0);
    const auto receives = [&](std::uint32_t i) {
      return steps_[i].kind == StepKind::kReceive || steps_[i].kind == StepKind::kReceiveReduce;
    };
    const auto group_of = [&](std::uint32_t rank) { return group.data() + std::size_t{rank} * (n_ + 1); };
    for (std::uint32_t r = 0; r < walked_; ++r) {
      std::uint32_t* of_peer = group_of(r);
      for (std::uint32_t i = first_step_[r]; i < first_step_[r + 1]; ++i) {
        if (receives(i)) ++of_peer[wire_[i].peer + 1];
      }
      of_peer[0] = first_step_[r];
      for (std::uint32_t p = 0; p < n_; ++p) of_peer[p + 1] += of_peer[p];
      std::vector<std::uint32_t> next(of_peer, of_peer + n_);
      for (std::uint32_t i = first_step_[r]; i < first_step_[r + 1]; ++i) {
        if (receives(i)) order[next[static_cast<std::size_t>(wire_[i].peer)]++] = i;
      }
    }
    std::vector<std::pair<std::uint64_t, std::uint32_t>> out, in, links;  // port and rails or hosts, step
    for (std::uint32_t r = 0; r < walked_; ++r) {
      LinkCost link;
      std::pair<std::uint64_t, std::uint64_t> of_last = {~std::uint64_t{0}, 0};
      for (std::uint32_t i = first_step_[r]; i < first_step_[r + 1]; ++i) {
        Step& send = steps_[i];
        if (send.kind != StepKind::kSend) continue;
        const auto peer = static_cast<std::uint32_t>(wire_[i].peer);
        const auto to =
            static_cast<std::uint32_t>(symmetry_.cell > 0 ? symmetry_.in_cell(wire_[i].peer) : wire_[i].peer);
        const auto from = static_cast<std::uint32_t>(
            symmetry_.cell > 0 ? symmetry_.seen_from(wire_[i].peer, static_cast<int>(r), static_cast<int>(n_))
                               : static_cast<int>(r));
        const std::uint32_t* of_peer = group_of(to);
        const std::uint32_t begin = of_peer[from], end = of_peer[from + 1];
        std::uint32_t at = begin + wire_[i].tag;
        if (at >= end || wire_[order[at]].tag != wire_[i].tag) {
          for (at = begin; at < end && wire_[order[at]].tag != wire_[i].tag;) ++at;
        }
        CANARY_CHECK(at < end, "a send nobody receives");
        send.mate = order[at];
        steps_[send.mate].mate = i;

        const std::uint32_t out_port = port_of(r, peer), in_port = port_of(to, from);
        const std::uint32_t out_rails = rails_between(r, peer, wire_[i].rail);
        const std::uint32_t in_rails = rails_between(peer, r, wire_[i].rail);
        Way way{.local = is_local(out_port)};
        way.alpha = way.local ? model_.local_alpha : model_.alpha;
        way.out_beta = beta_of(out_port, out_rails);
        way.in_beta = beta_of(in_port, in_rails);
        out.emplace_back(std::uint64_t{out_port} << 32 | out_rails, i);
        in.emplace_back(std::uint64_t{in_port} << 32 | in_rails, i);
        if (model_.links == nullptr || way.local) {
          send.way = number_of(way);
          continue;
        }
        // The cost is that of the whole step, so that a stream of pieces uses rails that a single piece would not wait
        // for. Steps in a row often go the same way.
        const std::uint64_t between = std::uint64_t{host_[r]} << 32 | host_[peer];
        const std::pair of_this = {between << 16 | out_rails, send.bytes};
        if (of_this != of_last) {
          link =
              model_.links->together(static_cast<int>(host_[r]), static_cast<int>(host_[peer]), out_rails, send.bytes);
          of_last = of_this;
        }
        way.alpha = link.alpha;
        way.link_beta = link.beta;
        send.way = number_of(way);
        links.emplace_back(between, i);
      }
    }
    const auto number = [&](auto& keys, std::uint32_t Step::*member, auto make) {
      std::sort(keys.begin(), keys.end());
      std::uint32_t last = 0;
      for (std::size_t i = 0; i < keys.size(); ++i) {
        if (i == 0 || keys[i].first != keys[i - 1].first) last = make(keys[i].first);
        steps_[keys[i].second].*member = last;
      }
    };
    const auto make_queue = [](Side& side) {
      return [&side](std::uint64_t key) {
        side.queues.push_back(
            {.port = static_cast<std::uint32_t>(key >> 32), .rails = static_cast<std::uint32_t>(key)});
        return static_cast<std::uint32_t>(side.queues.size() - 1);
      };
    };
    number(out, &Step::out_queue, make_queue(out_));
    number(in, &Step::in_queue, make_queue(in_));
    number(links, &Step::link, [&](std::uint64_t) {
      link_free_.push_back(0);
      return static_cast<std::uint32_t>(link_free_.size() - 1);
    });
  }

  // Usually one of the last few.
  std::uint32_t number_of(const Way& way) {
    const std::size_t begin = ways_.size() - std::min<std::size_t>(ways_.size(), 8);
    for (std::size_t i = ways_.size(); i-- > begin;) {
      if (ways_[i] == way) return static_cast<std::uint32_t>(i);
    }
    ways_.push_back(way);
    return static_cast<std::uint32_t>(ways_.size() - 1);
  }

  // Queues are sorted by port. Those of a port that share no rail are gates of their own; otherwise the port is one.
  void make_gates(Side& side) {
    std::vector<Queue>& queues = side.queues;
    for (std::uint32_t begin = 0, end = 0; begin < queues.size(); begin = end) {
      std::uint32_t taken = 0;
      bool apart = true;
      for (end = begin; end < queues.size() && queues[end].port == queues[begin].port; ++end) {
        apart = apart && (taken & queues[end].rails) == 0;
        taken |= queues[end].rails;
      }
      for (std::uint32_t q = begin; q < end; ++q) {
        if (apart || q == begin) side.gates.push_back({.queue_begin = q, .queue_end = apart ? q + 1 : end});
        queues[q].gate = static_cast<std::uint32_t>(side.gates.size() - 1);
      }
    }
  }

  // --- in time

  struct Task {
    std::uint32_t step, task;  // the task's number within its step
  };
  std::uint64_t bytes_of(const Step& s, std::uint32_t task) const {
    return whole() ? s.bytes : piece_bytes_[s.piece_begin + task];
  }
  std::uint32_t piece_of(const Step& s, std::uint32_t task) const {
    return whole() ? 0 : piece_number_[s.piece_begin + task];
  }

  void occupy(Side& side, Queue& queue, double until) {
    const Gate& gate = side.gates[queue.gate];
    for (std::uint32_t q = gate.queue_begin; q < gate.queue_end; ++q) {
      Queue& other = side.queues[q];
      if ((other.rails & queue.rails) != 0) other.free = std::max(other.free, until);
    }
  }
  // A message has come in, or been added: its port may be free.
  void look_again(std::uint32_t in_queue) {
    const std::uint32_t gate = in_.queues[in_queue].gate;
    if (in_.gates[gate].wakes_at == now_) in_.gates[gate].wakes_at = -1;
    touch(in_, gate);
  }
  static void touch(Side& side, std::uint32_t gate) {
    if (side.gates[gate].dirty) return;
    side.gates[gate].dirty = true;
    side.dirty.push_back(gate);
  }
  void wait(Side& side, std::uint32_t queue, const Item& item) {
    Queue& q = side.queues[queue];
    touch(side, q.gate);
    Step& s = steps_[item.step];
    if (s.head != kNone && s.head + s.behind + 1 == item.task && piece_of(s, item.task - 1) + 1 == item.piece) {
      ++s.behind;
      came_[s.task_begin + item.task] = item.at;
      return;
    }
    if (s.head == kNone) s.head = item.task;
    q.items.push_back(item);
    std::push_heap(q.items.begin(), q.items.end(), Behind{});
    longest_ = std::max<std::uint64_t>(longest_, q.items.size());
  }
  Item take_first(Queue& queue) {
    std::vector<Item>& items = queue.items;
    const Item item = items.front();
    if (items.size() > 1) std::pop_heap(items.begin(), items.end(), Behind{});
    Step& s = steps_[item.step];
    if (s.head != item.task || s.behind == 0) {
      if (s.head == item.task) s.head = kNone;
      items.pop_back();
      return item;
    }
    ++s.head;
    --s.behind;
    items.back() = {came_[s.task_begin + s.head], item.piece + 1, item.step, s.head};
    std::push_heap(items.begin(), items.end(), Behind{});
    return item;
  }

  // All dependencies of the task are done, and the bytes that it receives are here.
  void ready(std::uint32_t step, std::uint32_t task) {
    const Step& s = steps_[step];
    switch (s.kind) {
      case StepKind::kSend:
        wait(out_, s.out_queue, {now_, piece_of(s, task), step, task});
        break;
      case StepKind::kCopy:
      case StepKind::kReceive:
        finish(step, task);
        break;
      case StepKind::kReduce:
      case StepKind::kReceiveReduce: {
        if (model_.gamma <= 0) {
          finish(step, task);
          break;
        }
        const double at = now_ + static_cast<double>(bytes_of(s, task)) * model_.gamma;
        // Rails add side by side, each what came over it.
        if (s.kind == StepKind::kReceiveReduce) occupy(in_, in_.queues[steps_[s.mate].in_queue], at);
        events_.push(at, WalkEvents::kDone, step, task);
        break;
      }
    }
  }

  void finish(std::uint32_t step, std::uint32_t task) {
    ++done_;
    end_ = now_;
    if (steps_[step].dependents_begin != steps_[step].dependents_end) finished_.push_back({step, task});
  }

  void finish_all() {
    while (!finished_.empty()) {
      const Task done = finished_.back();
      finished_.pop_back();
      const Step& s = steps_[done.step];
      const std::uint32_t piece = s.piece_begin + done.task;
      for (std::uint32_t d = s.dependents_begin; d < s.dependents_end; ++d) {
        const std::uint32_t next = dependents_[d];
        const Step& waiting = steps_[next];
        if (!whole() && (piece < waiting.piece_begin || piece >= waiting.piece_end)) continue;
        const std::uint32_t task = whole() ? 0 : piece - waiting.piece_begin;
        if (--pending_[waiting.task_begin + task] == 0) ready(next, task);
      }
    }
  }

  void serve_all() {
    // Two rails may share what is said of a link, so somebody has to be first.
    if (model_.links != nullptr) std::sort(out_.dirty.begin(), out_.dirty.end());
    for (const std::uint32_t gate : out_.dirty)
      serve(out_, gate, WalkEvents::kOutFree, [this](Queue& queue, const Item& item) { leave(queue, item); });
    out_.dirty.clear();
    for (const std::uint32_t gate : in_.dirty)
      serve(in_, gate, WalkEvents::kInFree, [this](Queue& queue, const Item& item) { enter(queue, item); });
    in_.dirty.clear();
  }

  // Starts what can start now, best first, and plans another look for when the next rail is free.
  template <typename Start>
  void serve(Side& side, std::uint32_t index, WalkEvents::Kind wake, Start start) {
    Gate& gate = side.gates[index];
    gate.dirty = false;
    for (;;) {
      Queue* best = nullptr;
      double next = -1;
      for (std::uint32_t q = gate.queue_begin; q < gate.queue_end; ++q) {
        Queue& queue = side.queues[q];
        if (queue.items.empty()) continue;
        if (queue.free > now_) {
          next = next < 0 ? queue.free : std::min(next, queue.free);
        } else if (best == nullptr || Behind{}(best->items.front(), queue.items.front())) {
          best = &queue;
        }
      }
      if (best == nullptr) {
        if (next >= 0 && (gate.wakes_at < 0 || next < gate.wakes_at)) {
          gate.wakes_at = next;
          events_.push(next, wake, index);
        }
        return;
      }
      const Item item = take_first(*best);
      start(*best, item);
    }
  }

  void leave(Queue& queue, const Item& item) {
    const Step& send = steps_[item.step];
    const Way& way = ways_[send.way];
    const auto bytes = static_cast<double>(bytes_of(send, item.task));
    double busy = bytes * way.out_beta;
    occupy(out_, queue, now_ + busy + (way.local ? 0 : model_.post));
    if (model_.links != nullptr) {
      if (!way.local) {
        // The message before this one may not have left the link yet.
        double& free = link_free_[send.link];
        free = std::max(free, now_) + bytes * way.link_beta;
        busy = std::max(busy, free - now_);
      }
      link_busy_[send.task_begin + item.task] = busy;
    }
    events_.push(now_ + way.alpha, WalkEvents::kArrival, item.step, item.task);
  }

  void enter(Queue& queue, const Item& item) {
    const std::uint32_t step = steps_[item.step].mate;
    const Step& send = steps_[step];
    const Way& way = ways_[send.way];
    const auto bytes = static_cast<double>(bytes_of(send, item.task));
    const double busy = bytes * way.in_beta;
    occupy(in_, queue, now_ + busy);
    const double leaving = model_.links != nullptr ? link_busy_[send.task_begin + item.task] : bytes * way.out_beta;
    events_.push(now_ + std::max(busy, leaving), WalkEvents::kHere, step, item.task);
    // That event looks after the port, so no other one need wake it.
    Gate& gate = in_.gates[queue.gate];
    if (leaving <= busy && (gate.wakes_at < 0 || now_ + busy < gate.wakes_at)) gate.wakes_at = now_ + busy;
  }

  struct Wire {
    std::int32_t peer;
    std::uint16_t tag;
    std::int16_t rail;
  };

  const PlanRequest& request_;
  const CostModel& model_;
  const std::uint32_t rails_, n_;
  const Symmetry symmetry_;
  const std::uint32_t walked_;       // ranks, from 0
  std::vector<std::uint32_t> host_;  // [rank]: the first rank of its host
  std::vector<double> nic_rates_;    // [host * kRailsMax + rail], bytes a second; with model.links only

  std::vector<std::uint32_t> piece_begin_;  // per leaf, and the end
  std::vector<std::uint64_t> piece_bytes_;
  std::vector<std::uint32_t> piece_number_;

  std::vector<Step> steps_;  // of all walked ranks
  std::vector<Way> ways_;
  std::vector<Wire> wire_;                 // per step
  std::vector<std::uint32_t> first_step_;  // per walked rank, and the end
  std::vector<std::uint32_t> dependents_;
  std::vector<std::uint16_t> pending_;  // per task: dependencies, and the bytes of a receive
  std::vector<double> came_;            // per task that another stands for: since when it waits
  std::vector<double> link_busy_;       // per task of a send, with model.links: how long it holds the link
  std::vector<double> link_free_;       // per pair of hosts: when the next message may start

  Side out_, in_;
  WalkEvents events_;
  std::vector<Task> finished_;  // tasks whose dependents are not told yet
  double now_ = 0, end_ = 0;
  std::uint64_t tasks_ = 0, done_ = 0, longest_ = 0;
};

// Ranks per host if the ranks of a host follow each other and all hosts have as many; 1 if hosts are not told; else 0.
int ranks_in_a_row(const PlanRequest& request) {
  const auto& hosts = request.host_of;
  if (hosts.empty()) return 1;
  int each = 1;
  while (each < request.ranks && hosts[static_cast<std::size_t>(each)] == hosts[0]) ++each;
  if (request.ranks % each != 0) return 0;
  std::vector<int> firsts;
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    const std::size_t first = r - r % static_cast<std::size_t>(each);
    if (hosts[r] != hosts[first]) return 0;
    if (r == first) firsts.push_back(hosts[r]);
  }
  std::sort(firsts.begin(), firsts.end());
  return std::adjacent_find(firsts.begin(), firsts.end()) == firsts.end() ? each : 0;
}

}  // namespace

Symmetry walked_ranks(PlannerId id, const PlanRequest& request, const CostModel& model, bool exactly) {
  const auto symmetric = planner(id).symmetry;
  if (symmetric == nullptr || request.ranks < 2) return {};
  Symmetry symmetry = symmetric(request);
  const int n = request.ranks, each = ranks_in_a_row(request);
  if (symmetry.cell == 0 || (exactly && !symmetry.in_order) || each == 0 || (symmetry.radix != 0 && each != 1))
    return {};
  if (symmetry.cell % each != 0) {
    if (symmetry.cell != 1) return {};
    symmetry.cell = each;
  }
  if (symmetry.cell >= n) return {};
  if (model.links != nullptr && !model.links->alike()) return {};
  for (std::size_t i = kRailsMax; i < request.rail_rates.size(); ++i) {
    if (request.rail_rates[i] != request.rail_rates[i - kRailsMax]) return {};
  }
  std::vector<std::uint64_t> leaves;
  planner(id).leaves(request, &leaves);
  std::uint64_t longest = 0, shortest = ~std::uint64_t{0};
  for (std::size_t i = 0; i + 1 < leaves.size(); ++i) {
    longest = std::max(longest, leaves[i + 1] - leaves[i]);
    shortest = std::min(shortest, leaves[i + 1] - leaves[i]);
  }
  if (longest - shortest > (exactly ? 0 : cut_unit(request.element_bytes))) return {};
  // The rails between any two that exchange something must be those between the ranks that stand for them.
  std::vector<bool> seen(static_cast<std::size_t>(n));
  for (int a = 0; a < symmetry.cell; ++a) {
    Plan plan;
    planner(id).plan(request, a, &plan);
    seen.assign(seen.size(), false);
    for (const Step& s : plan.steps) {
      if (s.peer < 0 || seen[static_cast<std::size_t>(s.peer)]) continue;
      seen[static_cast<std::size_t>(s.peer)] = true;
      const std::uint32_t there = request.reach->rails(a, s.peer), back = request.reach->rails(s.peer, a);
      for (int by = 0; by < n; by += symmetry.cell) {
        const int from = symmetry.moved(a, by, n), to = symmetry.moved(s.peer, by, n);
        if (request.reach->rails(from, to) != there || request.reach->rails(to, from) != back) return {};
      }
    }
  }
  return symmetry;
}

double walk(PlannerId id, const PlanRequest& request, int rails, const CostModel& model, const Symmetry& symmetry,
            WalkWork* work) {
  Walk walk(id, request, rails, model, symmetry);
  const double seconds = walk.run();
  if (work != nullptr) *work = walk.work();
  return seconds;
}

}  // namespace canarynet
