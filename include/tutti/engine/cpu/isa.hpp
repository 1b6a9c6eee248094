// SPDX-License-Identifier: MIT
#pragma once

// The instruction sets of our own kernels, which the data pipeline has some of too.
#include <tutti/core/isa.hpp>
