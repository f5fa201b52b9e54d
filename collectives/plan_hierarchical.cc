// Hierarchical: the ranks of one host reduce among themselves first, one exchange crosses the network per host, then
// the hosts' ranks hand the result to each other. A host sends and receives 2(H-1)/H of the buffer in an all-reduce,
// however many ranks it has.
//
// Every leaf has a *home* host, where its reduction ends and its result starts. On each host it has a *carrier*, the
// one rank that acts for the host on that leaf: it adds its neighbours' contributions, exchanges with the leaf's other
// carriers, and hands the result out. For all-reduce the space is cut in as many parts as the largest host has ranks;
// the ranks of a host carry a run of parts each (hosts with fewer ranks: several), and each part has a leaf per home.
// For reduce-scatter and all-gather a rank's block has its home at the rank's host and is carried by the rank itself
// there, elsewhere by the rank at the same position (mod the host's ranks). All of it is cut in pieces: a piece crosses
// the network while its neighbours are still being added.
//
// Between hosts the carriers form a ring. Messages too small to pipeline around it go straight to the home and back;
// large ones do so too if each pair of hosts has rails of its own, of which a ring would use two.
// Order of sums: at each host own, then the neighbours upward (mod k); among hosts home + 1, home + 2, … (mod H), home
// last on the ring and first otherwise.
#include <algorithm>

#include "collectives/plan_builder.h"
#include "collectives/wiring.h"

namespace canarynet {
namespace {

// A ring's segments should hold a piece each: below that, its message times cost more than they save.
constexpr std::uint64_t kRingBytesPerHost = 128 * 1024;

bool in_blocks(const PlanRequest& request) {
  return request.collective == Collective::kReduceScatter || request.collective == Collective::kAllGather;
}

// The hosts of all ranks, and the carrier of each leaf.
class Hosts {
 public:
  explicit Hosts(const PlanRequest& request) : request_(request), host_of_(request.ranks), index_of_(request.ranks) {
    std::vector<int> known;  // host_of's numbers in the order of their first ranks
    for (int r = 0; r < request.ranks; ++r) {
      std::size_t host = ranks_.size();  // unknown: a host of its own
      if (!request.host_of.empty()) {
        host = static_cast<std::size_t>(std::find(known.begin(), known.end(), request.host_of[r]) - known.begin());
      }
      if (host == ranks_.size()) {
        ranks_.emplace_back();
        if (!request.host_of.empty()) known.push_back(request.host_of[r]);
      }
      host_of_[r] = static_cast<int>(host);
      index_of_[r] = static_cast<int>(ranks_[host].size());
      ranks_[host].push_back(r);
    }
    for (const auto& ranks : ranks_) {
      parts_ = std::max(parts_, static_cast<int>(ranks.size()));
      fewest_ = std::min(fewest_, static_cast<int>(ranks.size()));
    }
    // A broadcast's home would send everything to each host, so no link would carry less than around the ring.
    const bool spreads = request.collective == Collective::kAllReduce || in_blocks(request);
    const std::uint64_t bytes = request.total() * request.element_bytes;
    direct_ = hosts() > 2 && (bytes < kRingBytesPerHost * static_cast<std::uint64_t>(hosts()) ||
                              (spreads && straight_beats_ring_between_hosts(request)));
  }

  int hosts() const { return static_cast<int>(ranks_.size()); }
  int host_of(int rank) const { return host_of_[rank]; }
  int index_of(int rank) const { return index_of_[rank]; }
  const std::vector<int>& ranks_of(int host) const { return ranks_[host]; }
  int parts() const { return parts_; }  // ranks of the largest host

