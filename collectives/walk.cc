// Time goes from moment to moment. In each, first everything that happens then is noted: bytes that are there release
// what depended on them, messages join the queues of their ports. Then every port that may be free starts the best of
// what waits for it. So no result depends on the order in which ranks are looked at, and ranks whose plans are alike do
// the same at the same time.
#include "collectives/walk.h"

#include <algorithm>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "collectives/walk_events.h"
#include "collectives/walk_hosts.h"
#include "collectives/walk_lanes.h"
#include "collectives/walk_ports.h"

namespace canarynet {
namespace {

class Walk {
 public:
  Walk(PlannerId id, const PlanRequest& request, int rails, const CostModel& model, const Symmetry& symmetry)
      : request_(request),
        model_(model),
        laned_(model.links != nullptr && model.piece_bytes != 0),
        n_(static_cast<std::uint32_t>(request.ranks)),
        symmetry_(symmetry),
        walked_(symmetry.cell > 0 ? static_cast<std::uint32_t>(symmetry.cell) : n_),
        hosts_(request, rails, model) {
    cut_pieces(id);
    make_steps(id);
    match_messages();
    out_.make_gates();
    in_.make_gates();
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
    place_all();
    serve_all();
    for (std::vector<WalkEvents::Event> moment; events_.next(&now_, &moment);) {
      for (const WalkEvents::Event& e : moment) {
        switch (e.kind()) {
          case WalkEvents::kArrival: {
            const Step& send = steps_[e.index()];
            wait(in_, in_queue_of(send, e.task), {now_, piece_of(send, e.task), send.mate, e.task});
            break;
          }
          case WalkEvents::kHere: {
            const Step& send = steps_[e.index()];
            in_.look_again(in_queue_of(send, e.task), now_);
            if (goes_by_lane(send)) lanes_.arrived(lane_[send.task_begin + e.task], bytes_of(send, e.task));
            finish(e.index(), e.task);
            if (--pending_[steps_[send.mate].task_begin + e.task] == 0) ready(send.mate, e.task);
            break;
          }
          case WalkEvents::kDone:
            if (steps_[e.index()].kind == StepKind::kReceiveReduce)
              in_.look_again(in_queue_of(steps_[steps_[e.index()].mate], e.task), now_);
            finish(e.index(), e.task);
            break;
          case WalkEvents::kOutFree:
            out_.gates[e.index()].wakes_at = -1;
            out_.touch(e.index());
            break;
          case WalkEvents::kInFree:
            in_.gates[e.index()].wakes_at = -1;
            in_.touch(e.index());
            break;
        }
      }
      finish_all();
      place_all();
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
    // Of a send. way: kNone where each piece goes by a lane of the hosts `link`, which has the queues and the way.
    std::uint32_t out_queue = 0, in_queue = 0, link = 0, way = 0;
    // What waits for a port: the task that stands for others in the heap, in which queue, and how many follow it.
    // kNone: none does.
    std::uint32_t head = kNone, head_queue = 0, behind = 0;
    std::uint64_t bytes = 0;
  };
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
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
    if (laned_) lane_.resize(tasks_);
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
    std::vector<Keyed> out, in, links;
    std::unordered_map<std::uint64_t, std::uint32_t> pairs;  // of hosts, and their lanes' ports
    std::vector<Ports> lane_ports;
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

        const std::uint32_t out_port = hosts_.port_of(r, peer), in_port = hosts_.port_of(to, from);
        const bool local = hosts_.is_local(out_port);
        const std::uint64_t between = std::uint64_t{hosts_.host_of(r)} << 32 | hosts_.host_of(peer);
        if (laned_ && !local) {
          send.way = kNone;
          // Steps in a row often go the same way.
          if (std::exchange(of_last.first, between) != between) {
            const auto [pair, added] = pairs.try_emplace(between, 0);
            if (added) pair->second = add_lanes(r, peer, out_port, in_port, &lane_ports);
            of_last.second = pair->second;
          }
          send.link = static_cast<std::uint32_t>(of_last.second);
          continue;
        }
        const std::uint32_t out_rails = hosts_.rails_of_step(r, peer, wire_[i].rail);
        const std::uint32_t in_rails = hosts_.rails_of_step(peer, r, wire_[i].rail);
        WalkWay way{.local = local};
        way.alpha = local ? model_.local_alpha : model_.alpha;
        way.out_beta = hosts_.beta_of(out_port, out_rails);
        way.in_beta = hosts_.beta_of(in_port, in_rails);
        out.push_back({std::uint64_t{out_port} << 32 | out_rails, &send.out_queue});
        in.push_back({std::uint64_t{in_port} << 32 | in_rails, &send.in_queue});
        if (model_.links == nullptr || local) {
          send.way = number_of(way);
          continue;
        }
        // Messages that are not cut take all rails together, as a stream of small pieces would.
        const std::pair of_this = {between << 16 | out_rails, send.bytes};
        if (of_this != of_last) {
          link = model_.links->together(static_cast<int>(hosts_.host_of(r)), static_cast<int>(hosts_.host_of(peer)),
                                        out_rails, send.bytes);
          of_last = of_this;
        }
        way.alpha = link.alpha;
        way.link_beta = link.beta;
        send.way = number_of(way);
        links.push_back({between, &send.link});
      }
    }
    for (std::size_t i = 0; i < lane_ports.size(); ++i) {
      WalkLanes::Lane& lane = lanes_[static_cast<std::uint32_t>(i)];
      out.push_back({lane_ports[i].first, &lane.out_queue});
      in.push_back({lane_ports[i].second, &lane.in_queue});
    }
    const auto make_queue = [](WalkPorts& side) {
      return [&side](std::uint64_t key) {
        side.queues.push_back(
            {.port = static_cast<std::uint32_t>(key >> 32), .rails = static_cast<std::uint32_t>(key)});
        return static_cast<std::uint32_t>(side.queues.size() - 1);
      };
    };
    number(out, make_queue(out_));
    number(in, make_queue(in_));
    number(links, [&](std::uint64_t) {
      link_free_.push_back(0);
      return static_cast<std::uint32_t>(link_free_.size() - 1);
    });
  }

