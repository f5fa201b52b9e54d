// bench/nccl_gpu/program.cc -- one rank of a small NCCL job whose results are compared with the CPU's. Built and run by
// bench/nccl_gpu.sh.
//
//   nccl_gpu_program check BYTES...     every collective at these sizes, of floats, or of bytes if that is no whole
//                                       number of floats
//   nccl_gpu_program loop SECONDS       all-reduces of 16 MiB, each checked; prints the longest one
//
// RANK and WORLD_SIZE say which rank this is; NCCL_COMM_ID=host:port brings the ranks together. All ranks use GPU 0.
// Values are small integers, so that sums are exact in any order; those of bytes wrap.
#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

void must(cudaError_t e, const char* what) {
  if (e == cudaSuccess) return;
  std::printf("FAILED %s: %s\n", what, cudaGetErrorString(e));
  std::exit(1);
}
void must(ncclResult_t r, const char* what) {
  if (r == ncclSuccess) return;
  std::printf("FAILED %s: %s (%s)\n", what, ncclGetErrorString(r), ncclGetLastError(nullptr));
  std::exit(1);
}

int environment(const char* name) {
  const char* const text = std::getenv(name);
  if (text != nullptr) return std::atoi(text);
  std::printf("FAILED %s is not set\n", name);
  std::exit(1);
}

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

// The value that rank `r` puts at element `i` of a run.
template <typename T>
T value(int r, std::size_t i, int run) {
  return static_cast<T>((static_cast<int>(i % 251) + 7 * r + run) % 97);
}

class Job {
 public:
  Job() : rank_(environment("RANK")), ranks_(environment("WORLD_SIZE")) {
    must(cudaSetDevice(0), "cudaSetDevice");
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    ncclUniqueId id;
    must(ncclGetUniqueId(&id), "ncclGetUniqueId");
    must(ncclCommInitRank(&comm_, ranks_, id, rank_), "ncclCommInitRank");
  }
  Job(const Job&) = delete;
  ~Job() {
    ncclCommDestroy(comm_);
    cudaStreamDestroy(stream_);
  }
  int rank() const { return rank_; }

  // Fails the process after the limit or on an asynchronous error: a kernel that waits for ever would hang it.
  void wait(const char* what) const {
    const auto began = Clock::now();
    for (;;) {
      const cudaError_t e = cudaStreamQuery(stream_);
      if (e == cudaSuccess) return;
      if (e != cudaErrorNotReady) must(e, what);
      ncclResult_t result = ncclSuccess;
      must(ncclCommGetAsyncError(comm_, &result), what);
      if (result == ncclSuccess && seconds_since(began) < 60) continue;
      std::printf("FAILED %s: %s (%s)\n", what, result == ncclSuccess ? "no end" : ncclGetErrorString(result),
                  ncclGetLastError(comm_));
      std::fflush(stdout);
      ncclCommAbort(comm_);
      std::exit(1);
    }
  }

