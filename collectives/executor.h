// collectives/executor.h -- runs one operation of one rank: a Program over the caller's buffers. It is the only
// executor.
//
// What: it tells which pieces may be sent (peek_send) and where an arriving piece goes (place_for), applies the piece
// in the schedule's fixed order (arrived), and knows when everything is done: results written, sends acknowledged.
// Memory: input and output are borrowed until complete(). Staging (for early arrivals that must wait their turn) and
// scratch are the executor's own, sized by the program and reused; every piece of an entered operation has its place,
// so no arrival order can block.
// Codecs: a piece is encoded when it is peeked at, and decoded when it is applied (collectives/piece_coder.h).
// Null pieces (collectives/null_piece.h): an operation that is told so sends them. All take them, but products and
// extremes: for a sum they are zeros, a copy writes zeros.
// Thread: the engine's owner. Nothing allocates after bind().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/reserved.h"
#include "base/types.h"
#include "collectives/piece_coder.h"
#include "collectives/program.h"
#include "kernels/reduce.h"

namespace canarynet {

class Executor {
 public:
  // Throws std::bad_alloc.
  explicit Executor(const Program& program);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Starts an operation and marks what is ready at once. May be called again after complete() or abandon().
  // `coded` is for programs with a codec, which need it. `null_pieces`: what is all zero is sent as a null piece.
  void bind(const void* input, void* output, DataType type, ReduceOp op, const CodedCall* coded = nullptr,
            bool null_pieces = false);
  const Program& program() const { return program_; }
  // The codec's part; null where the program has none.
  const PieceCoder* coder() const { return coder_.get(); }
  // Not OK: a peer's piece was whole and valid, and yet nothing that its codec makes. The operation will not end.
  const Status& fault() const { return fault_; }
  int fault_of() const { return fault_of_; }  // rank in the group

  // --- sending: per peer (its index in Program::peers), in the order in which pieces became ready
  struct ReadyPiece {
    const ProgramStep* step = nullptr;
    std::uint32_t piece = 0;  // on the program's grid
    const std::byte* data = nullptr;
    std::uint32_t bytes = 0;
    std::uint32_t task = 0;                                              // for sent()
    bool null = false;                                                   // its values do not travel
    std::uint32_t in_step() const { return piece - step->piece_begin; }  // its number on the wire
  };
  bool has_send(std::uint32_t peer) const { return ready_head_[peer] != ready_tail_[peer]; }
  // About how many bytes wait in the peer's queue; the pieces of one queue are of similar size.
  std::uint64_t sends_waiting(std::uint32_t peer) const {
    return has_send(peer) ? std::uint64_t{ready_tail_[peer] - ready_head_[peer]} * front_bytes(peer) : 0;
  }
  // The piece at the front of the peer's queue; pop_send() removes it.
  ReadyPiece peek_send(std::uint32_t peer) const;
  void pop_send(std::uint32_t peer) { ++ready_head_[peer]; }
  // CRC32C of the piece's bytes, kept from their arrival or from the last send of this piece if nothing has written
  // there since.
  std::uint32_t crc_of(const ReadyPiece& send);
  // The task's bytes were acknowledged (or copied), so its source may be overwritten.
  void sent(std::uint32_t task);

  // --- receiving
  enum class PlaceKind : std::uint8_t {
    kUnknown,    // the plan receives no such piece, or one of another length: a mismatch
    kDuplicate,  // it has arrived already
    kSpan,       // write it to `data`, then call arrived(payload = data)
    kSlot,       // hand it to arrived() from wherever it is
  };
  struct Place {
    PlaceKind kind = PlaceKind::kUnknown;
    std::byte* data = nullptr;
    std::uint32_t task = 0;
  };
  // kSpan marks the task as landing: a second lane that brings it gets kSlot meanwhile.
  Place place_for(int source, std::uint16_t tag, std::uint32_t piece_in_step, std::uint32_t bytes);
  // Whether the plan receives this piece, with this length. A piece that did not come through place_for() needs this
  // check before arrived().
  bool fits(int source, std::uint16_t tag, std::uint32_t piece_in_step, std::uint32_t bytes, std::uint32_t* task) const;
  // The landing of a task will not finish.
  void landing_lost(std::uint32_t task);
  // Takes a whole and valid piece. Returns false for a duplicate, with which nothing is done. `*other_landing` tells
  // that another lane is still writing the same piece into its span and must be redirected. `crc` is the payload's, if
  // the caller has it.
  bool arrived(std::uint32_t task, std::span<const std::byte> payload, bool* other_landing,
               std::optional<std::uint32_t> crc = {});

  // --- receiving from executors of the same engine: memory to memory, nothing is staged
  struct Sender {
    Executor* executor = nullptr;
    std::uint32_t task = 0;  // for executor->sent()
  };
  // Makes room for pieces that wait. Call it before the first offer().
  void expect_neighbours();
  // Offers a piece that lies at `payload`, sent as `sender`. True: it has been applied. False: it is not its turn yet;
  // it will be applied from where it lies, and next_applied() then tells. The sender must keep it until then.
  bool offer(int source, std::uint16_t tag, std::uint32_t piece_in_step, const std::byte* payload, std::uint32_t bytes,
             Sender sender);
  bool has_applied() const { return !applied_.empty(); }
  bool next_applied(Sender* sender);