  int leaf_count() const {
    switch (request_.collective) {
      case Collective::kAllReduce:
        return parts_ * hosts();
      case Collective::kBroadcast:
        return parts_;
      case Collective::kBarrier:
        return 1;
      default:
        return request_.ranks;
    }
  }
  int home_of(int leaf) const {
    switch (request_.collective) {
      case Collective::kAllReduce:
        return leaf % hosts();  // leaf = part * hosts + home
      case Collective::kBroadcast:
        return host_of_[request_.root];
      case Collective::kBarrier:
        return 0;
      default:
        return host_of_[leaf];
    }
  }
  int carrier(int host, int leaf) const {
    const std::vector<int>& ranks = ranks_[host];
    const int k = static_cast<int>(ranks.size());
    switch (request_.collective) {
      case Collective::kAllReduce:
        return ranks[leaf / hosts() * k / parts_];
      case Collective::kBroadcast:
        return host == host_of_[request_.root] ? request_.root : ranks[leaf * k / parts_];
      case Collective::kBarrier:
        return ranks[0];
      default:
        return ranks[index_of_[leaf] % k];
    }
  }

  // Whether data goes straight to the home and back, instead of around the ring.
  bool direct() const { return direct_; }
  // The most messages that can pass from one rank to another.
  std::int64_t messages_max() const {
    if (in_blocks(request_)) return 2 * std::int64_t{request_.ranks};
    return 2 * std::int64_t{hosts()} * ((parts_ + fewest_ - 1) / fewest_);
  }

 private:
  const PlanRequest& request_;
  std::vector<int> host_of_, index_of_;
  std::vector<std::vector<int>> ranks_;
  int parts_ = 1;
  int fewest_ = kPlanRanksMax;
  bool direct_ = false;
};

bool defines(Collective collective, int) {
  switch (collective) {
    case Collective::kAllReduce:
    case Collective::kReduceScatter:
    case Collective::kAllGather:
    case Collective::kBroadcast:
    case Collective::kBarrier:
      return true;
    default:
      return false;
  }
}

Status check(const PlanRequest& request) {
  if (Status status = check_request(kHierarchicalPlanner, request); !status.ok()) return status;
  if (!request.host_of.empty() && request.host_of.size() != static_cast<std::size_t>(request.ranks)) {
    return {CANARY_INVALID_ARGUMENT, "hosts are told for " + std::to_string(request.host_of.size()) + " ranks of " +
                                         std::to_string(request.ranks)};
  }
  const Hosts hosts(request);
  if (hosts.messages_max() > kTagsMax) {
    return {CANARY_LIMIT, "hierarchical sends up to " + std::to_string(hosts.messages_max()) +
                              " messages to one rank here; the limit is " + std::to_string(kTagsMax)};
  }
  const auto need = [&](int a, int b) {
    return a == b ? Status() : need_edge(PlannerId::kHierarchical, *request.reach, a, b);
  };
  const int n = hosts.hosts();
  // Reductions leave the ring open after their home, results before it.
  const bool whole = request.collective == Collective::kAllReduce || request.collective == Collective::kBarrier;
  const bool reduces = request.collective == Collective::kReduceScatter;
  for (int leaf = 0; leaf < hosts.leaf_count(); ++leaf) {
    const int home = hosts.home_of(leaf);
    for (int h = 0; h < n; ++h) {
      const int carrier = hosts.carrier(h, leaf);
      for (const int r : hosts.ranks_of(h)) {
        if (Status status = need(carrier, r); !status.ok()) return status;
      }
      const int next = (h + 1) % n;
      const bool open = !whole && (reduces ? h == home : next == home);
      const int other = hosts.direct() ? home : open ? h : next;
      if (Status status = need(carrier, hosts.carrier(other, leaf)); !status.ok()) return status;
    }
  }
  return {};
}

void leaves(const PlanRequest& request, std::vector<std::uint64_t>* out) {
  out->clear();
  if (in_blocks(request)) return cut_blocks(request, out);
  cut_evenly(0, request.total(), Hosts(request).leaf_count(), request.element_bytes, out);
  out->push_back(request.total());
}

// One rank's part.
class Hierarchical {
 public:
  Hierarchical(const PlanRequest& request, int rank, Plan* out)
      : hosts_(request),
        host_(hosts_.host_of(rank)),
        index_(hosts_.index_of(rank)),
        n_(hosts_.hosts()),
        k_(static_cast<int>(hosts_.ranks_of(host_).size())),
        rank_(rank),
        leaf_count_(hosts_.leaf_count()),
        wire_rounds_(n_ - 1),
        local_rounds_(hosts_.parts() - 1),
        homed_(n_),
        build_(out, request.ranks, static_cast<std::uint32_t>(leaf_count_)) {
    for (int leaf = 0; leaf < leaf_count_; ++leaf) homed_[hosts_.home_of(leaf)].push_back(leaf);
  }