  // Runs every collective with `count` elements per rank; returns how many were wrong. T is float or std::uint8_t.
  template <typename T>
  std::size_t check(std::size_t count, int run) {
    constexpr ncclDataType_t kType = std::is_same_v<T, float> ? ncclFloat : ncclUint8;
    const std::size_t n = static_cast<std::size_t>(ranks_);
    Buffer<T> in(n * count), out(n * count);
    std::vector<T> host(n * count);
    std::size_t wrong = 0;
    const auto fill = [&](std::size_t elements) {
      host.assign(n * count, static_cast<T>(-1));
      for (std::size_t i = 0; i < elements; ++i) host[i] = value<T>(rank_, i, run);
      must(cudaMemcpy(in.data, host.data(), n * count * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
      must(cudaMemset(out.data, 0xFF, n * count * sizeof(T)), "cudaMemset");
      must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    };
    const auto compare = [&](const char* what, std::size_t elements, auto expected) {
      wait(what);
      must(cudaMemcpy(host.data(), out.data, n * count * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
      std::size_t bad = 0;
      for (std::size_t i = 0; i < elements; ++i) bad += host[i] != expected(i);
      if (bad != 0)
        std::printf("WRONG %s of %zu %s: %zu elements\n", what, count, kType == ncclFloat ? "floats" : "bytes", bad);
      wrong += bad;
    };
    const auto sum = [&](std::size_t i) {
      T s = 0;
      for (int r = 0; r < ranks_; ++r) s = static_cast<T>(s + value<T>(r, i, run));
      return s;
    };
    const auto me = static_cast<std::size_t>(rank_);

    fill(count);
    must(ncclAllReduce(in.data, out.data, count, kType, ncclSum, comm_, stream_), "all_reduce");
    compare("all_reduce", count, sum);
    fill(count);
    must(ncclAllGather(in.data, out.data, count, kType, comm_, stream_), "all_gather");
    compare("all_gather", n * count,
            [&](std::size_t i) { return value<T>(static_cast<int>(i / count), i % count, run); });
    fill(n * count);
    must(ncclReduceScatter(in.data, out.data, count, kType, ncclSum, comm_, stream_), "reduce_scatter");
    compare("reduce_scatter", count, [&](std::size_t i) { return sum(me * count + i); });
    for (int root = 0; root < ranks_; ++root) {
      fill(count);
      must(ncclBroadcast(in.data, out.data, count, kType, root, comm_, stream_), "broadcast");
      compare("broadcast", count, [&](std::size_t i) { return value<T>(root, i, run); });
    }
    // First to the next rank, from the one before; then every rank to every other.
    const int next = (rank_ + 1) % ranks_, before = (rank_ + ranks_ - 1) % ranks_;
    fill(count);
    must(ncclGroupStart(), "group");
    must(ncclSend(in.data, count, kType, next, comm_, stream_), "send");
    must(ncclRecv(out.data, count, kType, before, comm_, stream_), "recv");
    must(ncclGroupEnd(), "send/recv");
    compare("send/recv", count, [&](std::size_t i) { return value<T>(before, i, run); });
    fill(n * count);
    must(ncclGroupStart(), "group");
    for (int r = 0; r < ranks_; ++r) {
      must(ncclSend(in.data + static_cast<std::size_t>(r) * count, count, kType, r, comm_, stream_), "send");
      must(ncclRecv(out.data + static_cast<std::size_t>(r) * count, count, kType, r, comm_, stream_), "recv");
    }
    must(ncclGroupEnd(), "all_to_all");
    compare("all_to_all", n * count,
            [&](std::size_t i) { return value<T>(static_cast<int>(i / count), me * count + i % count, run); });
    return wrong;
  }

  // All ranks run the same number of rounds: the first one's clock decides, by what it adds to the sum.
  int loop(double seconds) {
    constexpr std::size_t kCount = 4 << 20;
    Buffer<float> data(kCount);
    std::vector<float> host(kCount), result(kCount);
    const auto began = Clock::now();
    double longest = 0;
    int rounds = 0;
    for (bool more = true; more; ++rounds) {
      for (std::size_t i = 0; i < kCount; ++i) host[i] = value<float>(rank_, i, rounds);
      host[0] = rank_ == 0 && seconds_since(began) >= seconds ? 1.0f : 0.0f;
      must(cudaMemcpy(data.data, host.data(), kCount * 4, cudaMemcpyHostToDevice), "cudaMemcpy");
      const auto start = Clock::now();
      must(ncclAllReduce(data.data, data.data, kCount, ncclFloat, ncclSum, comm_, stream_), "all_reduce");
      wait("all_reduce under faults");
      longest = std::max(longest, seconds_since(start));
      must(cudaMemcpy(result.data(), data.data, kCount * 4, cudaMemcpyDeviceToHost), "cudaMemcpy");
      for (std::size_t i = 1; i < kCount; ++i) {
        float expected = 0;
        for (int r = 0; r < ranks_; ++r) expected += value<float>(r, i, rounds);
        if (result[i] == expected) continue;
        std::printf("WRONG all_reduce %d: element %zu\n", rounds, i);
        return 1;
      }
      more = result[0] == 0.0f;
    }
    std::printf("LOOP rounds %d longest_ms %.0f mean_ms %.0f\n", rounds, longest * 1e3,
                seconds_since(began) * 1e3 / rounds);
    return 0;
  }

  // GB/s of the bytes that a ring moves through each rank, the best of five.
  double speed(std::size_t bytes) {
    Buffer<float> data(bytes / 4);
    double best = 0;
    for (int i = 0; i < 5; ++i) {
      const auto start = Clock::now();
      must(ncclAllReduce(data.data, data.data, bytes / 4, ncclFloat, ncclSum, comm_, stream_), "all_reduce");
      wait("all_reduce");
      best = std::max(best, 2.0 * (ranks_ - 1) / ranks_ * static_cast<double>(bytes) / seconds_since(start) / 1e9);
    }
    return best;
  }

 private:
  template <typename T>
  struct Buffer {
    explicit Buffer(std::size_t count) {
      must(cudaMalloc(&data, std::max<std::size_t>(count, 1) * sizeof(T)), "cudaMalloc");
    }
    Buffer(const Buffer&) = delete;
    ~Buffer() { cudaFree(data); }
    T* data = nullptr;
  };
  int rank_, ranks_;
  cudaStream_t stream_ = nullptr;
  ncclComm_t comm_ = nullptr;
};

}  // namespace

int main(int count, char** arguments) {
  const std::string mode = count > 1 ? arguments[1] : "";
  if ((mode != "check" && mode != "loop") || count < 3) {
    std::printf("usage: nccl_gpu_program check BYTES... | loop SECONDS\n");
    return 2;
  }
  int version = 0;
  must(ncclGetVersion(&version), "ncclGetVersion");
  Job job;
  if (mode == "loop") return job.loop(std::atof(arguments[2]));
  std::size_t wrong = 0, sizes = 0;
  for (int i = 2; i < count; ++i, ++sizes) {
    const std::size_t bytes = std::strtoull(arguments[i], nullptr, 10);
    wrong += bytes % 4 == 0 ? job.check<float>(bytes / 4, i) : job.check<std::uint8_t>(bytes, i);
  }
  const double gbs = job.speed(std::size_t{64} << 20);
  std::printf("CHECK nccl %d sizes %zu wrong %zu all_reduce_64M_GBps %.3f\n", version, sizes, wrong, gbs);
  return wrong != 0;
}
