// canarynet/canarynet.hpp -- C++20 over the C ABI: handles that clean up, spans instead of pointers, exceptions instead
// of codes.
//
// What: Context (one rank of a job), Group (ranks and their sequence of operations).
//   operation.hpp has operations, bundle.hpp tensors that travel merged, connections.hpp messages without a job,
//   session.hpp training with bounded staleness, policy.hpp who averages with whom; this header includes all of them.
//   It is header only; every call goes straight to canarynet.h, so it adds no ABI of its own.
// Shapes and units: buffers are contiguous ranges (vector, array, span) of float, double, f16, bf16, int8_t, uint8_t,
//   int32_t or int64_t; the element type chooses the wire type. Times are std::chrono durations.
// Ownership: an *_async call borrows its buffers until its Operation has completed; the destructor of an Operation
//   therefore waits. An object whose Context or Endpoint has ended, or that was moved from, may be used and destroyed:
//   its calls throw Error (CANARY_INVALID_ARGUMENT), and its destructor does nothing. When a Context or Endpoint ends,
//   its operations end and their buffers are the caller's again.
// Threads: as in canarynet.h: any thread may call; operations of a group are numbered in the order of the calls.
// Failures: a failing call throws Error, made from canary_last_error(). Destructors do not throw and drop the failure:
//   call wait() and finalize() where you want to hear of it.
//
//   canarynet::Context context;  // from the environment that canary-run sets
//   std::vector<float> gradient(1000, 1.0f);
//   context.world().all_reduce(gradient, CANARY_AVG);
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "canarynet/canarynet.h"
#include "canarynet/operation.hpp"