  // Numbers what has the same key (a port and its rails, or two hosts) alike, in the order of the keys.
  struct Keyed {
    std::uint64_t key;
    std::uint32_t* number;
  };
  template <typename Make>
  static void number(std::vector<Keyed>& all, Make make) {
    std::sort(all.begin(), all.end(), [](const Keyed& a, const Keyed& b) { return a.key < b.key; });
    std::uint32_t last = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (i == 0 || all[i].key != all[i - 1].key) last = make(all[i].key);
      *all[i].number = last;
    }
  }

  // The lanes from rank a to rank b, and the ports and rails at their ends. Returns the number of the pair.
  using Ports = std::pair<std::uint64_t, std::uint64_t>;
  std::uint32_t add_lanes(std::uint32_t a, std::uint32_t b, std::uint32_t out_port, std::uint32_t in_port,
                          std::vector<Ports>* ports) {
    const std::uint32_t pair = lanes_.add_pair();
    const auto from = static_cast<int>(hosts_.host_of(a)), to = static_cast<int>(hosts_.host_of(b));
    hosts_.each_rail(a, b, [&](int mine, int theirs) {
      const std::uint32_t out_rail = 1u << mine, in_rail = 1u << theirs;
      const LinkCost link = model_.links->of(from, to, mine);
      lanes_.add({.rail = mine,
                  .way = {.alpha = link.alpha,
                          .out_beta = hosts_.beta_of(out_port, out_rail),
                          .in_beta = hosts_.beta_of(in_port, in_rail),
                          .link_beta = link.beta}});
      ports->emplace_back(std::uint64_t{out_port} << 32 | out_rail, std::uint64_t{in_port} << 32 | in_rail);
    });
    return pair;
  }

  // Usually one of the last few.
  std::uint32_t number_of(const WalkWay& way) {
    const std::size_t begin = ways_.size() - std::min<std::size_t>(ways_.size(), 8);
    for (std::size_t i = ways_.size(); i-- > begin;) {
      if (ways_[i] == way) return static_cast<std::uint32_t>(i);
    }
    ways_.push_back(way);
    return static_cast<std::uint32_t>(ways_.size() - 1);
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

  void wait(WalkPorts& side, std::uint32_t queue, const WalkItem& item) {
    WalkPorts::Queue& q = side.queues[queue];
    side.touch(q.gate);
    Step& s = steps_[item.step];
    if (s.head != kNone && s.head_queue == queue && s.head + s.behind + 1 == item.task &&
        piece_of(s, item.task - 1) + 1 == item.piece) {
      ++s.behind;
      came_[s.task_begin + item.task] = item.at;
      return;
    }
    if (s.head == kNone) s.head = item.task, s.head_queue = queue;
    q.items.push_back(item);
    std::push_heap(q.items.begin(), q.items.end(), WalkBehind{});
    longest_ = std::max<std::uint64_t>(longest_, q.items.size());
  }
  WalkItem take_first(WalkPorts::Queue& queue) {
    std::vector<WalkItem>& items = queue.items;
    const WalkItem item = items.front();
    if (items.size() > 1) std::pop_heap(items.begin(), items.end(), WalkBehind{});
    Step& s = steps_[item.step];
    if (s.head != item.task || s.behind == 0) {
      if (s.head == item.task) s.head = kNone;
      items.pop_back();
      return item;
    }
    ++s.head;
    --s.behind;
    items.back() = {came_[s.task_begin + s.head], item.piece + 1, item.step, s.head};
    std::push_heap(items.begin(), items.end(), WalkBehind{});
    return item;
  }

  // All dependencies of the task are done, and the bytes that it receives are here.
  void ready(std::uint32_t step, std::uint32_t task) {
    const Step& s = steps_[step];
    switch (s.kind) {
      case StepKind::kSend: {
        const WalkItem item{now_, piece_of(s, task), step, task};
        if (goes_by_lane(s)) {
          to_place_.push_back(item);
        } else {
          wait(out_, s.out_queue, item);
        }
        break;
      }
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
        if (s.kind == StepKind::kReceiveReduce) in_.occupy(in_.queues[in_queue_of(steps_[s.mate], task)], at);
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

  // Gives the pieces of this moment to lanes, the lowest first.
  void place_all() {
    std::sort(to_place_.begin(), to_place_.end(),
              [](const WalkItem& a, const WalkItem& b) { return WalkBehind{}(b, a); });
    for (const WalkItem& item : to_place_) {
      const Step& send = steps_[item.step];
      const std::uint32_t lane = lanes_.choose(send.link, bytes_of(send, item.task), wire_[item.step].rail);
      lane_[send.task_begin + item.task] = lane;
      wait(out_, lanes_[lane].out_queue, item);
    }
    to_place_.clear();
  }

  static bool goes_by_lane(const Step& send) { return send.way == kNone; }
  const WalkWay& way_of(const Step& send, std::uint32_t task) const {
    return goes_by_lane(send) ? lanes_[lane_[send.task_begin + task]].way : ways_[send.way];
  }
  std::uint32_t in_queue_of(const Step& send, std::uint32_t task) const {
    return goes_by_lane(send) ? lanes_[lane_[send.task_begin + task]].in_queue : send.in_queue;
  }
  // When the link of the piece has carried what has left so far.
  double& free_of(const Step& send, std::uint32_t task) {
    return goes_by_lane(send) ? lanes_[lane_[send.task_begin + task]].free : link_free_[send.link];
  }

  void serve_all() {
    // Two rails may share what is said of a link, so somebody has to be first.
    if (model_.links != nullptr) std::sort(out_.dirty.begin(), out_.dirty.end());
    for (const std::uint32_t gate : out_.dirty)
      serve(out_, gate, WalkEvents::kOutFree,
            [this](WalkPorts::Queue& queue, const WalkItem& item) { leave(queue, item); });
    out_.dirty.clear();
    for (const std::uint32_t gate : in_.dirty)
      serve(in_, gate, WalkEvents::kInFree,
            [this](WalkPorts::Queue& queue, const WalkItem& item) { enter(queue, item); });
    in_.dirty.clear();
  }

  // Starts what can start now, best first, and plans another look for when the next rail is free.
  template <typename Start>
  void serve(WalkPorts& side, std::uint32_t index, WalkEvents::Kind wake, Start start) {
    WalkPorts::Gate& gate = side.gates[index];
    gate.dirty = false;
    for (;;) {
      WalkPorts::Queue* best = nullptr;
      double next = -1;
      for (std::uint32_t q = gate.queue_begin; q < gate.queue_end; ++q) {
        WalkPorts::Queue& queue = side.queues[q];
        if (queue.items.empty()) continue;
        if (queue.free > now_) {
          next = next < 0 ? queue.free : std::min(next, queue.free);
        } else if (best == nullptr || WalkBehind{}(best->items.front(), queue.items.front())) {
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
      const WalkItem item = take_first(*best);
      start(*best, item);
    }
  }

  void leave(WalkPorts::Queue& queue, const WalkItem& item) {
    const Step& send = steps_[item.step];
    const WalkWay& way = way_of(send, item.task);
    const auto bytes = static_cast<double>(bytes_of(send, item.task));
    double busy = bytes * way.out_beta;
    out_.occupy(queue, now_ + busy + (way.local ? 0 : model_.post));
    if (model_.links != nullptr) {
      if (!way.local) {
        // The message before this one may not have left the link yet.
        double& free = free_of(send, item.task);
        const double starts = std::max(free, now_), takes = bytes * way.link_beta;
        free = starts + takes;
        // Not free - now_, which is rounded: what ends at the same moment must do so exactly.
        busy = std::max(busy, starts == now_ ? takes : free - now_);
      }
      link_busy_[send.task_begin + item.task] = busy;
    }
    events_.push(now_ + way.alpha, WalkEvents::kArrival, item.step, item.task);
  }

  void enter(WalkPorts::Queue& queue, const WalkItem& item) {
    const std::uint32_t step = steps_[item.step].mate;
    const Step& send = steps_[step];
    const WalkWay& way = way_of(send, item.task);
    const auto bytes = static_cast<double>(bytes_of(send, item.task));
    const double busy = bytes * way.in_beta;
    in_.occupy(queue, now_ + busy);
    const double leaving = model_.links != nullptr ? link_busy_[send.task_begin + item.task] : bytes * way.out_beta;
    events_.push(now_ + std::max(busy, leaving), WalkEvents::kHere, step, item.task);
    // That event looks after the port, so no other one need wake it.
    WalkPorts::Gate& gate = in_.gates[queue.gate];
    if (leaving <= busy && (gate.wakes_at < 0 || now_ + busy < gate.wakes_at)) gate.wakes_at = now_ + busy;
  }

  struct Wire {
    std::int32_t peer;
    std::uint16_t tag;
    std::int16_t rail;
  };

  const PlanRequest& request_;
  const CostModel& model_;
  const bool laned_;  // pieces over measured links: each goes by a lane
  const std::uint32_t n_;
  const Symmetry symmetry_;
  const std::uint32_t walked_;  // ranks, from 0
  const WalkHosts hosts_;

  std::vector<std::uint32_t> piece_begin_;  // per leaf, and the end
  std::vector<std::uint64_t> piece_bytes_;
  std::vector<std::uint32_t> piece_number_;

  std::vector<Step> steps_;  // of all walked ranks
  std::vector<WalkWay> ways_;
  std::vector<Wire> wire_;                 // per step
  std::vector<std::uint32_t> first_step_;  // per walked rank, and the end
  std::vector<std::uint32_t> dependents_;
  std::vector<std::uint16_t> pending_;  // per task: dependencies, and the bytes of a receive
  std::vector<double> came_;            // per task that another stands for: since when it waits
  std::vector<double> link_busy_;       // per task of a send, with model.links: how long it holds the link
  std::vector<double> link_free_;       // per pair of hosts, for messages that are not cut: when the next may start
  WalkLanes lanes_;                     // with pieces over model.links
  std::vector<std::uint32_t> lane_;     // per task of a send: the lane that took it
  std::vector<WalkItem> to_place_;      // pieces that became ready in this moment

  WalkPorts out_, in_;
  WalkEvents events_;
  std::vector<Task> finished_;  // tasks whose dependents are not told yet
  double now_ = 0, end_ = 0;
  std::uint64_t tasks_ = 0, done_ = 0, longest_ = 0;
};

}  // namespace

double walk(PlannerId id, const PlanRequest& request, int rails, const CostModel& model, const Symmetry& symmetry,
            WalkWork* work) {
  Walk walk(id, request, rails, model, symmetry);
  const double seconds = walk.run();
  if (work != nullptr) *work = walk.work();
  return seconds;
}

}  // namespace canarynet
