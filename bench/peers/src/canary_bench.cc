// Benchmark of libcanarynet, by the same core as its peers: --spawn N processes on this machine, or one rank of a job that
// something else started (canary-run; CANARY_JOIN, CANARY_RANK and CANARY_WORLD_SIZE say which). Settings come from CANARY_*;
// --algo only labels the output; --arena takes buffers from canary_mem_alloc.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "canarynet/canarynet.h"
#include "suite.h"

namespace {

void must(canary_status status, const char* what) {
  if (status == CANARY_OK) return;
  canary_error e{};
  e.struct_size = sizeof e;
  canary_last_error(&e);
  throw std::runtime_error(std::string(what) + ": " + canary_status_name(status) + ": " + (e.message ? e.message : ""));
}

class CanaryPeer : public peers::Peer {
 public:
  // `arena`: buffers come from canary_mem_alloc.
  CanaryPeer(std::string algo, bool arena) : algo_(std::move(algo)), arena_(arena) {
    must(canary_init(nullptr, &context_), "canary_init");
    world_ = canary_world(context_);
  }
  ~CanaryPeer() override { canary_finalize(context_); }
  int rank() const override { return canary_rank(context_); }
  int size() const override { return canary_world_size(context_); }
  std::string algorithm() const override { return algo_; }
  void prepare(const std::string& op, float* buf, float* out, size_t count) override {
    op_ = op;
    buf_ = buf;
    out_ = out;
    count_ = count;
  }
  void run() override {
    const size_t part = count_ / static_cast<size_t>(size());
    if (op_ == "allreduce")
      must(canary_all_reduce(world_, buf_, buf_, count_, CANARY_F32, CANARY_SUM, nullptr), "all_reduce");
    else if (op_ == "broadcast")
      must(canary_broadcast(world_, buf_, buf_, count_, CANARY_F32, 0, nullptr), "broadcast");
    else if (op_ == "allgather")
      must(canary_all_gather(world_, buf_, out_, part, CANARY_F32, nullptr), "all_gather");
    else if (op_ == "reduce_scatter")
      must(canary_reduce_scatter(world_, buf_, out_, part, CANARY_F32, CANARY_SUM, nullptr), "reduce_scatter");
    else
      throw std::runtime_error("unknown op " + op_);
  }
  peers::View buffer(int which, size_t count) override {
    if (!arena_) return Peer::buffer(which, count);
    if (memory_[which] != nullptr) must(canary_mem_free(context_, memory_[which]), "canary_mem_free");
    memory_[which] = nullptr;
    if (count == 0) return {};
    must(canary_mem_alloc(context_, count * sizeof(float), &memory_[which]), "canary_mem_alloc");
    return {static_cast<float*>(memory_[which]), count};
  }
  void barrier() override { must(canary_barrier(world_, nullptr), "barrier"); }
  void maxAll(double* v, size_t n) override { reduce(v, n, CANARY_MAX); }
  void sumAll(double* v, size_t n) override { reduce(v, n, CANARY_SUM); }

 private:
  void reduce(double* v, size_t n, canary_redop op) {
    must(canary_all_reduce(world_, v, v, n, CANARY_F64, op, nullptr), "all_reduce");
  }
  std::string algo_, op_;
  bool arena_;
  void* memory_[2] = {};
  canary_context* context_ = nullptr;
  canary_group* world_ = nullptr;
  size_t count_ = 0;
  float *buf_ = nullptr, *out_ = nullptr;
};

// A port that nobody has at this moment.
int freePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof a;
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&a), sizeof a) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&a), &size) != 0)
    throw std::runtime_error("no free port");
  close(fd);
  return ntohs(a.sin_port);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    peers::Options o;
    std::string algo = "default";
    int spawn = 0;
    bool arena = false;
    auto rest = peers::parseCommon(argc, argv, o);
    for (size_t i = 0; i < rest.size(); ++i) {
      if (rest[i] == "--algo" && i + 1 < rest.size()) algo = rest[++i];
      else if (rest[i] == "--spawn" && i + 1 < rest.size()) spawn = std::stoi(rest[++i]);
      else if (rest[i] == "--arena") arena = true;
      else throw std::runtime_error("unknown option " + rest[i]);
    }
    if (spawn > 0) {
      setenv("CANARY_JOIN", ("tcp://127.0.0.1:" + std::to_string(freePort())).c_str(), 1);
      setenv("CANARY_WORLD_SIZE", std::to_string(spawn).c_str(), 1);
      int rank = -1;
      const int rc = peers::forkRanks(spawn, &rank);
      if (rank < 0) return rc;
      setenv("CANARY_RANK", std::to_string(rank).c_str(), 1);
    }
    CanaryPeer p(algo, arena);
    return peers::runSuite(p, o) ? 0 : 2;
  } catch (const std::exception& e) {
    std::cerr << "canary_bench: " << e.what() << "\n";
    return 1;
  }
}
