// Row-wise kernels over 16 float lanes, written once for every instruction set. L, the lanes, lives
// in an anonymous namespace of the source that includes this, so that all code made from here stays
// in that source; nothing here may be a plain inline function. Where order or rounding could
// differ, it is fixed: tables made from these templates give bit-equal results.
#ifndef PDSERVE_ENGINE_LANES_ROWS_H_
#define PDSERVE_ENGINE_LANES_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "engine/ops.h"
#include "engine/ops_layout.h"

namespace pdserve::engine {

inline constexpr int32_t kLanes = 16;
inline constexpr float kSmallestBlock = 0x1p-100f;  // a block below counts as zero

/// Of a block's q.
struct BlockSums {
  int32_t q;
  int32_t squares;
};

/// e^x: 0 below -87, at most e^88; NaN stays NaN. e^0 is 1 exactly.
template <class L>
typename L::F Exp(typename L::F x) {
  using F = typename L::F;
  const F bounded = L::Min(L::Set(88.0f), x);
  const F shifted = L::Fma(bounded, L::Set(1.44269504f), L::Set(12582912.0f));
  const F n = L::Sub(shifted, L::Set(12582912.0f));  // the nearest integer
  F r = L::Fma(n, L::Set(-0.693359375f), bounded);
  r = L::Fma(n, L::Set(2.12194440e-4f), r);
  F p = L::Set(1.9875691500e-4f);
  p = L::Fma(p, r, L::Set(1.3981999507e-3f));
  p = L::Fma(p, r, L::Set(8.3334519073e-3f));
  p = L::Fma(p, r, L::Set(4.1665795894e-2f));
  p = L::Fma(p, r, L::Set(1.6666665459e-1f));
  p = L::Fma(p, r, L::Set(5.0000001201e-1f));
  p = L::Fma(L::Mul(p, r), r, r);
  p = L::Add(p, L::Set(1.0f));
  return L::ZeroBelow(x, -87.0f, L::Mul(p, L::PowerOfTwo(shifted)));
}

/// sum + a.high * b.high, then + a.low * b.low, of pairs of bf16: what vdpbf16ps does.
template <class L>
typename L::F FusePairs(typename L::F a, typename L::F b, typename L::F sum) {
  return L::Fma(L::LowHalves(a), L::LowHalves(b), L::Fma(L::HighHalves(a), L::HighHalves(b), sum));
}

/// The first `count` lanes alone, for an instruction set without masks.
template <class L>
struct PartsByCopy {
  using F = typename L::F;
  static F Load(const float* at, int32_t count) {
    if (count >= kLanes) return L::Load(at);
    float whole[kLanes] = {};
    __builtin_memcpy(whole, at, size_t(count) * sizeof(float));
    return L::Load(whole);
  }
  static void Store(float* at, int32_t count, F value) {
    if (count >= kLanes) return L::Store(at, value);
    float whole[kLanes];
    L::Store(whole, value);
    __builtin_memcpy(at, whole, size_t(count) * sizeof(float));
  }
  static F Keep(F value, int32_t count, float other) {
    if (count >= kLanes) return value;
    float whole[kLanes];
    L::Store(whole, value);
    for (int32_t i = count; i < kLanes; ++i) whole[i] = other;
    return L::Load(whole);
  }
};

template <class L>
struct RowKernels {
  using F = typename L::F;

  static void Quantise(const float* values, int32_t cols, int32_t fine_below,
                       const QuantisedOut& out) {
    for (int32_t block = 0; block < cols / kBlockCols; ++block) {
      QuantiseBlock(values + block * kBlockCols, block, fine_below, out);
    }
  }

  static void QuantiseBlock(const float* values, int32_t block, int32_t fine_below,
                            const QuantisedOut& out) {
    const int32_t at = block * kPanelRows;
    int8_t* q = out.q + at * kBlockCols;
    out.fine[at] = 0;
    const float largest = L::LargestMagnitude(values);  // NaN or infinite where a value is
    if (largest < kSmallestBlock || !(largest <= __FLT_MAX__)) {
      __builtin_memset(q, 0, kBlockCols);
      out.scale[at] = out.sum[at] = largest < kSmallestBlock ? 0.0f : __builtin_nanf("");
      return;
    }
    out.scale[at] = largest / 127.0f;
    const BlockSums sums = L::RoundBlock(values, 127.0f / largest, q);
    int32_t total = sums.q << kRestBits;
    if (sums.squares < fine_below) {
      out.fine[at] = 1;
      total += L::RestBlock(values, 127.0f / largest, q, out.rest + at * kBlockCols);
    }
    out.sum[at] = out.scale[at] * (static_cast<float>(total) * kRestUnit);
  }

  static void RmsNorm(const float* x, const float* weight, float epsilon, int32_t n, float* out) {
    F squares = L::Set(0.0f);
    for (int32_t k = 0; k < n; k += kLanes) {
      const F value = L::LoadPart(x + k, n - k);
      squares = L::Fma(value, value, squares);
    }
    const float mean = L::Sum(squares) / static_cast<float>(n);
    const F inverse = L::Set(1.0f / __builtin_sqrtf(mean + epsilon));
    for (int32_t k = 0; k < n; k += kLanes) {
      const F scaled = L::Mul(L::LoadPart(x + k, n - k), inverse);
      L::StorePart(out + k, n - k, L::Mul(scaled, L::LoadPart(weight + k, n - k)));
    }
  }

  static void SiluMul(const float* gate, const float* up, int32_t n, float* out) {
    for (int32_t k = 0; k < n; k += kLanes) {
      const F x = L::LoadPart(gate + k, n - k);
      const F below = L::Add(L::Set(1.0f), Exp<L>(L::Sub(L::Set(0.0f), x)));
      L::StorePart(out + k, n - k, L::Mul(L::Div(x, below), L::LoadPart(up + k, n - k)));
    }
  }

  static void Rotate(const float* cosine, const float* sine, int32_t n, float* x) {
    for (int32_t k = 0; k < n; k += kLanes) {
      const F here = L::LoadPart(x + k, n - k);
      const F turned = L::Mul(L::SwapPairs(here), L::LoadPart(sine + k, n - k));
      L::StorePart(x + k, n - k, L::Fma(here, L::LoadPart(cosine + k, n - k), turned));
    }
  }

  static void StoreKv(const float* values, int32_t head_dim, KvDtype dtype,
                      std::byte* destination) {
    if (dtype == KvDtype::kFp32) {
      __builtin_memcpy(destination, values, size_t(head_dim) * sizeof(float));
      return;
    }
    for (int32_t d = 0; d < head_dim; d += kLanes) {
      alignas(64) std::byte rounded[2 * kLanes];
      L::StoreBf16(rounded, L::LoadPart(values + d, head_dim - d));
      const int32_t count = head_dim - d < kLanes ? head_dim - d : kLanes;
      __builtin_memcpy(destination + size_t(d) * 2, rounded, size_t(count) * 2);
    }
  }
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_LANES_ROWS_H_
