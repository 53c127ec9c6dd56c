// The table of functions that the templates of engine/lanes make of lanes L; see rows.h. All such
// tables give equal bits.
#ifndef PDSERVE_ENGINE_LANES_TABLE_H_
#define PDSERVE_ENGINE_LANES_TABLE_H_

#include <string_view>

#include "engine/lanes/attention.h"
#include "engine/lanes/product.h"
#include "engine/lanes/rows.h"
#include "engine/ops.h"

namespace pdserve::engine {

template <class L>
constexpr Ops LanesTable(std::string_view name) {
  return {name,
          "lanes16",
          RowKernels<L>::Quantise,
          Products<L>::Matmul,
          RowKernels<L>::RmsNorm,
          RowKernels<L>::SiluMul,
          RowKernels<L>::Rotate,
          Attender<L>::Attention,
          Attender<L>::AttentionPart,
          Attender<L>::JoinParts,
          RowKernels<L>::StoreKv};
}

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_LANES_TABLE_H_