  bool complete() const { return remaining_ == 0; }
  // Tasks not done yet, and tasks done so far, which show progress to the exchange limit.
  std::uint32_t remaining() const { return remaining_; }
  // Whether this rank still waits for something from the peer / has unacked or unsent pieces to it.
  bool waits_for(std::uint32_t peer) const { return missing_[peer] != 0; }
  bool unsent_to(std::uint32_t peer) const { return unacked_[peer] != 0; }

  // Yields each peer for which pieces became ready since the last call, once.
  bool next_woken_peer(std::uint32_t* peer);

 private:
  // kNull: what is staged is a null piece.
  enum Flag : std::uint8_t { kArrived = 1, kLanding = 2, kStaged = 4, kDone = 8, kOffered = 16, kNull = 32 };
  struct Offer {
    std::span<const std::byte> data;
    Sender sender;
  };

  std::byte* at(Buffer buffer, std::uint32_t piece) const {
    const auto b = static_cast<std::size_t>(buffer);
    return base_[b] + program_.place[b][piece];
  }
  std::byte* staging_at(const ProgramStep& step, std::uint32_t piece) const;
  const ProgramStep* find(int source, std::uint16_t tag, std::uint32_t piece_in_step) const;
  bool has_length(std::uint32_t piece, std::uint32_t bytes) const {
    if (coder_ != nullptr) return bytes != 0 && bytes <= program_.encoded_bytes_max;
    return program_.bytes_of(piece) == bytes || (bytes == 0 && takes_null_pieces_);
  }
  // Of a piece that has such a length, without a codec.
  bool is_null(std::uint32_t piece, std::size_t bytes) const {
    return coder_ == nullptr && bytes == 0 && program_.bytes_of(piece) != 0;
  }
  std::uint32_t front_bytes(std::uint32_t peer) const {
    return coder_ == nullptr ? program_.bytes_of(static_cast<std::uint32_t>(ready_[ready_head_[peer]]))
                             : program_.encoded_bytes_max;
  }
  void activate(std::uint32_t step, std::uint32_t piece);
  // False: it could not be applied, and the task stays undone (fault()).
  bool apply(const ProgramStep& step, std::uint32_t piece, std::span<const std::byte> payload,
             std::optional<std::uint32_t> crc);
  bool apply_encoded(const ProgramStep& step, std::uint32_t piece, std::span<const std::byte> payload,
                     std::optional<std::uint32_t> crc);
  void apply_values(const ProgramStep& step, std::uint32_t piece, const std::byte* payload);
  void apply_null(const ProgramStep& step, std::uint32_t piece);
  void apply_and_finish(std::uint32_t step, std::uint32_t piece, std::span<const std::byte> payload,
                        std::optional<std::uint32_t> crc);
  void finish_task(std::uint32_t step, std::uint32_t piece);
  void drain();

  const Program& program_;
  std::byte* base_[3] = {};
  ReduceFn reduce_ = nullptr;
  DataType type_ = CANARY_F32;
  bool average_ = false;
  bool sends_null_pieces_ = false, takes_null_pieces_ = false;
  // Room in the block for all that the program can push.
  template <typename T>
  struct Stack {
    T* items = nullptr;
    std::uint32_t size = 0;
    bool empty() const { return size == 0; }
    void push(T item) { items[size++] = item; }
    T pop() { return items[--size]; }
  };
  std::size_t lay_out(std::byte* block);

  // The arrays lie in one block: an operation of a few pieces touches few cache lines, so many in flight stay near.
  std::unique_ptr<std::byte[]> block_;
  std::uint64_t* ready_ = nullptr;  // (step << 32 | piece), per peer a part that fills once
  Stack<std::uint64_t> work_;       // tasks done whose dependents are not looked at yet
  std::optional<std::uint32_t>*input_crc_ = nullptr, *output_crc_ = nullptr;  // per piece, of what the buffers hold
  std::uint32_t *ready_head_ = nullptr, *ready_tail_ = nullptr;               // per peer, like the next two
  std::uint32_t *missing_ = nullptr, *unacked_ = nullptr;
  Stack<std::uint32_t> woken_;          // peers
  std::uint16_t* pending_ = nullptr;    // per task
  std::uint8_t* flags_ = nullptr;       // per task
  std::uint8_t* woken_flag_ = nullptr;  // per peer
  std::vector<Offer> offers_;           // per task: neighbours' pieces that wait for their turn
  std::vector<Sender> applied_;         // senders whose offers have been applied since
  std::uint32_t remaining_ = 0;
  Reserved staging_;
  Reserved scratch_;
  std::unique_ptr<PieceCoder> coder_;
  Status fault_;
  int fault_of_ = -1;
};

}  // namespace canarynet
