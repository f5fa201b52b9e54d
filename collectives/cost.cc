#include "collectives/cost.h"

#include <algorithm>
#include <bit>
#include <queue>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "collectives/plan_builder.h"

namespace canarynet {
namespace {

// One plan as tasks. A task is a step, or one piece of a step.
class Walk {
 public:
  Walk(PlannerId id, const PlanRequest& request, int rails, const CostModel& model)
      : request_(request), model_(model), rails_(std::max(rails, 1)) {
    planner(id).leaves(request, &leaves_);
    cut_pieces();
    const auto n = static_cast<std::size_t>(request.ranks);
    ranks_.resize(n);
    out_.resize(2 * n);
    in_.resize(2 * n);
    for (std::size_t r = 0; r < n; ++r) prepare(id, static_cast<int>(r));
    if (model_.links != nullptr) find_nic_rates();
  }

  double run() {
    struct Ready {
      std::uint32_t rank, step, task;
    };
    // Collected before any of them runs: a copy is done at once and would make others ready in this very loop.
    std::vector<Ready> first;
    for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
      const Rank& rank = ranks_[r];
      for (std::uint32_t s = 0; s < rank.plan.steps.size(); ++s) {
        for (std::uint32_t u = rank.first_task[s]; u < rank.first_task[s + 1]; ++u) {
          if (rank.pending[u] == 0) first.push_back({r, s, u});
        }
      }
    }
    for (const Ready& u : first) ready(u.rank, u.step, u.task, 0);
    while (!events_.empty()) {
      const Event e = events_.top();
      events_.pop();
      switch (e.kind) {
        case Event::kSend: {
          const Step& send = ranks_[e.rank].plan.steps[e.step];
          const std::uint32_t port = port_of(e.rank, send.peer);
          queue(out_[port], rails_between(port, e.rank, send.peer, send.rail)).push(e);
          serve_out(port, e.at);
          break;
        }
        case Event::kArrival: {
          const Step& send = ranks_[e.rank].plan.steps[e.step];
          const std::uint32_t port = port_of(static_cast<std::uint32_t>(send.peer), static_cast<int>(e.rank));
          queue(in_[port], rails_between(port, send.peer, static_cast<int>(e.rank), send.rail)).push(e);
          serve_in(port, e.at);
          break;
        }
        case Event::kOutFree:
          out_[e.rank].wakes_at = -1;
          serve_out(e.rank, e.at);
          break;
        case Event::kInFree:
          in_[e.rank].wakes_at = -1;
          serve_in(e.rank, e.at);
          break;
      }
    }
    CANARY_CHECK(tasks_done_ == tasks_, "a proven plan ends");
    return end_;
  }

 private:
  struct Event {
    // Events of one moment: arrivals come before free ports, so that a port chooses among everything that has come.
    enum Kind : std::uint8_t { kSend, kArrival, kOutFree, kInFree };
    double at;
    Kind kind;
    std::uint64_t order;             // ties: first come
    std::uint32_t rank, step, task;  // of the send; kOutFree, kInFree: the ports, numbered as by port_of()
    std::uint32_t piece;
    double busy = 0;  // kArrival: how long it occupies the sender's port
    bool operator>(const Event& o) const {
      const bool later = kind >= kOutFree, others = o.kind >= kOutFree;
      return at != o.at ? at > o.at : later != others ? later : order > o.order;
    }
  };
  struct Behind {
    bool operator()(const Event& a, const Event& b) const {
      return a.piece != b.piece ? a.piece > b.piece : a.at != b.at ? a.at > b.at : a.order > b.order;
    }
  };
  using Waiting = std::priority_queue<Event, std::vector<Event>, Behind>;
  // One direction of a host, or of a rank towards its neighbours on the host.
  struct Ports {
    std::vector<double> free;                                // per rail
    std::vector<std::pair<std::uint32_t, Waiting>> waiting;  // per set of rails that messages take together
    double wakes_at = -1;                                    // when it next looks for work; < 0: not planned
  };
  struct Rank {
    Plan plan;
    std::uint32_t host = 0;                 // its first rank
    std::vector<std::uint32_t> first_task;  // per step, and the end
    std::vector<std::vector<std::uint32_t>> dependents;
    std::vector<std::uint32_t> pending;    // per task
    std::vector<double> here;              // per task of a receive: when its bytes came; < 0: not yet
    std::vector<std::uint32_t> came_over;  // and over which rails
  };
  // Cuts each leaf into pieces; one piece holds the whole leaf if messages are not cut.
  void cut_pieces() {
    piece_begin_.push_back(0);
    for (std::size_t leaf = 0; leaf + 1 < leaves_.size(); ++leaf) {
      const std::uint64_t bytes = (leaves_[leaf + 1] - leaves_[leaf]) * request_.element_bytes;
      const std::uint64_t most = model_.piece_bytes;
      const std::uint64_t pieces = most == 0 ? 1 : (bytes + most - 1) / most;
      for (std::uint64_t c = 0; c < pieces; ++c)
        piece_bytes_.push_back(most == 0 ? bytes : std::min(most, bytes - c * most));
      piece_begin_.push_back(static_cast<std::uint32_t>(piece_bytes_.size()));
    }
  }
  // The pieces that a step covers, as numbers that dependent steps share.
  std::pair<std::uint32_t, std::uint32_t> pieces_of(const Step& step) const {
    return {piece_begin_[step.leaf_begin], piece_begin_[step.leaf_end]};
  }
  bool whole() const { return model_.piece_bytes == 0; }