namespace canarynet {
inline namespace v0 {

// An ordered set of ranks with its own sequence of operations. All members call the same operations in the same order.
class Group {
 public:
  Group(Group&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), owned_(std::exchange(other.owned_, false)) {}
  Group& operator=(Group&& other) noexcept {
    if (this != &other) {
      destroy();
      handle_ = std::exchange(other.handle_, nullptr);
      owned_ = std::exchange(other.owned_, false);
    }
    return *this;
  }
  ~Group() { destroy(); }

  canary_group* handle() const { return handle_; }
  int rank() const { return canary_group_rank(handle_); }
  int size() const { return canary_group_size(handle_); }
  // The algorithm that the last completed operation ran ("ring"); "" before the first.
  std::string algorithm() const {
    const char* name = canary_group_algorithm(handle_);
    return name != nullptr ? name : "";
  }
  // Why an operation runs by the algorithm that it does, for people. `collective`: "all_reduce"; `bytes`: of the longer
  // one of a rank's two buffers.
  std::string explain(const char* collective, std::uint64_t bytes) const {
    char text[512];
    check(canary_explain(handle_, collective, bytes, text, sizeof text));
    return text;
  }
  // Pending and later operations give CANARY_ABORTED with this text on every rank.
  void abort(const std::string& reason) { check(canary_group_abort(handle_, reason.c_str())); }

  // output[i] = reduction over the ranks of input[i]. Bit-identical on all ranks.
  template <InputBuffer In, OutputBuffer Out>
  requires SameElement<In, Out>
  void all_reduce(const In& input, Out&& output, canary_redop redop = CANARY_SUM, const OpOptions& options = {}) {
    start_all_reduce(input, output, redop, options, nullptr);
  }
  template <OutputBuffer Data>
  void all_reduce(Data&& in_place, canary_redop redop = CANARY_SUM, const OpOptions& options = {}) {
    start_all_reduce(in_place, in_place, redop, options, nullptr);
  }
  template <InputBuffer In, OutputBuffer Out>
  requires SameElement<In, Out> Operation all_reduce_async(const In& input, Out&& output,
                                                           canary_redop redop = CANARY_SUM,
                                                           const OpOptions& options = {}) {
    canary_op* op = nullptr;
    start_all_reduce(input, output, redop, options, &op);
    return Operation(op);
  }
  template <OutputBuffer Data>
  Operation all_reduce_async(Data&& in_place, canary_redop redop = CANARY_SUM, const OpOptions& options = {}) {
    canary_op* op = nullptr;
    start_all_reduce(in_place, in_place, redop, options, &op);
    return Operation(op);
  }

  // The same among some ranks of the group, for which no group is formed; see canary_partial_all_reduce.
  template <InputBuffer In, OutputBuffer Out>
  requires SameElement<In, Out>
  void partial_all_reduce(const Among& among, const In& input, Out&& output, canary_redop redop = CANARY_AVG,
                          const OpOptions& options = {}) {
    start_partial(among, input, output, redop, options, nullptr);
  }
  template <OutputBuffer Data>
  void partial_all_reduce(const Among& among, Data&& in_place, canary_redop redop = CANARY_AVG,
                          const OpOptions& options = {}) {
    start_partial(among, in_place, in_place, redop, options, nullptr);
  }
  template <InputBuffer In, OutputBuffer Out>
  requires SameElement<In, Out> Operation partial_all_reduce_async(const Among& among, const In& input, Out&& output,
                                                                   canary_redop redop = CANARY_AVG,
                                                                   const OpOptions& options = {}) {
    canary_op* op = nullptr;
    start_partial(among, input, output, redop, options, &op);
    return Operation(op);
  }
  template <OutputBuffer Data>
  Operation partial_all_reduce_async(const Among& among, Data&& in_place, canary_redop redop = CANARY_AVG,
                                     const OpOptions& options = {}) {
    canary_op* op = nullptr;
    start_partial(among, in_place, in_place, redop, options, &op);
    return Operation(op);
  }

  // input: size() blocks as long as output; output: the reduction over the ranks of their block rank().
  template <InputBuffer In, OutputBuffer Out>
  requires SameElement<In, Out>
  void reduce_scatter(const In& input, Out&& output, canary_redop redop = CANARY_SUM, const OpOptions& options = {}) {
    start_reduce_scatter(input, output, redop, options, nullptr);
  }
  template <InputBuffer In, OutputBuffer Out>
  requires SameElement<In, Out> Operation reduce_scatter_async(const In& input, Out&& output,
                                                               canary_redop redop = CANARY_SUM,
                                                               const OpOptions& options = {}) {
    canary_op* op = nullptr;
    start_reduce_scatter(input, output, redop, options, &op);
    return Operation(op);
  }

  // output: size() blocks as long as input, block i from rank i.
  template <InputBuffer In, OutputBuffer Out>
  requires SameElement<In, Out>
  void all_gather(const In& input, Out&& output, const OpOptions& options = {}) {
    start_all_gather(input, output, options, nullptr);
  }
  template <InputBuffer In, OutputBuffer Out>
  requires SameElement<In, Out> Operation all_gather_async(const In& input, Out&& output,
                                                           const OpOptions& options = {}) {
    canary_op* op = nullptr;
    start_all_gather(input, output, options, &op);
    return Operation(op);
  }

  // The data of `root` (rank in this group) arrives in the buffer of every rank.
  template <OutputBuffer Data>
  void broadcast(Data&& data, int root, const OpOptions& options = {}) {
    start_broadcast(data, root, options, nullptr);
  }
  template <OutputBuffer Data>
  Operation broadcast_async(Data&& data, int root, const OpOptions& options = {}) {
    canary_op* op = nullptr;
    start_broadcast(data, root, options, &op);
    return Operation(op);
  }

  // At `root` output[i] = reduction over the ranks of input[i]; elsewhere output is not touched and may be empty.
  template <InputBuffer In, OutputBuffer Out>
  requires SameElement<In, Out>
  void reduce(const In& input, Out&& output, int root, canary_redop redop = CANARY_SUM, const OpOptions& options = {}) {
    start_reduce(input, output, root, redop, options, nullptr);
  }
  template <InputBuffer In, OutputBuffer Out>
  requires SameElement<In, Out> Operation reduce_async(const In& input, Out&& output, int root,
                                                       canary_redop redop = CANARY_SUM, const OpOptions& options = {}) {
    canary_op* op = nullptr;
    start_reduce(input, output, root, redop, options, &op);
    return Operation(op);
  }

  // At `root` output: size() blocks as long as input, block i from rank i; elsewhere output is not touched and may be
  // empty.
  template <InputBuffer In, OutputBuffer Out>
  requires SameElement<In, Out>
  void gather(const In& input, Out&& output, int root, const OpOptions& options = {}) {
    start_gather(input, output, root, options, nullptr);
  }
  template <InputBuffer In, OutputBuffer Out>
  requires SameElement<In, Out> Operation gather_async(const In& input, Out&& output, int root,
                                                       const OpOptions& options = {}) {
    canary_op* op = nullptr;
    start_gather(input, output, root, options, &op);
    return Operation(op);
  }

  // At `root` input: size() blocks as long as output; elsewhere input is not read and may be empty. output: the root's
  // block rank().
  template <InputBuffer In, OutputBuffer Out>
  requires SameElement<In, Out>
  void scatter(const In& input, Out&& output, int root, const OpOptions& options = {}) {
    start_scatter(input, output, root, options, nullptr);
  }
  template <InputBuffer In, OutputBuffer Out>
  requires SameElement<In, Out> Operation scatter_async(const In& input, Out&& output, int root,
                                                        const OpOptions& options = {}) {
    canary_op* op = nullptr;
    start_scatter(input, output, root, options, &op);
    return Operation(op);
  }

  // input and output: size() blocks of one length; block j goes to rank j, block i comes from rank i. They must not
  // overlap.
  template <InputBuffer In, OutputBuffer Out>
  requires SameElement<In, Out>
  void all_to_all(const In& input, Out&& output, const OpOptions& options = {}) {
    start_all_to_all(input, output, options, nullptr);
  }
  template <InputBuffer In, OutputBuffer Out>
  requires SameElement<In, Out> Operation all_to_all_async(const In& input, Out&& output,
                                                           const OpOptions& options = {}) {
    canary_op* op = nullptr;
    start_all_to_all(input, output, options, &op);
    return Operation(op);
  }

  // output: counts[i] elements from rank i, one block behind the other; counts are equal on all ranks.
  template <InputBuffer In, OutputBuffer Out>
  requires SameElement<In, Out>
  void all_gather_v(const In& input, Out&& output, std::span<const std::size_t> counts, const OpOptions& options = {}) {
    start_all_gather_v(input, output, counts, options, nullptr);
  }
  template <InputBuffer In, OutputBuffer Out>
  requires SameElement<In, Out> Operation all_gather_v_async(const In& input, Out&& output,
                                                             std::span<const std::size_t> counts,
                                                             const OpOptions& options = {}) {
    canary_op* op = nullptr;
    start_all_gather_v(input, output, counts, options, &op);
    return Operation(op);
  }

  // send_counts[j] elements go to rank j, receive_counts[i] come from rank i; blocks lie one behind the other
  // (canary_all_to_all_v takes displacements). Each rank must send what the other expects; if not, all ranks are told.
  template <InputBuffer In, OutputBuffer Out>
  requires SameElement<In, Out>
  void all_to_all_v(const In& input, std::span<const std::size_t> send_counts, Out&& output,
                    std::span<const std::size_t> receive_counts, const OpOptions& options = {}) {
    start_all_to_all_v(input, send_counts, output, receive_counts, options, nullptr);
  }
  template <InputBuffer In, OutputBuffer Out>
  requires SameElement<In, Out> Operation all_to_all_v_async(const In& input, std::span<const std::size_t> send_counts,
                                                             Out&& output, std::span<const std::size_t> receive_counts,
                                                             const OpOptions& options = {}) {
    canary_op* op = nullptr;
    start_all_to_all_v(input, send_counts, output, receive_counts, options, &op);
    return Operation(op);
  }

  // Messages to and from rank `peer` of this group: the k-th send meets the k-th receive. Both sides name the same
  // length and type.
  template <InputBuffer Data>
  void send(const Data& data, int peer, const OpOptions& options = {}) {
    const canary_op_options how = detail::raw(options);
    check(canary_send_with(handle_, std::ranges::data(data), std::ranges::size(data), wire_type<Data>(), peer, &how,
                           nullptr));
  }
  template <InputBuffer Data>
  Operation send_async(const Data& data, int peer, const OpOptions& options = {}) {
    const canary_op_options how = detail::raw(options);
    canary_op* op = nullptr;
    check(canary_send_with(handle_, std::ranges::data(data), std::ranges::size(data), wire_type<Data>(), peer, &how,
                           &op));
    return Operation(op);
  }
  template <OutputBuffer Data>
  void receive(Data&& data, int peer, const OpOptions& options = {}) {
    const canary_op_options how = detail::raw(options);
    check(canary_recv_with(handle_, std::ranges::data(data), std::ranges::size(data), wire_type<Data>(), peer, &how,
                           nullptr));
  }
  template <OutputBuffer Data>
  Operation receive_async(Data&& data, int peer, const OpOptions& options = {}) {
    const canary_op_options how = detail::raw(options);
    canary_op* op = nullptr;
    check(canary_recv_with(handle_, std::ranges::data(data), std::ranges::size(data), wire_type<Data>(), peer, &how,
                           &op));
    return Operation(op);
  }

  // Returns after every rank has called it.
  void barrier(const OpOptions& options = {}) {
    const canary_op_options how = detail::raw(options);
    check(canary_barrier_with(handle_, &how, nullptr));
  }
  Operation barrier_async(const OpOptions& options = {}) {
    const canary_op_options how = detail::raw(options);
    canary_op* op = nullptr;
    check(canary_barrier_with(handle_, &how, &op));
    return Operation(op);
  }

 private:
  friend class Context;
  Group(canary_group* handle, bool owned) : handle_(handle), owned_(owned) {}

  template <typename R>
  static constexpr canary_type wire_type() {
    return type_of<detail::ElementOf<R>>;
  }
  static void require(bool holds, const char* what) {
    if (!holds) throw Error(CANARY_INVALID_ARGUMENT, what);
  }
  // size(), for a group that must not have ended.
  std::size_t ranks() const {
    const int count = size();
    require(count > 0, "this group has ended: it was moved from, or its context finalized");
    return static_cast<std::size_t>(count);
  }
  template <typename In, typename Out>
  void start_all_reduce(In& input, Out& output, canary_redop redop, const OpOptions& options, canary_op** op) {
    const canary_op_options how = detail::raw(options);
    require(std::ranges::size(input) == std::ranges::size(output), "all_reduce: input and output differ in length");
    check(canary_all_reduce_with(handle_, std::ranges::data(input), std::ranges::data(output),
                                 std::ranges::size(output), wire_type<Out>(), redop, &how, op));
  }
  template <typename In, typename Out>
  void start_partial(const Among& among, In& input, Out& output, canary_redop redop, const OpOptions& options,
                     canary_op** op) {
    const canary_op_options how = detail::raw(options);
    require(std::ranges::size(input) == std::ranges::size(output),
            "partial_all_reduce: input and output differ in length");
    canary_partial who = CANARY_PARTIAL_INIT;
    who.ranks = among.ranks.data();
    who.count = static_cast<int>(among.ranks.size());
    who.number = among.number;
    who.weight = among.weight ? &*among.weight : nullptr;
    check(canary_partial_all_reduce_with(handle_, &who, std::ranges::data(input), std::ranges::data(output),
                                         std::ranges::size(output), wire_type<Out>(), redop, &how, op));
  }
  template <typename In, typename Out>
  void start_reduce_scatter(In& input, Out& output, canary_redop redop, const OpOptions& options, canary_op** op) {
    const canary_op_options how = detail::raw(options);
    require(std::ranges::size(input) == std::ranges::size(output) * ranks(),
            "reduce_scatter: input must be size() times as long as output");
    check(canary_reduce_scatter_with(handle_, std::ranges::data(input), std::ranges::data(output),
                                     std::ranges::size(output), wire_type<Out>(), redop, &how, op));
  }
  template <typename In, typename Out>
  void start_all_gather(In& input, Out& output, const OpOptions& options, canary_op** op) {
    const canary_op_options how = detail::raw(options);
    require(std::ranges::size(output) == std::ranges::size(input) * ranks(),
            "all_gather: output must be size() times as long as input");
    check(canary_all_gather_with(handle_, std::ranges::data(input), std::ranges::data(output), std::ranges::size(input),
                                 wire_type<Out>(), &how, op));
  }
  template <typename Data>
  void start_broadcast(Data& data, int root, const OpOptions& options, canary_op** op) {
    const canary_op_options how = detail::raw(options);
    check(canary_broadcast_with(handle_, std::ranges::data(data), std::ranges::data(data), std::ranges::size(data),
                                wire_type<Data>(), root, &how, op));
  }
  template <typename In, typename Out>
  void start_reduce(In& input, Out& output, int root, canary_redop redop, const OpOptions& options, canary_op** op) {
    const canary_op_options how = detail::raw(options);
    require(rank() != root || std::ranges::size(input) == std::ranges::size(output),
            "reduce: input and the root's output differ in length");
    check(canary_reduce_with(handle_, std::ranges::data(input), std::ranges::data(output), std::ranges::size(input),
                             wire_type<Out>(), redop, root, &how, op));
  }
  template <typename In, typename Out>
  void start_gather(In& input, Out& output, int root, const OpOptions& options, canary_op** op) {
    const canary_op_options how = detail::raw(options);
    require(rank() != root || std::ranges::size(output) == std::ranges::size(input) * ranks(),
            "gather: the root's output must be size() times as long as input");
    check(canary_gather_with(handle_, std::ranges::data(input), std::ranges::data(output), std::ranges::size(input),
                             wire_type<Out>(), root, &how, op));
  }
  template <typename In, typename Out>
  void start_scatter(In& input, Out& output, int root, const OpOptions& options, canary_op** op) {
    const canary_op_options how = detail::raw(options);
    require(rank() != root || std::ranges::size(input) == std::ranges::size(output) * ranks(),
            "scatter: the root's input must be size() times as long as output");
    check(canary_scatter_with(handle_, std::ranges::data(input), std::ranges::data(output), std::ranges::size(output),
                              wire_type<Out>(), root, &how, op));
  }
  template <typename In, typename Out>
  void start_all_to_all(In& input, Out& output, const OpOptions& options, canary_op** op) {
    const canary_op_options how = detail::raw(options);
    require(std::ranges::size(input) == std::ranges::size(output) && std::ranges::size(input) % ranks() == 0,
            "all_to_all: input and output must be equally long, a multiple of size()");
    check(canary_all_to_all_with(handle_, std::ranges::data(input), std::ranges::data(output),
                                 std::ranges::size(input) / ranks(), wire_type<Out>(), &how, op));
  }
  // There must be one count per rank, and `have` elements for all of them.
  void require_counts(std::span<const std::size_t> counts, std::size_t have, const char* what) const {
    std::size_t sum = 0;
    for (const std::size_t count : counts) sum += count;
    require(counts.size() == ranks() && have == sum, what);
  }
  template <typename In, typename Out>
  void start_all_gather_v(In& input, Out& output, std::span<const std::size_t> counts, const OpOptions& options,
                          canary_op** op) {
    const canary_op_options how = detail::raw(options);
    require_counts(counts, std::ranges::size(output), "all_gather_v: output must be as long as the size() counts say");
    require(std::ranges::size(input) == counts[static_cast<std::size_t>(rank())],
            "all_gather_v: input must be as long as the own count says");
    check(canary_all_gather_v_with(handle_, std::ranges::data(input), std::ranges::data(output), counts.data(),
                                   wire_type<Out>(), &how, op));
  }
  template <typename In, typename Out>
  void start_all_to_all_v(In& input, std::span<const std::size_t> send_counts, Out& output,
                          std::span<const std::size_t> receive_counts, const OpOptions& options, canary_op** op) {
    const canary_op_options how = detail::raw(options);
    require_counts(send_counts, std::ranges::size(input),
                   "all_to_all_v: input must be as long as the size() counts say");
    require_counts(receive_counts, std::ranges::size(output),
                   "all_to_all_v: output must be as long as the size() counts say");
    check(canary_all_to_all_v_with(handle_, std::ranges::data(input), send_counts.data(), nullptr,
                                   std::ranges::data(output), receive_counts.data(), nullptr, wire_type<Out>(), &how,
                                   op));
  }
  void destroy() noexcept {
    if (owned_ && handle_ != nullptr) (void)canary_group_destroy(handle_);
    handle_ = nullptr;
  }

  canary_group* handle_ = nullptr;
  bool owned_ = false;
};

// How to join. Fields left alone come from the environment.
struct JoinOptions {
  std::string join = {};  // "tcp://host:port" where rank 0 listens
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  std::vector<std::string> settings = {};          // "name=value" (docs/settings.md), over the environment
  std::optional<canary_unique_id> unique_id = {};  // from get_unique_id(), instead of `join`
  int local_ranks = 0;  // threads of this process that each make a Context; 0: the environment's, or 1
};

// The process that will be rank 0 calls it; the others get the bytes by the application's own means. See canarynet.h.
inline canary_unique_id get_unique_id() {
  canary_unique_id id;
  check(canary_get_unique_id(&id));
  return id;
}

// One rank of a job. It can be neither copied nor moved.
class Context {
 public:
  // Blocks until all ranks are there; throws if they are not there within the join time-out.
  explicit Context(const JoinOptions& options = {}) : handle_(join(options)), world_(canary_world(handle_), false) {}
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() {
    if (handle_ != nullptr) (void)canary_finalize(handle_);
  }
  // Leaves the job in good order; the object is of no use afterwards.
  void finalize() {
    if (handle_ != nullptr) check(canary_finalize(std::exchange(handle_, nullptr)));
  }

  canary_context* handle() const { return handle_; }
  int rank() const { return canary_rank(handle_); }
  int world_size() const { return canary_world_size(handle_); }
  Group& world() { return world_; }
  // Only the members call it, all with the same list of distinct world ranks; it blocks until all have called.
  Group create_group(std::span<const int> ranks) {
    canary_group* group = nullptr;
    check(canary_group_create(handle_, ranks.data(), static_cast<int>(ranks.size()), &group));
    return Group(group, true);
  }
  // Zeroed memory from canary_mem_alloc(): ranks on this host are sent references into it instead of copies. It ends
  // with free() or the context.
  template <typename T>
  std::span<T> allocate(std::size_t count) {
    void* memory = nullptr;
    check(canary_mem_alloc(handle_, count > SIZE_MAX / sizeof(T) ? SIZE_MAX : count * sizeof(T), &memory));
    return {static_cast<T*>(memory), count};
  }
  template <typename T>
  void free(std::span<T> memory) {
    check(canary_mem_free(handle_, memory.data()));
  }
  // For event loops: readable when operations have completed, until drain(); see canary_context_fd.
  int fd() const {
    int fd = -1;
    check(canary_context_fd(handle_, &fd));
    return fd;
  }
  // Call it before test() on pending operations.
  void drain() const { check(canary_context_drain(handle_)); }
  // Counters of every NIC since the start.
  std::vector<canary_nic_stats> nics() const {
    return detail::listed<canary_nic_stats>(
        [&](auto* list, std::size_t room, std::size_t* count) { check(canary_stats(handle_, list, room, count)); });
  }
  // What is known of every link, by peer.
  std::vector<canary_link_stats> links() const {
    return detail::listed<canary_link_stats>([&](auto* list, std::size_t room, std::size_t* count) {
      list->struct_size = sizeof *list;
      check(canary_links(handle_, list, room, count));
    });
  }

 private:
  static canary_context* join(const JoinOptions& options) {
    std::vector<const char*> settings;
    for (const auto& setting : options.settings) settings.push_back(setting.c_str());
    canary_config config = CANARY_CONFIG_INIT;
    if (!options.join.empty()) config.join = options.join.c_str();
    if (options.rank) config.rank = *options.rank;
    if (options.world_size) config.world_size = *options.world_size;
    config.local_ranks = options.local_ranks;
    config.settings = settings.data();
    config.settings_count = settings.size();
    if (options.unique_id) config.unique_id = &*options.unique_id;
    canary_context* context = nullptr;
    check(canary_init(&config, &context));
    return context;
  }

  canary_context* handle_;
  Group world_;
};

}  // namespace v0
}  // namespace canarynet

#include "canarynet/bundle.hpp"
#include "canarynet/connections.hpp"
#include "canarynet/policy.hpp"
#include "canarynet/ratio.hpp"
#include "canarynet/session.hpp"
