// Common code of the attention kernels: the shape of the pools, and the work that plan.cu lists. ORCA_HEAD_DIM is D.
#pragma once

#include "element.cuh"
#include "work.cuh"

constexpr int kDim = ORCA_HEAD_DIM;