  std::uint64_t bytes_of(const Rank& rank, std::uint32_t step, std::uint32_t task) const {
    const auto [begin, end] = pieces_of(rank.plan.steps[step]);
    if (!whole()) return piece_bytes_[begin + task - rank.first_task[step]];
    std::uint64_t bytes = 0;
    for (std::uint32_t c = begin; c < end; ++c) bytes += piece_bytes_[c];
    return bytes;
  }

  void prepare(PlannerId id, int r) {
    Rank& rank = ranks_[static_cast<std::size_t>(r)];
    planner(id).plan(request_, r, &rank.plan);
    const auto& hosts = request_.host_of;
    const int host =
        hosts.empty() ? r : static_cast<int>(std::find(hosts.begin(), hosts.end(), hosts[r]) - hosts.begin());
    rank.host = static_cast<std::uint32_t>(host);
    const std::vector<Step>& steps = rank.plan.steps;
    rank.first_task.push_back(0);
    for (const Step& s : steps) {
      const auto [begin, end] = pieces_of(s);
      rank.first_task.push_back(rank.first_task.back() + (whole() ? 1 : end - begin));
    }
    rank.pending.resize(rank.first_task.back());
    rank.here.assign(rank.first_task.back(), -1);
    rank.came_over.assign(rank.first_task.back(), 0);
    rank.dependents.resize(steps.size());
    for (std::uint32_t s = 0; s < steps.size(); ++s) {
      for (const std::uint32_t before : rank.plan.deps_of(steps[s])) {
        rank.dependents[before].push_back(s);
        each_shared(rank, before, s, [&](std::uint32_t, std::uint32_t task) { ++rank.pending[task]; });
      }
      const bool receives = steps[s].kind == StepKind::kReceive || steps[s].kind == StepKind::kReceiveReduce;
      if (receives) receives_.emplace_back(key(steps[s].peer, r, steps[s].tag), s);
    }
    tasks_ += rank.first_task.back();
    const std::size_t port = static_cast<std::size_t>(r), local = port + static_cast<std::size_t>(request_.ranks);
    for (Ports* ports : {&out_[port], &in_[port], &out_[local], &in_[local]})
      ports->free.assign(static_cast<std::size_t>(rails_), 0);
    if (r + 1 == request_.ranks) std::sort(receives_.begin(), receives_.end());
  }

  // Visits (task of `a`, task of `b`) for the pieces that both cover.
  template <typename Visit>
  void each_shared(const Rank& rank, std::uint32_t a, std::uint32_t b, Visit visit) const {
    if (whole()) return visit(rank.first_task[a], rank.first_task[b]);
    const auto [a_begin, a_end] = pieces_of(rank.plan.steps[a]);
    const auto [b_begin, b_end] = pieces_of(rank.plan.steps[b]);
    for (std::uint32_t c = std::max(a_begin, b_begin); c < std::min(a_end, b_end); ++c)
      visit(rank.first_task[a] + c - a_begin, rank.first_task[b] + c - b_begin);
  }