  // `own` holds every rank's contribution; sums live in `partial`, at a leaf's home in `result`.
  void reduce(Buffer own, Buffer partial, Buffer result, bool finish) {
    const auto sum = [&](int leaf) { return hosts_.home_of(leaf) == host_ ? result : partial; };
    const auto held = [&](int leaf) { return k_ > 1 ? sum(leaf) : own; };  // the host's sum
    // Leaves come in the order in which the host sends them off; its own, which only wait for others, come last.
    for (int j = 1; j < k_; ++j) {
      const int to = neighbour(-j);
      for (int t = 1; t <= n_; ++t) {
        each_carried(at(host_ - t), to,
                     [&](int leaf) { build_.send({.peer = to, .round = j - 1, .run = one(leaf)}, own); });
      }
    }
    for (int j = 1; j < k_; ++j) {
      const int from = neighbour(j);
      const bool last = finish && n_ == 1 && j == k_ - 1;
      for (int t = 1; t <= n_; ++t) {
        each_carried(at(host_ - t), rank_, [&](int leaf) {
          build_.receive_reduce({.peer = from, .round = j - 1, .run = one(leaf)}, j == 1 ? own : sum(leaf), sum(leaf),
                                last);
        });
      }
    }
    const int first = local_rounds_;
    if (hosts_.direct()) {
      for (int j = 1; j < n_; ++j) {
        const int to = at(host_ - j);
        each_carried(to, [&](int leaf) { send(to, leaf, first + j - 1, held(leaf)); });
      }
      for (int j = 1; j < n_; ++j) {
        const int from = at(host_ + j);
        each_carried(host_, [&](int leaf) {
          add(from, leaf, first + j - 1, j == 1 ? held(leaf) : result, result, finish && j == n_ - 1);
        });
      }
      return;
    }
    for (int t = 0; t < n_ - 1; ++t) {
      each_carried(at(host_ - 1 - t),
                   [&](int leaf) { send(at(host_ + 1), leaf, first + t, t == 0 ? held(leaf) : partial); });
      each_carried(at(host_ - 2 - t), [&](int leaf) {
        add(at(host_ - 1), leaf, first + t, held(leaf), sum(leaf), finish && t == n_ - 2);
      });
    }
  }

  // `own` is where the home's carrier has the result of a leaf; all others get it in `result`. `first_round` is that of
  // the exchange between hosts.
  void gather(Buffer own, Buffer result, int first_round) {
    const auto source = [&](int leaf) { return hosts_.home_of(leaf) == host_ ? own : result; };
    if (hosts_.direct()) {
      for (int j = 1; j < n_; ++j) {
        const int to = at(host_ - j);
        each_carried(host_, [&](int leaf) { send(to, leaf, first_round + j - 1, own); });
      }
      for (int j = 1; j < n_; ++j) {
        const int from = at(host_ + j);
        each_carried(from, [&](int leaf) { receive(from, leaf, first_round + j - 1, result); });
      }
    } else {
      for (int t = 0; t < n_ - 1; ++t) {
        each_carried(at(host_ - t), [&](int leaf) { send(at(host_ + 1), leaf, first_round + t, source(leaf)); });
        each_carried(at(host_ - 1 - t), [&](int leaf) { receive(at(host_ - 1), leaf, first_round + t, result); });
      }
    }
    const int last = first_round + wire_rounds_;
    for (int j = 1; j < k_; ++j) {
      const int to = neighbour(-j);
      each_run(rank_, source,
               [&](Run run, Buffer src) { build_.send({.peer = to, .round = last + j - 1, .run = run}, src); });
    }
    for (int j = 1; j < k_; ++j) {
      const int from = neighbour(j);
      each_run(from, source,
               [&](Run run, Buffer) { build_.receive({.peer = from, .round = last + j - 1, .run = run}, result); });
    }
  }

  void copy(Run run) { build_.copy(run, Buffer::kInput, Buffer::kOutput, false); }
  int rounds_of_reduce() const { return local_rounds_ + wire_rounds_; }

