#include "engine/ops.h"

namespace pdserve::engine {

const Ops* avx2_ops() { return nullptr; }

}  // namespace pdserve::engine