  static std::uint64_t key(int from, int to, std::uint16_t tag) {
    return static_cast<std::uint64_t>(from) << 40 | static_cast<std::uint64_t>(to) << 16 | tag;
  }
  std::uint32_t receive_of(std::uint32_t from, const Step& send) const {
    const std::uint64_t wanted = key(static_cast<int>(from), send.peer, send.tag);
    const auto found = std::lower_bound(receives_.begin(), receives_.end(), std::pair{wanted, std::uint32_t{0}});
    CANARY_CHECK(found != receives_.end() && found->first == wanted, "a send nobody receives");
    return found->second;
  }

  // The ports that rank r uses towards a peer: its host's, under the number of the host's first rank, or, on the same
  // host, its own, which follow all of those.
  std::uint32_t port_of(std::uint32_t r, int peer) const {
    const std::uint32_t host = ranks_[r].host;
    return host == ranks_[static_cast<std::size_t>(peer)].host ? r + static_cast<std::uint32_t>(request_.ranks) : host;
  }
  bool is_local(std::uint32_t port) const { return port >= ranks_.size(); }
  // The rails of `here` that a message to or from `peer` takes: the step's own if it reaches the peer, otherwise all
  // that do.
  std::uint32_t rails_between(std::uint32_t port, int here, int peer, int preferred) const {
    const std::uint32_t all = (1u << rails_) - 1;
    if (is_local(port)) return all;
    const std::uint32_t known = request_.reach->rails(here, peer) & all;
    const std::uint32_t reaching = known == 0 ? all : known;
    const std::uint32_t own = preferred >= 0 && preferred < rails_ ? 1u << preferred : 0;
    return (reaching & own) != 0 ? own : reaching;
  }
  std::uint32_t rails_between(std::uint32_t port, std::uint32_t here, int peer, int preferred) const {
    return rails_between(port, static_cast<int>(here), peer, preferred);
  }
  double seconds_of(std::uint32_t port, std::uint64_t bytes, std::uint32_t rails) const {
    const auto size = static_cast<double>(bytes);
    if (is_local(port)) return size * model_.local_beta;
    const std::span<const double> rates = model_.links != nullptr ? std::span(nic_rates_) : request_.rail_rates;
    if (rates.empty()) return size * model_.beta / std::popcount(rails);
    double rate = 0;
    for (std::uint32_t left = rails; left != 0; left &= left - 1)
      rate += rates[std::size_t{port} * kRailsMax + static_cast<std::size_t>(std::countr_zero(left))];
    return rate > 0 ? size / rate : 0;
  }
  // A NIC carries at least as much as its fastest link, in either direction.
  void find_nic_rates() {
    nic_rates_.assign(ranks_.size() * kRailsMax, 0);
    for (std::uint32_t a = 0; a < ranks_.size(); ++a) {
      for (std::uint32_t b = 0; b < ranks_.size(); ++b) {
        if (ranks_[a].host != a || ranks_[b].host != b || a == b) continue;
        const std::uint32_t out = rails_between(a, a, static_cast<int>(b), -1);
        const std::uint32_t in = rails_between(b, b, static_cast<int>(a), -1);
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
  // The cost is that of the whole step, so that a stream of pieces uses rails that a single piece would not wait for.
  LinkCost link_between(const Event& e, std::uint32_t rails) const {
    const Rank& rank = ranks_[e.rank];
    const Step& send = rank.plan.steps[e.step];
    std::uint64_t bytes = 0;
    for (auto [p, end] = pieces_of(send); p < end; ++p) bytes += piece_bytes_[p];
    const auto to = static_cast<int>(ranks_[static_cast<std::size_t>(send.peer)].host);
    return model_.links->together(static_cast<int>(rank.host), to, rails, bytes);
  }

  static Waiting& queue(Ports& ports, std::uint32_t rails) {
    const auto same = [rails](const auto& w) { return w.first == rails; };
    const auto found = std::find_if(ports.waiting.begin(), ports.waiting.end(), same);
    return found != ports.waiting.end() ? found->second : ports.waiting.emplace_back(rails, Waiting()).second;
  }
  double free_at(const Ports& ports, std::uint32_t rails) const {
    double free = 0;
    for (std::size_t l = 0; l < ports.free.size(); ++l) {
      if ((rails >> l & 1) != 0) free = std::max(free, ports.free[l]);
    }
    return free;
  }
  void occupy(Ports& ports, std::uint32_t rails, double until) {
    for (std::size_t l = 0; l < ports.free.size(); ++l) {
      if ((rails >> l & 1) != 0) ports.free[l] = until;
    }
  }

  // Starts what can start now, best first, and plans another look for when the next port is free.
  template <typename Start>
  void serve(Ports& ports, std::uint32_t port, double now, Event::Kind wake, Start start) {
    for (;;) {
      std::size_t best = ports.waiting.size();
      double next = -1;
      for (std::size_t q = 0; q < ports.waiting.size(); ++q) {
        if (ports.waiting[q].second.empty()) continue;
        const double free = free_at(ports, ports.waiting[q].first);
        if (free > now) {
          next = next < 0 ? free : std::min(next, free);
        } else if (best == ports.waiting.size() ||
                   Behind{}(ports.waiting[best].second.top(), ports.waiting[q].second.top())) {
          best = q;
        }
      }
      if (best != ports.waiting.size()) {
        const Event e = ports.waiting[best].second.top();
        ports.waiting[best].second.pop();
        start(e, ports.waiting[best].first);
        continue;
      }
      if (next >= 0 && (ports.wakes_at < 0 || next < ports.wakes_at)) {
        ports.wakes_at = next;
        events_.push({next, wake, order_++, port, 0, 0, 0});
      }
      return;
    }
  }

  void ready(std::uint32_t r, std::uint32_t step, std::uint32_t task, double at) {
    Rank& rank = ranks_[r];
    switch (rank.plan.steps[step].kind) {
      case StepKind::kSend:
        events_.push({at, Event::kSend, order_++, r, step, task, piece_of(rank, step, task)});
        break;
      case StepKind::kCopy:
        done(r, step, task, at);
        break;
      case StepKind::kReduce:
        done(r, step, task, at + static_cast<double>(bytes_of(rank, step, task)) * model_.gamma);
        break;
      case StepKind::kReceive:
      case StepKind::kReceiveReduce:
        if (rank.here[task] >= 0) process(r, step, task, std::max(at, rank.here[task]));
        break;
    }
  }

  // The piece's number within its leaf, so that the trees of a double tree are served alike.
  std::uint32_t piece_of(const Rank& rank, std::uint32_t step, std::uint32_t task) const {
    if (whole()) return 0;
    const std::uint32_t piece = pieces_of(rank.plan.steps[step]).first + task - rank.first_task[step];
    return piece - *(std::upper_bound(piece_begin_.begin(), piece_begin_.end(), piece) - 1);
  }

  void serve_out(std::uint32_t port, double now) {
    serve(out_[port], port, now, Event::kOutFree, [&](const Event& e, std::uint32_t rails) {
      const std::uint64_t bytes = bytes_of(ranks_[e.rank], e.step, e.task);
      double busy = seconds_of(port, bytes, rails);
      occupy(out_[port], rails, now + busy + (is_local(port) ? 0 : model_.post));
      double alpha = is_local(port) ? model_.local_alpha : model_.alpha;
      if (model_.links != nullptr && !is_local(port)) {
        const LinkCost link = link_between(e, rails);
        alpha = link.alpha;
        // The message before this one may not have left the link yet.
        const auto to = ranks_[static_cast<std::size_t>(ranks_[e.rank].plan.steps[e.step].peer)].host;
        double& free = link_free_[std::uint64_t{port} << 32 | to];
        free = std::max(free, now) + static_cast<double>(bytes) * link.beta;
        busy = std::max(busy, free - now);
      }
      events_.push({now + alpha, Event::kArrival, order_++, e.rank, e.step, e.task, e.piece, busy});
    });
  }

  void serve_in(std::uint32_t port, double now) {
    serve(in_[port], port, now, Event::kInFree, [&](const Event& e, std::uint32_t rails) {
      const Rank& from = ranks_[e.rank];
      const Step& send = from.plan.steps[e.step];
      const auto to = static_cast<std::uint32_t>(send.peer);
      Rank& rank = ranks_[to];
      // The last byte can't come before the sender's rails have let it go; faster rails here carry others meanwhile.
      const double busy = seconds_of(port, bytes_of(from, e.step, e.task), rails);
      const double end = now + std::max(busy, e.busy);
      occupy(in_[port], rails, now + busy);
      const std::uint32_t step = receive_of(e.rank, send);
      const std::uint32_t task = rank.first_task[step] + e.task - from.first_task[e.step];
      rank.here[task] = end;
      rank.came_over[task] = rails;
      done(e.rank, e.step, e.task, end);
      if (rank.pending[task] == 0) process(to, step, task, end);
    });
  }

  // Called when the bytes are here and it is their turn.
  void process(std::uint32_t r, std::uint32_t step, std::uint32_t task, double at) {
    Rank& rank = ranks_[r];
    const Step& s = rank.plan.steps[step];
    if (s.kind == StepKind::kReceiveReduce && model_.gamma > 0) {
      // Rails add side by side, each what came over it.
      at += static_cast<double>(bytes_of(rank, step, task)) * model_.gamma;
      const std::uint32_t rails = rank.came_over[task];
      Ports& ports = in_[port_of(r, s.peer)];
      occupy(ports, rails, std::max(at, free_at(ports, rails)));
    }
    done(r, step, task, at);
  }

  void done(std::uint32_t r, std::uint32_t step, std::uint32_t task, double at) {
    end_ = std::max(end_, at);
    ++tasks_done_;
    Rank& rank = ranks_[r];
    for (const std::uint32_t next : rank.dependents[step]) {
      const std::uint32_t piece = whole() ? 0 : pieces_of(rank.plan.steps[step]).first + task - rank.first_task[step];
      const auto [begin, end] = pieces_of(rank.plan.steps[next]);
      if (!whole() && (piece < begin || piece >= end)) continue;
      const std::uint32_t waiting = rank.first_task[next] + (whole() ? 0 : piece - begin);
      if (--rank.pending[waiting] == 0) ready(r, next, waiting, at);
    }
  }

  const PlanRequest& request_;
  const CostModel& model_;
  const int rails_;
  std::vector<std::uint64_t> leaves_;
  std::vector<std::uint32_t> piece_begin_;  // per leaf, and the end
  std::vector<std::uint64_t> piece_bytes_;
  std::vector<Rank> ranks_;
  std::vector<Ports> out_, in_;    // as port_of() has them
  std::vector<double> nic_rates_;  // [host * kRailsMax + rail], bytes a second; with model.links only
  std::unordered_map<std::uint64_t, double> link_free_;            // by the two hosts: when the next message may start
  std::vector<std::pair<std::uint64_t, std::uint32_t>> receives_;  // (from, to, tag) → step
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t order_ = 0;
  std::uint64_t tasks_ = 0, tasks_done_ = 0;
  double end_ = 0;
};

// Ranks per host; 0 if hosts have different numbers of them.
double ranks_per_host(const PlanRequest& request) {
  if (request.host_of.empty()) return 1;
  const auto ranks_of = [&](int host) { return std::count(request.host_of.begin(), request.host_of.end(), host); };
  const auto k = ranks_of(request.host_of.front());
  const bool equal =
      std::all_of(request.host_of.begin(), request.host_of.end(), [&](int host) { return ranks_of(host) == k; });
  return equal ? static_cast<double>(k) : 0;
}

}  // namespace

double walk_cost(PlannerId id, const PlanRequest& request, int rails, const CostModel& model) {
  return Walk(id, request, rails, model).run();
}

Result<double> closed_form(PlannerId id, const PlanRequest& request, int rails, const CostModel& model) {
  const double n = request.ranks;
  const double alpha = model.alpha, beta = model.beta, gamma = model.gamma, post = model.post;
  const double all = std::max(rails, 1);  // a step without a preference uses all rails together
  // The larger of one rank's two buffers.
  const double bytes =
      static_cast<double>(request.total() * request.element_bytes) / (is_pairwise(request.collective) ? n : 1);
  const double share = (n - 1) / n * bytes;
  const bool power = std::has_single_bit(static_cast<unsigned>(request.ranks));
  const double lg = std::bit_width(static_cast<unsigned>(request.ranks)) - 1;
  const bool all_reduce = request.collective == Collective::kAllReduce;
  const bool broadcast = request.collective == Collective::kBroadcast;
  const bool gathers = request.collective == Collective::kAllGather || request.collective == Collective::kAllGatherV;
  const bool pairwise = is_pairwise(request.collective);
  const bool scatters = request.collective == Collective::kReduceScatter;
  const bool to_root = request.collective == Collective::kReduce;
  const bool collects = request.collective == Collective::kGather;
  const bool deals = request.collective == Collective::kScatter;
  const auto none = [&] {
    return Status(CANARY_INVALID_ARGUMENT, std::string(name_of(id)) + " has no closed form for " +
                                               std::string(name_of(request.collective)) + " among " +
                                               std::to_string(request.ranks) + " ranks");
  };
  if (request.ranks == 1) return 0.0;
  // The forms add up what pieces overlap; only that of the pipelined trees accounts for pieces.
  if (model.piece_bytes != 0 && id != PlannerId::kDoubleTree) return none();
  const double adders = id == PlannerId::kRingPerRail ? all : 1;
  const double half = !reduces(request.collective)
                          ? share * beta / all
                          : share * (beta / all + gamma / adders);  // one half of an all-reduce
  switch (id) {
    case PlannerId::kRing:
    case PlannerId::kRingPerRail:
      if (all_reduce) return 2 * (n - 1) * alpha + share * (2 * beta / all + gamma / adders);
      if (gathers || scatters) return (n - 1) * alpha + half;
      if (broadcast) return (n - 1) * (alpha + bytes * beta / all);
      if (to_root) return (n - 1) * (alpha + bytes * (beta / all + gamma / adders));
      return none();
    case PlannerId::kMesh:
      if (all_reduce) return 2 * (alpha + (n - 2) * post) + share * (2 * beta / all + gamma);
      if (gathers || scatters || deals || pairwise) return alpha + (n - 2) * post + half;
      if (collects) return alpha + half;
      if (to_root) return 2 * alpha + (n - 2) * post + share * (2 * beta / all + gamma);
      return none();
    case PlannerId::kBCube: {
      const double L = request.bcube.levels, r = request.bcube.r;
      if (all_reduce && rails >= request.bcube.levels)
        return 2 * L * (alpha + (r - 2) * post) + share * (2 * beta + gamma) / L;
      return none();
    }
    case PlannerId::kBCubeX: {
      // Up to the last level 1/r^(L-1) is left of each part, which then goes to all mates.
      const double L = request.bcube.levels, r = request.bcube.r, left = r / n;
      if (all_reduce && rails >= request.bcube.levels) {
        return (2 * L - 1) * (alpha + (r - 2) * post) +
               bytes / L * ((1 - left) * (2 * beta + gamma) + (r - 1) * left * (beta + gamma));
      }
      return none();
    }
    case PlannerId::kHalvingDoubling:
      if (!power) return none();
      if (exchanges_whole(request)) return lg * (alpha + bytes * (beta / all + gamma));
      if (all_reduce) return 2 * lg * alpha + share * (2 * beta / all + gamma);
      if (gathers || scatters) return lg * alpha + half;
      if (to_root) return 2 * lg * alpha + share * (2 * beta / all + gamma);
      return none();
    case PlannerId::kTree:
      if (!power) return none();
      if (all_reduce) return 2 * lg * alpha + lg * bytes * (2 * beta / all + gamma);
      if (broadcast) return lg * (alpha + bytes * beta / all);
      if (to_root) return lg * (alpha + bytes * (beta / all + gamma));
      return none();
    case PlannerId::kDoubleTree:
      if (power && all_reduce && model.piece_bytes != 0 && post == 0)
        return 2 * lg * alpha + bytes * (2 * beta / all + gamma);
      return none();
    case PlannerId::kHierarchical: {
      // All hosts have the same number of ranks, whose NICs serve them all. The α terms of one part hide behind the β
      // terms of another, so this is exact for either alone and a bound for both; the work inside a host hides behind
      // the exchange as well.
      const double k = ranks_per_host(request);
      if (k == 0 || !all_reduce || post != 0 || gamma != 0 || model.local_beta != 0) return none();
      const double hosts = n / k, wire = (hosts - 1) / hosts * bytes;
      const double local = k > 1 ? 2 * model.local_alpha : 0;
      if (hosts == 1) return local;
      // Data goes straight to its home and back if a ring would not pipeline.
      const double steps = hosts > 2 && bytes < hosts * 128 * 1024 ? 1 : hosts - 1;
      return 2 * (steps * alpha + wire * beta / all) + local;
    }
    case PlannerId::kParameterServer:
      if (all_reduce && request.servers == 1)
        return 2 * alpha + (n - 2) * post + (n - 1) * bytes * (2 * beta / all + gamma);
      if (broadcast) return alpha + (n - 2) * post + (n - 1) * bytes * beta / all;
      if (to_root) return alpha + (n - 1) * bytes * (beta / all + gamma);
      return none();
  }
  return none();
}

}  // namespace canarynet