 private:
  int at(int host) const { return ((host % n_) + n_) % n_; }
  int neighbour(int by) const { return hosts_.ranks_of(host_)[(((index_ + by) % k_) + k_) % k_]; }
  static Run one(int leaf) { return {static_cast<std::uint32_t>(leaf), static_cast<std::uint32_t>(leaf) + 1}; }

  // Visits the leaves of `home` that `carrier` carries on this host.
  template <typename Visit>
  void each_carried(int home, int carrier, Visit visit) const {
    for (const int leaf : homed_[home]) {
      if (hosts_.carrier(host_, leaf) == carrier) visit(leaf);
    }
  }
  template <typename Visit>
  void each_carried(int home, Visit visit) const {
    each_carried(home, rank_, visit);
  }
  // Visits the runs of neighbouring leaves that `carrier` carries on this host and that lie in one buffer.
  template <typename BufferOf, typename Visit>
  void each_run(int carrier, BufferOf buffer_of, Visit visit) const {
    for (int begin = 0; begin < leaf_count_;) {
      if (hosts_.carrier(host_, begin) != carrier) {
        ++begin;
        continue;
      }
      const Buffer buffer = buffer_of(begin);
      int end = begin + 1;
      while (end < leaf_count_ && hosts_.carrier(host_, end) == carrier && buffer_of(end) == buffer) ++end;
      visit(Run{static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end)}, buffer);
      begin = end;
    }
  }
  void send(int host, int leaf, int round, Buffer src) {
    build_.send({.peer = hosts_.carrier(host, leaf), .round = round, .run = one(leaf)}, src);
  }
  void receive(int host, int leaf, int round, Buffer dst) {
    build_.receive({.peer = hosts_.carrier(host, leaf), .round = round, .run = one(leaf)}, dst);
  }
  void add(int host, int leaf, int round, Buffer src, Buffer dst, bool finish) {
    build_.receive_reduce({.peer = hosts_.carrier(host, leaf), .round = round, .run = one(leaf)}, src, dst, finish);
  }

  const Hosts hosts_;
  const int host_, index_, n_, k_, rank_, leaf_count_;
  const int wire_rounds_, local_rounds_;
  std::vector<std::vector<int>> homed_;  // [host]: its leaves
  PlanBuilder build_;
};

void plan(const PlanRequest& request, int rank, Plan* out) {
  if (request.ranks == 1) return plan_alone(request, 1, out);
  Hierarchical h(request, rank, out);
  const auto leaf = static_cast<std::uint32_t>(rank);
  switch (request.collective) {
    case Collective::kAllReduce:
      h.reduce(Buffer::kInput, Buffer::kOutput, Buffer::kOutput, true);
      h.gather(Buffer::kOutput, Buffer::kOutput, h.rounds_of_reduce());
      break;
    case Collective::kReduceScatter:
      h.reduce(Buffer::kInput, Buffer::kScratch, Buffer::kOutput, true);
      break;
    case Collective::kAllGather:
      h.copy({leaf, leaf + 1});
      h.gather(Buffer::kInput, Buffer::kOutput, 0);
      break;
    case Collective::kBroadcast:
      if (rank == request.root) h.copy({0, static_cast<std::uint32_t>(Hosts(request).leaf_count())});
      h.gather(Buffer::kInput, Buffer::kOutput, 0);
      break;
    case Collective::kBarrier:
      h.reduce(Buffer::kScratch, Buffer::kScratch, Buffer::kScratch, false);
      h.gather(Buffer::kScratch, Buffer::kScratch, h.rounds_of_reduce());
      break;
    default:
      break;  // not defined
  }
}

// Hosts of equal size that follow each other do alike.
Symmetry symmetry(const PlanRequest& request) { return {.cell = request.collective == Collective::kAllReduce ? 1 : 0}; }

}  // namespace

constinit const Planner kHierarchicalPlanner = {
    PlannerId::kHierarchical,
    "ranks of a host add up first, one exchange per host crosses the network, then they hand the result around",
    defines,
    check,
    leaves,
    plan,
    symmetry};

}  // namespace canarynet
