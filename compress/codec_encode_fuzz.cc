// compress/codec_encode_fuzz.cc -- gives any floats to every encoder: it names the first that is not finite, or writes
// what its own decoder takes back; and to every variant of the kernels, which must agree with the scalar one.
//
// Input: | codec: u8 | shift: u8 | then the floats |.
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "compress/codec.h"
#include "compress/codec_test_util.h"
#include "kernels/codec.h"
#include "kernels/reduce.h"

namespace {

using namespace canarynet;

constexpr const char* kSpecs[] = {"dense",         "fp16",        "bf16",           "int8",         "sketch:8",
                                  "sketch:2,mean", "sketch:7",    "topk:0.1",       "topk:1",       "lwtopk:0.3",
                                  "mstopk:0.2",    "randomk:0.2", "onebit",         "signsgd",      "terngrad",
                                  "power:2",       "svd:3",       "svd:2+sketch:4", "int8,or-dense"};

void require(bool condition) {
  if (!condition) std::abort();
}

void round_trip(const CodecSpec& spec, const std::vector<float>& values) {
  const Coding coding{spec, codec_test::segment_of(values.size())};
  codec_test::Trip trip(coding);
  const Status status = trip.encode(values);
  const std::size_t bad = first_not_finite(values.data(), values.size());
  if (bad != values.size() && !spec.or_dense) {
    require(status.code() == CANARY_INVALID_ARGUMENT);
    return require(status.text().find("element " + std::to_string(bad) + " ") != std::string::npos);
  }
  require(status.ok());
  std::vector<float> out;
  require(trip.decode(&out).ok());
  if (bad != values.size()) {
    return require(values.empty() || std::memcmp(out.data(), values.data(), 4 * values.size()) == 0);
  }
  const CodecTraits traits = traits_of(spec);
  for (std::size_t i = 0; i < values.size(); ++i) {
    require(std::isfinite(out[i]));
    if (traits.lossless) require(out[i] == values[i]);
    if (traits.sparsifier) require(out[i] == 0 || out[i] == values[i]);
  }
}

template <typename T, typename Call>
void require_same(const CodecKernels& a, const CodecKernels& b, std::size_t count, const std::vector<float>& held,
                  Call call) {
  std::vector<T> left(count), right(count);
  if constexpr (std::is_same_v<T, float>) left = right = held;
  const auto first = call(a, left.data());
  require(first == call(b, right.data()));
  require(count == 0 || std::memcmp(left.data(), right.data(), count * sizeof(T)) == 0);
}

void compare(const CodecKernels& k, const CodecKernels& spec, const std::vector<float>& values, std::uint8_t shift) {
  const std::size_t n = values.size();
  const float* const v = values.data();
  require(k.greatest(v, n) == spec.greatest(v, n));
  const ValueSurvey a = k.survey(v, n), b = spec.survey(v, n);
  require(a.min == b.min && a.max == b.max && a.zeros == b.zeros && a.negatives == b.negatives);
  const SignSums c = k.sum_signs(v, n), d = spec.sum_signs(v, n);
  require(c.positive == d.positive && c.negative == d.negative && c.sign_clear == d.sign_clear);
  const std::uint32_t threshold = n == 0 ? 0 : std::bit_cast<std::uint32_t>(v[shift % n]) & 0x7FFFFFFFU;
  require(k.count_from(v, n, threshold) == spec.count_from(v, n, threshold));
  std::vector<std::uint32_t> indices(n + kSelectSlack), more(n + kSelectSlack);
  std::vector<float> chosen(n + kSelectSlack), others(n + kSelectSlack);
  const std::size_t found = k.select(v, n, threshold, shift, indices.data(), chosen.data(), n);
  require(found == spec.select(v, n, threshold, shift, more.data(), others.data(), n));
  for (std::size_t i = 0; i < found; ++i) require(indices[i] == more[i] && chosen[i] == others[i]);

  std::vector<float> tree(kSketchBuckets, std::numeric_limits<float>::infinity());
  for (std::size_t i = 1; i < kSketchBuckets && n != 0; ++i) tree[i] = v[i * (shift + std::size_t{1}) % n];
  // Any tree gives the same path in both, ascending or not.
  require_same<std::uint8_t>(k, spec, n, values, [&](const CodecKernels& x, std::uint8_t* out) {
    x.to_buckets(v, n, tree.data(), out);
    return 0;
  });
  require_same<std::uint16_t>(k, spec, n, values,
                              [&](const CodecKernels& x, std::uint16_t* out) { return x.to_f16(v, n, out); });
  require_same<std::uint16_t>(k, spec, n, values,
                              [&](const CodecKernels& x, std::uint16_t* out) { return x.to_bf16(v, n, out); });
  require_same<std::int8_t>(k, spec, n, values, [&](const CodecKernels& x, std::int8_t* out) {
    x.to_int8(v, n, 1, std::ldexp(1.0F, shift % 64 - 32), out);
    return 0;
  });
  require_same<std::uint8_t>(k, spec, (n + 7) / 8, values, [&](const CodecKernels& x, std::uint8_t* out) {
    x.pack_signs(v, n, out);
    return 0;
  });
  const auto* codes = reinterpret_cast<const std::uint8_t*>(v);
  for (const bool add : {false, true}) {
    require_same<float>(k, spec, n, values, [&](const CodecKernels& x, float* out) {
      x.from_int8(codes, n, 0.01F, out, add);
      return 0;
    });
    require_same<float>(k, spec, n, values, [&](const CodecKernels& x, float* out) {
      x.unpack_signs(codes, n, 0.5F, -0.25F, out, add);
      return 0;
    });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  if (bytes < 2) return 0;
  std::vector<float> values((bytes - 2) / 4);
  if (!values.empty()) std::memcpy(values.data(), data + 2, 4 * values.size());
  round_trip(codec_test::spec_of(kSpecs[data[0] % std::size(kSpecs)]), values);
  if (first_not_finite(values.data(), values.size()) != values.size()) return 0;  // variants may differ there
  std::size_t count = 0;
  const KernelVariant* variants = kernel_variants(&count);
  for (std::size_t i = 0; i + 1 < count; ++i)
    compare(variants[i].codec(), variants[count - 1].codec(), values, data[1]);
  return 0;
}
