#include "engine/ops.h"

namespace pdserve::engine {

const Ops* avx512_ops() { return nullptr; }

}  // namespace pdserve::engine
